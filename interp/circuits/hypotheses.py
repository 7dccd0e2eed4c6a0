"""Is a circuit what the circuit hypothesis says? Tests of equivalence, independence and minimality.

Shi et al. 2024 (Hypothesis Testing the Circuit Hypothesis in LLMs, NeurIPS 2024, arXiv:2410.13032). The null is always
that the circuit is ideal: a small p is evidence against it, a large one says nothing. There is one value per prompt, or
a mean per group of prompts that are not independent.
"""

import numpy as np
import torch
from jaxtyping import Float
from scipy import special

from interp.circuits.completeness import member_names
from interp.circuits.faithfulness import faithfulness
from interp.circuits.finding import toggled
from interp.circuits.graph import Circuit, whole
from interp.circuits.random_circuits import random_path
from interp.circuits.reference import Ablation
from interp.circuits.splits import Groups, group_sums, grouped
from interp.display import DataFrame
from interp.errors import InputError, whole_number
from interp.model import Model
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs

PerGroup = Float[np.ndarray, " group"]


def equivalence_test(circuit: PerGroup, model: PerGroup, *, margin: float = 0.1) -> float:
    """p for the null that the circuit's value exceeds the model's with a probability within `margin` of one half.

    An exact two-sided binomial test at the margin. Prompts on which both are equal are left out, as in a sign test; if
    there are no others, p is 1.
    """
    if not 0 <= margin < 0.5:
        raise InputError(f"expected a margin around one half, from 0 and below .5; got {margin}")
    above, n = int((circuit > model).sum()), int((circuit != model).sum())
    fewest = min(above, n - above)  # symmetric: equally far from one half on either side
    if 2 * fewest >= n:
        return 1.0
    return float(special.bdtr(fewest, n, 0.5 + margin) + special.bdtrc(n - fewest - 1, n, 0.5 + margin))


def independence_test(removed: PerGroup, model: PerGroup, *, resamples: int = 1000, seed: int = 0) -> float:
    """p for the null that the model's value without the circuit is independent of its value with it.

    The Hilbert-Schmidt independence criterion with Gaussian kernels of median-distance width, against permutations
    (Gretton et al. 2007). If either has no spread, nothing can depend on it, and p is 1.
    """
    first, second = (_centred_kernel(np.asarray(values, dtype=float)) for values in (removed, model))
    if first is None or second is None:
        return 1.0
    random, n = np.random.default_rng(whole_number("seed", seed)), len(first)
    orders = [np.arange(n), *(random.permutation(n) for _ in range(whole_number("resamples", resamples, 1)))]
    statistics = np.array([(first * second[np.ix_(order, order)]).sum() for order in orders])
    return float((statistics >= statistics[0] * (1 - 1e-9)).mean())


def minimality_test(
    changes: Float[np.ndarray, " member"], random_changes: Float[np.ndarray, " draw"], *, quantile: float = 0.9
) -> Float[np.ndarray, " member"]:
    """Each member's p for the null that removing it changes more than removing a random addition does.

    `changes` come from removing each member from the circuit, `random_changes` from removing a random edge from a
    circuit inflated by a random path. The null: the change exceeds a fraction `quantile` of the random ones. p is
    Bonferroni-corrected for the number of members, so a small least p means that the circuit is not minimal.
    """
    if not 0 < quantile < 1:
        raise InputError(f"expected a quantile between 0 and 1, got {quantile}")
    if not len(random_changes):
        raise InputError("expected changes of random additions, got none")
    above = (changes[:, None] > random_changes).sum(1)
    return np.minimum(special.bdtr(above, len(random_changes), quantile) * len(changes), 1.0)


def hypotheses(
    model: Model,
    pairs: Pairs,
    metric: Metric,
    circuit: Circuit,
    groups: Groups = (),
    *,
    margin: float = 0.1,
    quantile: float = 0.9,
    n_random: int = 100,
    ablation: Ablation = "corrupt",
    seed: int = 0,
) -> DataFrame:
    """The three tests of one circuit, on pairs that did not choose it, one row per test: `test`, `p`, `n`, `member`.

    A change is the mean absolute difference over groups (the authors' code squares it). Minimality costs one pass per
    member, and two for each of `n_random` inflated circuits; a set of nodes is inflated by one node. `member` is the
    one that minimality would drop first.
    """
    import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

    labels, random = grouped(pairs, groups), np.random.default_rng(whole_number("seed", seed))
    members = circuit.members.nonzero()
    inflated = [_inflated(circuit, random) for _ in range(whole_number("n_random", n_random, 1))]
    listed = [circuit, whole(circuit.graph, circuit.kind) - circuit]
    listed += [toggled(circuit, place) for place in members]
    listed += [each for larger in inflated for each in larger]
    cells = faithfulness(model, pairs, metric, listed, ablation=ablation)
    sizes = group_sums(torch.ones(len(pairs)), labels)
    (name, values), *_ = cells.values.items()
    kept, removed, *rest = (group_sums(values, labels) / sizes[:, None]).T
    everything, rounding = (group_sums(each, labels) / sizes for each in (cells.clean[name], cells.rounding(name)))
    ties = np.where(np.abs(kept - everything) <= rounding, everything, kept)  # a rounding-size difference is a tie
    without, random_sets = np.array(rest[: len(members)]), np.array(rest[len(members) :]).reshape(n_random, 2, -1)
    changes = np.abs(without - kept).mean(-1) if len(members) else np.zeros(0)
    by_member = minimality_test(changes, np.abs(np.diff(random_sets, axis=1)).mean((1, 2)), quantile=quantile)
    least, name = min(zip(by_member, member_names(circuit), strict=True), default=(1.0, None))
    rows = [
        ("equivalence", equivalence_test(ties, everything, margin=margin), len(sizes), None),
        ("independence", independence_test(removed, everything, seed=seed), len(sizes), None),
        ("minimality", least, n_random, name),
    ]
    return pd.DataFrame(rows, columns=["test", "p", "n", "member"])


def _centred_kernel(values: PerGroup) -> Float[np.ndarray, "group group"] | None:
    distance = np.abs(values[:, None] - values)
    apart = distance[np.triu_indices(len(values), 1)]
    if not len(apart) or apart.max() <= 1e-9 * max(np.abs(values).max(), 1e-300):
        return None
    width = np.median(apart) or apart[apart > 0].mean()
    kernel = np.exp(-(distance**2) / (2 * width**2))
    return kernel - kernel.mean(0) - kernel.mean(1)[:, None] + kernel.mean()


def _inflated(circuit: Circuit, random: np.random.Generator) -> tuple[Circuit, Circuit]:
    """The circuit with a random addition, and the same without one edge (or the node) of the addition."""
    outside = whole(circuit.graph, circuit.kind) - circuit
    if not outside.size:
        raise InputError("the circuit holds everything: nothing is left to inflate it with, so minimality has no test")
    if circuit.kind == "nodes":
        added = [random.choice(outside.members.nonzero().numpy())]
    else:
        added = []
        while not added:  # the whole path may be in the circuit already
            added = [place for place in random_path(circuit.graph, random) if not circuit.members[tuple(place)]]
    inflated = circuit
    for place in added:
        inflated = toggled(inflated, place)
    return inflated, toggled(inflated, added[int(random.integers(len(added)))])
