"""Which heads carry a preference? We exchange their outputs between the two prompts of each contrast.

The prompts may differ in length: each position gets its partner's output, or keeps its own. A cell is a set of heads,
everywhere or in one part of the prompt. A lot holds some contrasts of a paradigm and all cells.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analyses.execution import lots
from analyses.measures.findings import NOTABLE, carriers
from analyses.reading.inputs import Heads
from analyses.suites.contrasts import PARTS, Contrast
from analyses.suites.named_words import hiding_costs, in_lots, read
from analyses.tasks.causal_tests import choosing_bound
from analyses.tasks.flips import flip_counts
from analyses.wording.head_names import head_name
from interp import TokenBatch, Transformer
from interp.circuits.splits import share_of_difference
from interp.patching.patch_sites import PatchSite
from interp.patching.patches import resumed
from interp.patching.plain import PlainRun, plain_run
from interp.patching.preparation import fitting, rows_at_once
from interp.patching.results import guessed, unreliable
from interp.statistics import FEWEST_CLUSTERS, Estimate

HeadSet = tuple[tuple[int, int], ...]
Cell = tuple[HeadSet, str]  # heads, and a part of the prompt ("": everywhere)
MOST = 200  # contrasts per paradigm
SIZE, HALF, OTHERS = 6, 0.5, 20  # heads in a set, its least share of the joint effect, random sets to compare


class Study(NamedTuple):
    """A paradigm's contrasts, which of them choose heads, and the unpatched readings of both prompts."""

    name: str
    contrasts: Sequence[Contrast]
    groups: np.ndarray
    chooses: Bool[np.ndarray, " contrast"]
    clean: Float[np.ndarray, " contrast"]
    corrupt: Float[np.ndarray, " contrast"]

    def share(self, values: Float[np.ndarray, "cell contrast"], way: str, *, chooses: bool, seed: int) -> Estimate:
        """Each cell's share of the clean-corrupted difference, on one half of the contrasts."""
        effects = values - self.corrupt if way == "denoise" else self.clean - values
        side = np.flatnonzero(self.chooses == chooses)
        parts = [torch.from_numpy(each[..., side]) for each in (effects, self.clean - self.corrupt)]
        return share_of_difference(parts[0], parts[1], self.groups[side].tolist(), seed=seed)

    def facts(self, values: Float[np.ndarray, "cell contrast"], way: str, seed: int) -> dict[str, Any]:
        """Effects of cells on the reporting half. A preference flips if the other answer or sentence is likelier."""
        plain, other = (self.corrupt, self.clean) if way == "denoise" else (self.clean, self.corrupt)
        share = self.share(values, way, chooses=False, seed=seed)
        level = 0.0 if self.contrasts[0].wrong else other
        changed, out = (values > level) != (plain > level), ~self.chooses
        flips = flip_counts(changed[:, out], [self.groups[out].tolist()], seed)
        flips = dict.fromkeys(flips, np.nan) if way == "hide" else flips  # a hiding cost is a difference of two losses
        columns = {"effect": share.value, "ci_low": share.low, "ci_high": share.high, "p": share.two_sided}
        return {"paradigm": self.name, **columns, **flips, "n": int(out.sum())}


def study(
    model: Transformer, name: str, contrasts: Sequence[Contrast], seed: int, progress: lots.Progress | None = None
) -> Study | str:
    """Draw at most `MOST` contrasts and halve them by groups; or say why heads have no difference to carry.

    With fewer than eight groups, each pair of prompts is a group, in either order.
    """
    rng = np.random.default_rng(seed)
    contrasts = [contrasts[n] for n in sorted(rng.permutation(len(contrasts))[:MOST])]
    groups = np.array([each.group for each in contrasts])
    if len({*groups}) < FEWEST_CLUSTERS:
        groups = np.array([str(sorted([each.clean.ids, each.corrupt.ids])) for each in contrasts])
    codes, unique = pd.factorize(groups)
    if len(unique) < FEWEST_CLUSTERS:
        return f"it has {len(unique)} different contrasts, fewer than {FEWEST_CLUSTERS}"
    chooses = 2 * rng.permutation(len(unique))[codes] < len(unique)
    clean, corrupt = exchange(model, contrasts, [], progress=progress)
    for whole in (torch.from_numpy((clean - corrupt)[side]) for side in (chooses, ~chooses)):
        wrong = f"between its prompts the wrong one is preferred, by {-float(whole.mean()):.3g} nats"
        if why := unreliable(whole) or wrong * bool(whole.mean() < 0):
            return why
    why = guessed(torch.from_numpy(clean)) if contrasts[0].wrong else None
    return why or Study(name, contrasts, groups, chooses, clean, corrupt)


