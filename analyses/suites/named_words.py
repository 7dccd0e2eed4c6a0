"""Does a head look from the reading position to the word that the suite names, and what does hiding that word cost?

Rules go through the same scorer: each chooses one visible word, and is right if it is the named one.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analyses.execution import lots
from analyses.suites.contrasts import Contrast
from interp import TokenBatch, Transformer
from interp.circuits.splits import group_sums
from interp.patching import Claim, Read, knock_out
from interp.patching.patch_sites import last_stack
from interp.patterns.one_attention import read_patterns
from interp.patterns.rows import rows_at
from interp.patterns.selection import accuracy
from interp.statistics import estimate

OFFSETS = range(1, 6)
RULES = ("the word before", *(f"{n} words before" for n in OFFSETS[1:]), "the first word", "the nearest such word")
AT_ONCE = 32  # contrasts per lot


def in_lots(
    function: partial[tuple[Tensor, ...]], contrasts: Sequence[Contrast], progress: lots.Progress | None
) -> list[Float[np.ndarray, "*cell contrast"]]:
    """The results of a function of contrasts, called on one lot at a time."""
    parts = [(contrasts[n : n + AT_ONCE],) for n in range(0, len(contrasts), AT_ONCE)]
    done = zip(*lots.do(function, parts, progress), strict=True)
    return [torch.cat(each, -1).double().cpu().numpy() for each in done]


def read(right: Sequence[int], wrong: Sequence[int], logits: Float[Tensor, "*cells read output"]) -> Tensor:
    """The log-probability of `right` (one token per read), minus the wrong answer's if there is one."""
    logs = logits.log_softmax(-1)
    value = logs[..., torch.arange(len(right)), torch.tensor(right)].sum(-1)
    return value - logs[..., 0, wrong[0]] if wrong else value


def hiding_costs(
    model: Transformer, contrasts: Sequence[Contrast], progress: lots.Progress | None = None
) -> Float[np.ndarray, "head contrast"]:
    """The cost of hiding the named word from each head, beyond hiding as many of the nearest other tokens.

    NaN if the named word is not visible, or too few other tokens are.
    """
    return in_lots(partial(_hiding_costs, model), contrasts, progress)[0]


def _hiding_costs(model: Transformer, contrasts: Sequence[Contrast]) -> tuple[Float[Tensor, "head contrast"]]:
    batch, claims, places = TokenBatch.from_rows([each.clean.ids for each in contrasts]), list[Claim](), list[int]()
    for row, each in enumerate(contrasts):
        visible = [n for n in _visible(model, each) if n not in each.clean.reads]
        named, free = ([n for n in visible if (n in each.parts["named"]) == side] for side in (True, False))
        if named and len(free) >= len(named):
            near = sorted(free, key=lambda n, named=named: min(abs(n - other) for other in named))[: len(named)]
            metric = Read(torch.tensor(each.clean.reads), partial(read, each.right, each.wrong))
            masks = (torch.isin(torch.arange(batch.ids.shape[1]), torch.tensor(keys)) for keys in (named, near))
            claims += [Claim(row, metric.positions, mask.expand(len(metric.positions), -1), metric) for mask in masks]
            places.append(row)
    costs = torch.full((model.config.n_layers * model.config.n_heads, len(contrasts)), torch.nan, dtype=torch.float64)
    if claims:
        drops = knock_out(model, batch.to(model.device), claims).flatten(1).double().cpu()
        costs[:, places] = (drops[::2] - drops[1::2]).T
    return (costs,)


def _visible(model: Transformer, each: Contrast) -> range:
    """Tokens of the clean text that the first reading position sees, special tokens excluded."""
    tokens = [n for _, word in each.clean.words for n in word]
    return range(min(tokens), 1 + (each.clean.reads[0] if model.config.last.causal else max(tokens)))


def attention_shares(
    model: Transformer,
    contrasts: Sequence[Contrast],
    groups: np.ndarray,
    chooses: Bool[np.ndarray, " contrast"],
    seed: int,
    progress: lots.Progress | None = None,
) -> pd.DataFrame:
    """One row per head: how often it looks most at the named word, and how often the best rule chooses that word.

    The choosing half picks the rule; both shares come from the reporting half. There are no rows if too few items have
    a choice between words.
    """
    named = {word for each in contrasts for word, tokens in each.clean.words if {*tokens} & {*each.parts["named"]}}
    hits = in_lots(partial(_hits, model, sorted(named)), contrasts, progress)[0]
    choosing, reporting = (np.flatnonzero(~np.isnan(hits[0]) & (chooses == side)) for side in (True, False))
    if min(len(choosing), len(reporting)) < 2:
        return pd.DataFrame()
    n_heads, names = len(hits) - len(RULES), groups[reporting].tolist()
    rule = int(hits[n_heads:, choosing].mean(1).argmax())
    sums = group_sums(torch.from_numpy(hits[:, reporting]), names)
    sizes = group_sums(torch.ones(1, len(names)), names)
    share = estimate(sums[:, :n_heads], sizes, sums[:, [n_heads + rule]], sizes, seed=seed)
    columns = {"value": share.value, "rule": RULES[rule], "rule_value": share.baseline, "gain": share.gain}
    return pd.DataFrame({**columns, "ci_low": share.low, "ci_high": share.high, "p": share.p, "n": len(names)})


def _hits(model: Transformer, named: Sequence[str], contrasts: Sequence[Contrast]) -> tuple[Tensor]:
    """Whether each head and rule chooses the named word (cell contrast); NaN without a choice between words."""
    batch = TokenBatch.from_rows([each.clean.ids for each in contrasts]).to(model.device)
    pattern = read_patterns(model, batch, f"{last_stack(model)}.*.attn.pattern")
    reads = torch.tensor([each.clean.reads[0] for each in contrasts])
    rows = rows_at(pattern, *(each.to(model.device) for each in (torch.arange(len(contrasts)), reads))).cpu()
    hits = torch.full((rows.shape[1] + len(RULES), len(contrasts)), torch.nan)
    for row, each in enumerate(contrasts):
        words, visible = each.clean.words, {*_visible(model, each)}
        current = max((n for n, (_, tokens) in enumerate(words) if {*tokens} & {*each.clean.reads}), default=len(words))
        places = [n for n, (_, tokens) in enumerate(words) if {*tokens} <= visible and n != current]
        correct = torch.tensor([[bool({*words[n][1]} & {*each.parts["named"]}) for n in places]])
        if len(places) > 1 and correct.any():
            last = max((n for n in places if words[n][0] in named), default=-1)
            choices = torch.tensor([*(current - n for n in OFFSETS), 0, last])
            rules = (choices[:, None] == torch.tensor(places)).float()
            attention = torch.stack([rows[row][:, [*words[n][1]]].sum(-1) for n in places], -1)
            hits[:, row] = accuracy(torch.cat([attention, rules])[None], torch.ones_like(correct), correct)[0]
    return (hits,)
