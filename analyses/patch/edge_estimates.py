"""Which connections carry the difference, and do gradients know? Every edge's estimate, and its direct path's effect.

EAP (Syed et al. 2023) and EAP-IG (Hanna et al. 2024) score edges; path patching of one edge (Goldowsky-Dill et al.
2023) measures them. One measurement of a receiver gives all edges that end there, so where a model has many edges it is
receivers that are chosen: those of the strongest estimates, and as many by chance.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analyses.patch.cells import METRICS, all_idle
from interp import Model
from interp.patching import Edges, Metric, Pairs, Receiver, Sweep, edge_attribution, path_patch
from interp.patching.paths import Part, Sender
from interp.patching.results import Direction

EAP, EAP_IG = "EAP", "EAP-IG"
STEPS = 5  # of EAP-IG, on the way from one prompt to the other
EDGE_SITE = "z"  # heads send what their z becomes: the site whose sweep edges stand beside
UNMEASURED = "no"
_FEW = 5000  # edges that are all measured
_RECEIVERS = 8  # chosen by estimate where there are more, and as many by chance
_SENDERS: dict[Sender, tuple[str, ...]] = {"z": ("layer", "head"), "mlp_out": ("layer",)}


def edge_rows(
    model: Model,
    pairs: Pairs,
    found: Sequence[Sweep],
    *,
    seed: int = 0,
    few: int = _FEW,
    progress: Callable[[str, int], object] | None = None,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows of `tables/estimates` for all edges, in the metrics and directions of some sweeps; and how they were chosen.

    Edges from the embedding have estimates alone, since path patching starts at heads and feed-forwards.

    Raises:
        InputError: norms after the layers, for which no edges are defined.
    """
    say = progress or (lambda stage, count: None)
    tables, chosen = [], {}
    for each in found:
        for name in each.values:
            scored = {
                method: edge_attribution(model, pairs, METRICS[name](), each.direction, steps=steps)
                for method, steps in ((EAP, 1), (EAP_IG, STEPS))
            }
            chosen = _receivers(scored, seed, few)
            exact = torch.full_like(scored[EAP].effect(), torch.nan)
            for count, receiver in enumerate(chosen):
                say("measuring edges into receiver", count)
                for at, effect in _measured(model, pairs, METRICS[name](), each.direction, scored[EAP], receiver):
                    exact[at, scored[EAP].labels["receiver"].index(receiver)] = effect
            least = each.rounding(name)
            idle = all_idle([exact.nan_to_num(torch.inf), *(edges.effect() for edges in scored.values())], least)
            for method, edges in scored.items():
                tables.append(_rows(edges, exact, idle, chosen).assign(method=method, metric=name))
    table = pd.concat(tables, ignore_index=True)
    first = table.loc[(table["method"] == EAP) & (table["direction"] == table["direction"].iloc[0])]
    first = first.loc[first["metric"] == first["metric"].iloc[0]]
    return table, {
        "edges": len(first),
        "from_embedding": int((first["sender"] == "embed").sum()),
        "sampled": "all" not in chosen.values(),
        "receivers": _RECEIVERS,
        "steps": STEPS,
        "seed": seed,
    }


def _receivers(scored: dict[str, Edges], seed: int, few: int) -> dict[str, str]:
    """Which receivers to measure, with the reason: `all`, by `chance` or as the `strongest`."""
    sizes = torch.stack([edges.effect().mean(-1).abs() for edges in scored.values()])
    size = sizes.amax(0)[1:]  # without the embedding
    names = [str(name) for name in scored[EAP].labels["receiver"]]
    reachable = (~size.isnan()).any(0)
    if int((~size.isnan()).sum()) <= few:
        return {name: "all" for name, real in zip(names, reachable.tolist(), strict=True) if real}
    places = reachable.nonzero()[:, 0].cpu().numpy()
    drawn = np.random.default_rng(seed).choice(places, min(_RECEIVERS, len(places)), replace=False)
    best = size.nan_to_num(-1).amax(0).argsort(descending=True, stable=True)[:_RECEIVERS].tolist()
    return {names[at]: "strongest" for at in best} | {names[at]: "chance" for at in sorted(drawn.tolist())}


def _measured(
    model: Model, pairs: Pairs, metric: Metric, direction: Direction, edges: Edges, receiver: str
) -> Iterator[tuple[int, Float[Tensor, " prompt"]]]:
    """The exact effect of each edge into a receiver, with its sender's place."""
    exists = ~edges.effect()[:, edges.labels["receiver"].index(receiver)].isnan().any(-1)
    senders = [(at, name) for at, name in enumerate(map(str, edges.labels["sender"])) if exists[at] and name != "embed"]
    for site, by in _SENDERS.items():
        group = [(at, name) for at, name in senders if name.startswith("mlp") == (site == "mlp_out")]
        if not group:
            continue
        effect = path_patch(model, pairs, metric, [_receiver(receiver)], site, by, "nothing", direction).effect()
        for at, name in group:
            yield at, effect[tuple(map(int, name.removeprefix("mlp.").split(".")))]


def _receiver(name: str) -> Receiver:
    """`1.4.q`, `mlp.1` or `logits`, as an end of a path."""
    if name == "logits":
        return Receiver("logits")
    if name.startswith("mlp."):
        return Receiver("mlp", int(name.removeprefix("mlp.")))
    layer, head, part = name.split(".")
    return Receiver(cast(Part, part), int(layer), int(head))


def _rows(
    edges: Edges,
    exact: Float[Tensor, "sender receiver prompt"],
    idle: Bool[Tensor, "sender receiver"],
    chosen: dict[str, str],
) -> pd.DataFrame:
    """One row an edge. A score has the sign of the metric's change, an effect is positive towards the other prompt."""
    estimate = edges.effect() if edges.direction == "denoise" else -edges.effect()
    senders, receivers = (~estimate.isnan().any(-1)).nonzero().T.tolist()
    own, truth = estimate[senders, receivers], exact[senders, receivers]
    names = [(edges.labels["sender"][a], edges.labels["receiver"][b]) for a, b in zip(senders, receivers, strict=True)]
    return pd.DataFrame(
        {
            "sender": [sender for sender, _ in names],
            "receiver": [receiver for _, receiver in names],
            "direction": edges.direction,
            "exact": truth.double().mean(-1).cpu().numpy(),
            "estimate": own.double().mean(-1).cpu().numpy(),
            "idle": idle[senders, receivers].cpu().numpy(),
            "chosen": [UNMEASURED if a == "embed" else chosen.get(b, UNMEASURED) for a, b in names],
            "n": own.shape[-1],
        }
    )
