"""Does a head look from where the model reads to the word that the suite names, and what if it cannot?

Rules are scored as heads are: each chooses one of the words before, and is right where that is the named one.
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
AT_ONCE = 32  # contrasts of a lot


def _in_lots(
    function: partial[Tensor], contrasts: Sequence[Contrast], progress: lots.Progress | None
) -> Float[np.ndarray, "cell contrast"]:
    parts = [(contrasts[n : n + AT_ONCE],) for n in range(0, len(contrasts), AT_ONCE)]
    return torch.cat(lots.do(function, parts, progress), 1).double().numpy()


def read(right: Sequence[int], wrong: Sequence[int], logits: Float[Tensor, "*cells read output"]) -> Tensor:
    """The log-probability of what is right, one token a read, less that of the other answer where there is one."""
    logs = logits.log_softmax(-1)
    value = logs[..., torch.arange(len(right)), torch.tensor(right)].sum(-1)
    return value - logs[..., 0, wrong[0]] if wrong else value


def hidden(
    model: Transformer, contrasts: Sequence[Contrast], progress: lots.Progress | None = None
) -> Float[np.ndarray, "head contrast"]:
    """What hiding the named word from a head costs where it reads, beyond hiding as many of the nearest other tokens.

    NaN where nothing is named that it sees, or there is nothing else to hide.
    """
    return _in_lots(partial(_hidden, model), contrasts, progress)


def _hidden(model: Transformer, contrasts: Sequence[Contrast]) -> Float[Tensor, "head contrast"]:
    batch, claims, places = TokenBatch.from_rows([each.clean.ids for each in contrasts]), list[Claim](), list[int]()
    for row, each in enumerate(contrasts):
        visible = [n for n in _visible(model, each) if n not in each.clean.reads]
        named, free = ([n for n in visible if (n in each.parts["named"]) == side] for side in (True, False))
        if named and len(free) >= len(named):
            near = sorted(free, key=lambda n, named=named: min(abs(n - other) for other in named))[: len(named)]
            reads, value = torch.tensor(each.clean.reads), partial(read, each.right, each.wrong)
            for keys in (named, near):
                mask = torch.isin(torch.arange(batch.ids.shape[1]), torch.tensor(keys)).expand(len(reads), -1)
                claims.append(Claim(row, reads, mask, Read(reads, value)))
            places.append(row)
    costs = torch.full((model.config.n_layers * model.config.n_heads, len(contrasts)), torch.nan, dtype=torch.float64)
    if claims:
        drops = knock_out(model, batch.to(model.device), claims).flatten(1).double().cpu()
        costs[:, places] = (drops[::2] - drops[1::2]).T
    return costs


def _visible(model: Transformer, each: Contrast) -> range:
    """The clean text's own tokens that its first row that is read sees."""
    tokens = [n for _, word in each.clean.words for n in word]
    return range(min(tokens), 1 + (each.clean.reads[0] if model.config.last.causal else max(tokens)))


def looks(
    model: Transformer,
    contrasts: Sequence[Contrast],
    groups: np.ndarray,
    chooses: Bool[np.ndarray, " contrast"],
    seed: int,
    progress: lots.Progress | None = None,
) -> pd.DataFrame:
    """A row a head: how often it looks most at the named word, beside the rule that is best on the side that chooses.

    Both are of the side that reports. No rows where no other word than the one that is read could be chosen.
    """
    named = {word for each in contrasts for word, tokens in each.clean.words if {*tokens} & {*each.parts["named"]}}
    hits = _in_lots(partial(_hits, model, sorted(named)), contrasts, progress)
    choosing, reporting = (np.flatnonzero(~np.isnan(hits[0]) & (chooses == side)) for side in (True, False))
    if min(len(choosing), len(reporting)) < 2:
        return pd.DataFrame()
    n_heads, names = len(hits) - len(RULES), groups[reporting].tolist()
    rule = int(hits[n_heads:, choosing].mean(1).argmax())
    sums = group_sums(torch.from_numpy(hits[:, reporting]), names)
    sizes = group_sums(torch.ones(1, len(names)), names)
    found = estimate(sums[:, :n_heads], sizes, sums[:, [n_heads + rule]], sizes, seed=seed)
    columns = {"value": found.value, "rule": RULES[rule], "rule_value": found.baseline, "gain": found.gain}
    return pd.DataFrame({**columns, "ci_low": found.low, "ci_high": found.high, "p": found.p, "n": len(names)})


def _hits(model: Transformer, named: Sequence[str], contrasts: Sequence[Contrast]) -> Float[Tensor, "cell contrast"]:
    """Whether each head, and each rule, chooses the named word; NaN where there is no choice."""
    batch = TokenBatch.from_rows([each.clean.ids for each in contrasts]).to(model.device)
    pattern = read_patterns(model, batch, f"{last_stack(model)}.*.attn.pattern")
    reads = torch.tensor([each.clean.reads[0] for each in contrasts])
    rows = rows_at(pattern, *(each.to(model.device) for each in (torch.arange(len(contrasts)), reads))).cpu()
    n_heads, n_words = rows.shape[1], max(len(each.clean.words) for each in contrasts)
    scores = torch.zeros(len(contrasts), n_heads + len(RULES), n_words)
    candidates, correct = torch.zeros(2, len(contrasts), n_words, dtype=torch.bool)
    for row, each in enumerate(contrasts):
        visible, last, own = _visible(model, each), -1, len(each.clean.words)
        for n, (word, tokens) in enumerate(each.clean.words):
            scores[row, :n_heads, n] = rows[row][:, [*tokens]].sum(-1)
            own = n if {*tokens} & {*each.clean.reads} else own
            candidates[row, n] = {*tokens} <= {*visible} and own != n
            correct[row, n] = candidates[row, n] and bool({*tokens} & {*each.parts["named"]})
            last = n if candidates[row, n] and word in named else last
        places = [own - n for n in OFFSETS] + [0, last]
        for rule, place in enumerate(places, n_heads):
            scores[row, rule, place] = float(place >= 0)
    hits = accuracy(scores, candidates, correct).T
    return hits.masked_fill(~(correct.any(1) & (candidates.sum(1) > 1)), torch.nan)