def exchange(
    model: Transformer,
    contrasts: Sequence[Contrast],
    cells: Sequence[Cell],
    *ways: str,
    progress: lots.Progress | None = None,
) -> list[np.ndarray]:
    """Readings of the clean and corrupted prompts, then, for each of `ways`, with each cell exchanged.

    `noise` patches heads of the clean prompts, `denoise` heads of the corrupted ones.
    """
    return in_lots(partial(_exchange, model, [*cells], ways), contrasts, progress)


@torch.no_grad()
def _exchange(
    model: Transformer, cells: Sequence[Cell], ways: Sequence[str], contrasts: Sequence[Contrast]
) -> tuple[Float[Tensor, "*cell contrast"], ...]:
    sides = [[each.clean for each in contrasts], [each.corrupt for each in contrasts]]
    runs = [plain_run(model, (TokenBatch.from_rows([e.ids for e in side]).to(model.device), None)) for side in sides]
    plain = [_read(model, run.final[None], contrasts, side)[0] for run, side in zip(runs, sides, strict=True)]
    return *plain, *(_with_cells(model, cells, contrasts, runs, int(way == "denoise")) for way in ways)


def _with_cells(
    model: Transformer, cells: Sequence[Cell], contrasts: Sequence[Contrast], runs: Sequence[PlainRun], number: int
) -> Float[Tensor, "cell contrast"]:
    """Readings of run `number`, with each cell's heads from the other run."""
    base, source, site = runs[number], runs[1 - number], PatchSite.from_name(model, "z")
    prompts = [(each.clean, each.corrupt)[number] for each in contrasts]
    (n_prompts, width), n_heads = base.batch.ids.shape, model.config.n_heads
    pairs = [(row, pair[number], pair[1 - number]) for row, each in enumerate(contrasts) for pair in each.aligned]
    rows, positions, partners = torch.tensor(pairs, device=model.device).T
    layers = zip(base["attn.z"], source["attn.z"], strict=True)
    theirs = [base_z.index_put((rows, positions), source_z[rows, partners]) for base_z, source_z in layers]
    where, tokens = {"": torch.ones(n_prompts, width, dtype=torch.bool)}, torch.arange(width)
    for part in {part for _, part in cells if part}:
        where[part] = torch.stack([torch.isin(tokens, torch.tensor(each.parts[part])) for each in contrasts])
    values, starts = base.final.new_empty(len(cells), n_prompts), [min(heads)[0] for heads, _ in cells]
    order = sorted(range(len(cells)), key=starts.__getitem__)
    for chunk in fitting(order, lambda _: n_prompts * width, rows_at_once(model), starts.__getitem__):
        masks = torch.zeros(model.config.n_layers, len(chunk), n_prompts, width, n_heads, 1, dtype=torch.bool)
        for row, (heads, part) in enumerate(cells[n] for n in chunk):
            for layer, head in heads:
                masks[layer, row, ..., head, 0] = where[part]
        start = starts[chunk[0]]
        puts = enumerate(zip(theirs[start:], masks[start:].to(model.device), strict=True), start)
        edits: Any = {site.name(layer): partial(_put, *parts) for layer, parts in puts}
        values[chunk] = _read(model, resumed(model, base, site, edits, start), contrasts, prompts)
    return values


def _put(theirs: Tensor, mask: Tensor, plain: Tensor) -> Tensor:
    return torch.where(mask, theirs, plain)


def _read(
    model: Transformer,
    final: Float[Tensor, "cell prompt position d_model"],
    contrasts: Sequence[Contrast],
    prompts: Any,
) -> Float[Tensor, "cell prompt"]:
    values = []
    for row, (each, prompt) in enumerate(zip(contrasts, prompts, strict=True)):
        logits = model.read(final[:, row, [*prompt.reads]])
        assert logits is not None
        values.append(read(each.right, each.wrong, logits))
    return torch.stack(values, -1)


def all_heads(model: Transformer) -> HeadSet:
    """Layer by layer."""
    return tuple(product(range(model.config.n_layers), range(model.config.n_heads)))


