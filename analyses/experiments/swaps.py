"""Pairs of prompts that differ in one noun, patched both ways: which cells carry the noun to the answer?

The knight in shining: which head brings the knight to the last token, so that armor follows? Every head's `z` is
swapped; beside it stands what each head writes towards the answer directly.

The soccer player, or the musician, walked out onto the: which positions carry the profession to the last token? One
layer and position is swapped at a time. In the stories' words the subject's gender is what has to arrive.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from analyses.experiments.experiment import SUBJECT, Outcome, bounded
from analyses.experiments.prompts import experiment_data, readable, tokenizer_of
from analyses.tasks.causal_tests import NO_OUTPUT
from interp import InputError, Model, Pairs, logit_difference, sweep
from interp.attribution import direct_logit_attribution
from interp.patching import unreliable
from interp.statistics import Shares, shares

Cells = NDArray[np.floating]
_DIRECT = "direct", "direct_low", "direct_high"
_KNIGHT_COLUMNS = "source layer head share ci_low ci_high direct direct_low direct_high n accuracy accuracy_low example"
_PROFESSION_COLUMNS = "layer place share ci_low ci_high n accuracy accuracy_low token source site example"


class Swap(NamedTuple):
    """A prompt, the same with another noun, and what should follow either."""

    source: str
    clean: str
    corrupt: str
    right: str
    wrong: str


def swaps_of(experiment: str) -> list[Swap]:
    """The pairs of an experiment: its templates, filled with each combination of the words of their slots."""
    swaps = []
    for template in experiment_data(experiment)["prompts"]:
        slots, texts = template["slots"], {name: text for name, text in template.items() if name != "slots"}
        for words in product(*slots.values()):
            filling = {}
            for names, word in zip(slots, words, strict=True):
                filling |= zip(names.split(), [word] if isinstance(word, str) else word, strict=True)
            swaps.append(Swap(**{name: text.format_map(filling) for name, text in texts.items()}))
    return swaps


def by_swapping(
    model: Model,
    experiment: str,
    sites: Mapping[str, tuple[str, ...]],
    tabulate: Callable[[Pairs, Mapping[str, Cells], Cells], pd.DataFrame],
    columns: str,
) -> Outcome:
    """Patch the pairs of every source that a model can use, and join what `tabulate` makes of each.

    It gets a source's pairs, the effects by site (`*cells pair`, the mean of both directions) and the whole effects.
    `columns` are the table's, in order; `source`, `accuracy` of all prompts, `accuracy_low` and `example` are added.

    Raises:
        InputError: no pair can be used; no output layer, no tokenizer, not causal.
    """
    tokenizer_of(model)
    if model.config.output == "none":
        raise InputError(NO_OUTPUT)
    left_out, used, refused, tables, swaps = Counter[str](), {}, {}, [pd.DataFrame()], swaps_of(experiment)
    for source in dict.fromkeys(swap.source for swap in swaps):
        try:
            pairs, example = _paired(model, source, [swap for swap in swaps if swap.source == source], left_out)
        except InputError as error:
            refused[source] = str(error)
            continue
        ways = {
            site: [sweep(model, way, logit_difference(), site, axes) for way in (pairs, pairs.swapped())]
            for site, axes in sites.items()
        }
        both = next(iter(ways.values()))
        if reason := unreliable(both[0].difference()):
            refused[source] = reason
            continue
        effects = {site: np.mean([way.effect().double().cpu().numpy() for way in two], 0) for site, two in ways.items()}
        whole = both[0].difference().double().cpu().numpy()
        accuracy = float((torch.cat([way.clean["logit_difference"] for way in both]) > 0).double().mean())
        used[source] = len(pairs)
        answered = {"accuracy": accuracy, "accuracy_low": _least(accuracy, len(pairs)), "example": example}
        table = tabulate(pairs, effects, whole).assign(source=source, **answered)
        tables.append(table.filter(columns.split()))
    return Outcome(pd.concat(tables[1:] or tables, ignore_index=True), used, left_out, refused)


def _paired(model: Model, source: str, swaps: Sequence[Swap], left_out: Counter[str]) -> tuple[Pairs, str]:
    """The pairs that a model can use, and the first of them as an example."""
    swaps = readable(model, swaps, source, left_out, lambda swap: (swap.clean, swap.corrupt), "pairs")
    if not swaps:
        raise InputError("no pair can be read by this model")
    sides = [[getattr(swap, side) for swap in swaps] for side in ("clean", "corrupt", "right", "wrong")]
    pairs = Pairs.from_texts(model, *sides, drop=True)
    left_out.update({f"pairs where {reason}": count for reason, count in pairs.left_out.items()})
    first = swaps[pairs.kept[0]]
    return pairs, f"{first.clean}{first.right} / {first.corrupt}{first.wrong}"


def _least(share: float, n: int) -> float:
    """The lower end of a share's 95% interval (Wilson 1927): of pairs, since a pair's two prompts are one item."""
    spread = 1.96 * (share * (1 - share) / n + 1.96**2 / (4 * n**2)) ** 0.5
    return (share + 1.96**2 / (2 * n) - spread) / (1 + 1.96**2 / n)


def shares_of(effects: Cells, whole: Cells, seed: int) -> Shares:
    """Sum of effects over sum of wholes, cell by cell (cells in one row), over pairs; missing cells are left out."""
    return shares(effects.reshape(-1, effects.shape[-1]).T, whole, seed=seed)


def measure_knight(model: Model, *, seed: int = 0) -> Outcome:
    """Each head's share of the difference between the two answers, patched, and written directly.

    Raises:
        InputError: no pair can be used, no output layer, no tokenizer.
    """

    def tabulate(pairs: Pairs, effects: Mapping[str, Cells], whole: Cells) -> pd.DataFrame:
        share = shares_of(effects["z"], whole, seed)
        direct = shares_of(_direct(model, pairs), whole, seed)
        layer, head = np.unravel_index(np.arange(len(share.n)), effects["z"].shape[:2])
        return pd.DataFrame({"layer": layer, "head": head, **bounded(share), **bounded(direct, *_DIRECT), "n": share.n})

    return by_swapping(model, "knight", {"z": ("layer", "head")}, tabulate, _KNIGHT_COLUMNS)


def _direct(model: Model, pairs: Pairs) -> np.ndarray:
    """Each head's direct attribution in the clean prompts less that in the corrupted ones: layer head pair."""
    batches = pairs.clean, pairs.corrupt
    try:
        sides = [direct_logit_attribution(model, batch, pairs.right, pairs.wrong) for batch in batches]
    except InputError:  # norms after sums
        return np.full((model.config.n_layers, model.config.n_heads, len(pairs)), np.nan)
    return (sides[0].by_head() - sides[1].by_head()).double().cpu().numpy()