def head_rows(model: Transformer, study: Study, seed: int, progress: lots.Progress | None = None) -> pd.DataFrame:
    """One row per head and intervention, from the reporting half; `chose` and `choosing_bound` are from the other half.

    `hide` is the cost of hiding the named word from the reading position, beyond that of the nearest other tokens. It
    has no rows if most items name no word.
    """
    cells: list[Cell] = [((head,), "") for head in all_heads(model)]
    tables, (columns, _) = [], Heads.from_model(model).columns(1)
    _, _, noise, denoise = exchange(model, study.contrasts, cells, "noise", "denoise", progress=progress)
    by_way, costs = {"noise": noise, "denoise": denoise}, hiding_costs(model, study.contrasts, progress)
    if np.isnan(costs).mean() <= HALF:
        by_way["hide"] = study.clean - np.nan_to_num(costs)
    for way, values in by_way.items():
        chose = study.share(values, way, chooses=True, seed=seed)
        facts = {"chose": chose.value, "choosing_bound": choosing_bound(chose)}
        tables.append(pd.DataFrame({**columns, "intervention": way, **study.facts(values, way, seed), **facts}))
    return pd.concat(tables, ignore_index=True)


def named_heads(heads: pd.DataFrame) -> pd.DataFrame:
    """One row per paradigm and head that carries part of it when outputs are exchanged, strongest first."""
    if heads.empty:
        return pd.DataFrame(columns=["paradigm", "layer", "head", "intervention"])
    rows = carriers(heads.loc[heads["intervention"] != "hide"]).loc[lambda rows: rows["effect"] > 0]
    rows = rows.drop_duplicates(["paradigm", "layer", "head"])  # noise comes first
    return rows.sort_values("choosing_bound", ascending=False, kind="stable")


def smallest_set(model: Transformer, study: Study, heads: pd.DataFrame) -> HeadSet:
    """The smallest set we found that, noised, has half the effect of noising all heads; on the choosing half."""
    rows = heads.loc[(heads["paradigm"] == study.name) & (heads["intervention"] != "hide")]
    single = rows.groupby(["layer", "head"])["chose"].max().sort_values(ascending=False, kind="stable")
    order = [(int(layer), int(head)) for layer, head in single.index[:SIZE].tolist()]
    contrasts = [contrast for contrast, chooses in zip(study.contrasts, study.chooses, strict=True) if chooses]

    def losses(sets: Sequence[HeadSet]) -> np.ndarray:
        clean, corrupt, values = exchange(model, contrasts, [(heads, "") for heads in sets], "noise")
        return (clean - values).sum(1) / (clean - corrupt).sum()

    prefixes = [tuple(order[: size + 1]) for size in range(len(order))]
    enough, *effects = losses([all_heads(model), *prefixes])
    chosen = next((s for s, e in zip(prefixes, effects, strict=True) if e >= HALF * enough >= HALF * NOTABLE), ())
    while len(chosen) > 1:
        rests = [tuple(head for head in chosen if head != out) for out in chosen]
        effects = losses(rests)
        if effects.max() < HALF * enough:
            break
        chosen = rests[int(effects.argmax())]
    return tuple(sorted(chosen))


def set_rows(
    model: Transformer, study: Study, chosen: Mapping[str, HeadSet], seed: int, progress: lots.Progress | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two tables: the effect of every paradigm's set on this one (own set with comparisons), and its heads by part."""
    members = chosen.get(study.name, ())
    rng, free = np.random.default_rng(seed), [head for head in all_heads(model) if head not in members]
    n = len(members)
    draws = [tuple(sorted(map(tuple, rng.permutation(free)[:n].tolist()))) for _ in range(OTHERS * bool(n))]
    others = [*dict.fromkeys(heads for heads in draws if len(heads) == n)]
    parts = [part for part in PARTS if sum(bool(c.parts[part]) for c in study.contrasts) > HALF * len(study.contrasts)]
    places = [*product(members, parts)]
    sets = [all_heads(model), *chosen.values(), *others]
    cells: list[Cell] = [*((heads, "") for heads in sets), *(((head,), part) for head, part in places)]
    facts = study.facts(exchange(model, study.contrasts, cells, "noise", progress=progress)[2], "noise", seed)
    rows = pd.DataFrame(facts).drop(columns="p")
    n_sets, random_effects = 1 + len(chosen), rows["effect"][1 + len(chosen) : len(sets)]
    names = ["+".join(head_name(*head) for head in heads) for heads in chosen.values()]
    table = rows[1:n_sets].assign(chosen_on=[*chosen], heads=names)
    sizes = {"all_effect": rows["effect"][0], "others": len(others)}
    sizes |= {"others_effect": random_effects.mean(), "others_best": random_effects.max()}
    is_own = table["chosen_on"] == study.name
    by_part = pd.DataFrame([(*head, part) for head, part in places], columns=["layer", "head", "part"])
    by_part = pd.concat([rows[len(sets) :].reset_index(drop=True), by_part], axis=1)
    return table.assign(**{name: np.where(is_own, value, np.nan) for name, value in sizes.items()}), by_part