def measure_profession(model: Model, *, seed: int = 0) -> Outcome:
    """Share of the difference between the two answers that each layer and position carries.

    Raises:
        InputError: no pair can be used, no output layer, no tokenizer.
    """

    def tabulate(pairs: Pairs, effects: Mapping[str, Cells], whole: Cells) -> pd.DataFrame:
        tokens = _tokens(model, pairs)
        return pd.concat(
            [_by_place(pairs, sweep, whole, tokens, seed).assign(site=site) for site, sweep in effects.items()]
        )

    sites = {"resid_pre": ("layer", "position"), "z": ("layer", "position")}
    return by_swapping(model, "profession", sites, tabulate, _PROFESSION_COLUMNS)


def _by_place(pairs: Pairs, effects: Cells, whole: Cells, tokens: Mapping[int, str], seed: int) -> pd.DataFrame:
    from_end = np.full(effects.shape, np.nan)  # layer, tokens before the last, pair
    for pair, last in enumerate(pairs.last.cpu().numpy()):
        from_end[:, : last + 1, pair] = effects[:, last::-1, pair]
    share = shares_of(from_end, whole, seed)
    layer, before = np.unravel_index(np.arange(len(share.n)), from_end.shape[:2])
    table = pd.DataFrame({"layer": layer, "place": -before, **bounded(share), "n": share.n})
    table["token"] = [tokens[-place] for place in before]
    first = int((pairs.first_changed.cpu() - pairs.last.cpu()).min())
    return table.loc[(table["place"] >= first) & (share.n > 0)]  # nothing before the subject can carry it


def _tokens(model: Model, pairs: Pairs) -> dict[int, str]:
    """What stands at each place: its token if all prompts have the same, else that it is the subject."""
    assert model.tokenizer is not None
    names = {}
    for before in range(int(pairs.last.max()) + 1):
        column = pairs.last - before
        there = column >= 0
        ids = {int(id) for batch in (pairs.clean, pairs.corrupt) for id in batch.ids[there, column[there]]}
        names[-before] = model.tokenizer.label(ids.pop()).strip() if len(ids) == 1 else SUBJECT
    return names
