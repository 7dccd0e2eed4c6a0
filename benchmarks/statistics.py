"""What do a corpus's attention statistics cost, against a plain pass and TransformerLens?

    python -m benchmarks.statistics [--quick] [--only default]

A plain pass runs the whole model on every text and keeps the patterns. Statistics cover position, part of speech and
coreference, with and without the first position, in one reading that stops at the last pattern. The jobs alternate.
Each row is one JSON line:

    name, shape      the model and the texts
    plain_s          seconds of the plain pass (all seconds are the fewest of all turns)
    reading_s        seconds of the reading alone
    statistics_s     seconds with statistics
    ratio            statistics_s / plain_s; target: at most 1.6
    tokens_per_s     with statistics
    peer_tokens_per_s, same_tokens_per_s, peer_ratio
                     TransformerLens' `run_with_cache` on the same weights, texts and batches, with the totals named
                     in `peer_totals` in batched torch; ours for only these totals, with nulls, which the peer
                     lacks; ours / peer, target: at least 2
    max_abs_diff     largest difference of any of the peer's means from ours

At GPT-2's shape, position and relations run at 1,344 tokens per second, `run_with_cache` at 466 (two cores, float32).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analyses import coreference, part_of_speech, position
from analyses.corpora import read
from analyses.reading.windows import Batch, Reading
from analyses.scoring.choices import Items
from analyses.scoring.rules import RELATIONS, WAYS, edges
from benchmarks.console import arguments, machine, show
from benchmarks.floor import GPT2, Shape
from benchmarks.peers import bridged, gpt2
from interp import AnnotatedText, InputError, TokenBatch, Tokenizer, Transformer, run
from interp.annotation import ROOT
from interp.patterns import positional
from models import load, wrap
from models.stories import stories

SMALL = Shape(2, 12, 768, 4_096)
BEHAVIOURS = (position.Collector, part_of_speech.Collector, coreference.Collector)


def least(turns: int, *functions: Callable[[], object]) -> list[float]:
    """Each function's fewest seconds, in alternating turns."""
    seconds = [float("inf")] * len(functions)
    for _ in range(turns):
        for index, function in enumerate(functions):
            began = time.perf_counter()
            function()
            seconds[index] = min(seconds[index], time.perf_counter() - began)
    return seconds


def plain(model: Transformer, corpus: Iterable[AnnotatedText]) -> int:
    """Compute every pattern, and run the pass to its end."""
    texts = Reading(model, corpus)
    for windows in texts.batches():
        run(model, TokenBatch.from_rows([window.ids for window in windows]), capture="*.attn.pattern")
    return texts.counts["tokens"]


def collected(
    model: Transformer, corpus: Iterable[AnnotatedText], kinds: Sequence[type[Any]] = BEHAVIOURS
) -> list[Any]:
    """One reading for some collectors, without intervals. Without collectors it only reads."""
    collectors = [kind(model) for kind in kinds]
    for batch in Reading(model, corpus):
        for collector in collectors:
            collector.add(batch)
    return collectors


class Relations(part_of_speech.Collector):
    """Only relation accuracies: the peer has no lifts."""

    def _add_lifts(self, batch: Batch) -> None:
        pass


SAME = (position.Collector, Relations)  # the peer's totals, here with nulls


def line(name: str, shape: str, model: Transformer, corpus: list[AnnotatedText], turns: int, **more: object) -> None:
    tokens = plain(model, corpus)
    passes = plain, partial(collected, kinds=()), collected
    plain_s, reading_s, statistics_s = least(turns, *(partial(each, model, corpus) for each in passes))
    row = {"name": name, "shape": f"{shape}, {tokens} tokens", "plain_s": round(plain_s, 3)}
    row |= {"reading_s": round(reading_s, 3), "statistics_s": round(statistics_s, 3)}
    show(**row, ratio=round(statistics_s / plain_s, 2), tokens_per_s=round(tokens / statistics_s), **more)


# The same weights in TransformerLens.


def passages(count: int, length: int) -> list[AnnotatedText]:
    """Concatenated stories, cut into texts of exactly `length` words, so batches need no padding."""
    texts, source = [], iter(stories(None, seed=3))
    while len(texts) < count:
        story = next(source)
        while len(story.words) < length:
            story = _joined(story, next(source))
        texts.append(replace(story.excerpt(0, length), document=f"passage {len(texts)}"))
    return texts


def _joined(first: AnnotatedText, second: AnnotatedText) -> AnnotatedText:
    n = len(first.words)
    later = (replace(mention.moved(n), chain=f"{n} {mention.chain}") for mention in second.mentions or ())
    return AnnotatedText(
        first.words + second.words,
        (True,) * (n + len(second.words)),
        first.document,
        (first.tags or ()) + (second.tags or ()),
        (first.heads or ()) + tuple(head if head == ROOT else head + n for head in second.heads or ()),
        (first.relations or ()) + (second.relations or ()),
        (first.mentions or ()) + tuple(later),
    )


class Peer:
    """One GPT-2 with random weights in both libraries, and a tokenizer with all words of the texts."""

    def __init__(self, shape: Shape, corpus: list[AnnotatedText]):
        from tokenizers import Tokenizer as Backend
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import WhitespaceSplit

        vocabulary = {word: index for index, word in enumerate(dict.fromkeys(w for text in corpus for w in text.words))}
        backend = Backend(WordLevel(vocabulary, unk_token=next(iter(vocabulary))))
        backend.pre_tokenizer = WhitespaceSplit()
        theirs = gpt2(shape)
        self.ours, self.bridge = wrap(theirs, copy=True), bridged(theirs, backend)
        self.ours.tokenizer = Tokenizer(backend)
        self.names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(shape.layers)]
        self.batches = [(batch.tokens.ids, batch) for batch in Reading(self.ours, corpus)]

    def totals(self) -> dict[str, Tensor]:
        """Every head's mean scores, by measure and reading."""
        sums: dict[str, Tensor] = {}
        for ids, batch in self.batches:
            _, cache = self.bridge.run_with_cache(ids, names_filter=lambda name: name in self.names, return_type=None)
            pattern = torch.cat([cache[name] for name in self.names], 1)
            for sink in ("kept", "removed"):
                if sink == "removed":
                    pattern = torch.cat([torch.zeros_like(pattern[..., :1]), pattern[..., 1:]], -1)
                    pattern = pattern / pattern.sum(-1, keepdim=True).clamp(min=1e-30)
                for name, values in _positional(pattern, ids, sink == "removed").items():
                    part = torch.stack(values)
                    sums[f"{name} {sink}"] = sums.get(f"{name} {sink}", torch.zeros_like(part)) + part
                part = _relations(pattern, batch, sink == "removed")
                sums[f"relations {sink}"] = sums.get(f"relations {sink}", torch.zeros_like(part)) + part
        return {name: part[0] / part[1] for name, part in sums.items()}


def _positional(pattern: Tensor, ids: Tensor, removed: bool) -> dict[str, tuple[Tensor, Tensor]]:
    """Sums over rows and row counts per head; texts have no padding or special tokens."""
    n_prompts, n_heads, n, _ = pattern.shape
    first = int(removed)
    sums = {
        positional.offset_name(offset): (
            pattern.diagonal(offset, -2, -1)[..., first:].sum((0, -1)),
            torch.full((n_heads,), float(n_prompts * (n + offset - first))),
        )
        for offset in (-5, -4, -3, -2, -1)
    }
    copies = ((ids[:, :, None] == ids[:, None, :]).tril(-1)) & (torch.arange(n) >= first)
    duplicates = (pattern * copies[:, None]).sum((0, -2, -1))
    positions = torch.arange(n, dtype=pattern.dtype)
    visible = (positions + 1 - first).clamp(min=2).log()
    entropy = (torch.special.entr(pattern).sum(-1) / visible)[..., 1 + first :].sum((0, -1))
    rows = torch.full((n_heads,), float(n_prompts * (n - first)))
    sums["duplicate-token"] = duplicates, copies.any(-1).sum().expand(n_heads).to(pattern)
    sums["distance"] = (pattern * (positions[:, None] - positions).abs()).sum((0, -2, -1)), rows
    sums["entropy"] = entropy, rows - n_prompts
    return sums


def _relations(pattern: Tensor, batch: Batch, removed: bool) -> Tensor:
    """How often each head's highest word is the other end of a relation, and the number of items, by relation."""
    items = Items.from_batch(batch, edges(RELATIONS), np.zeros(2 * len(RELATIONS), dtype=int), causal=True)
    target = items.right.int().argmax(1)
    mask = (target > 0) | (not removed)
    prompt, query, column, target = (each[mask] for each in (items.prompt, items.query, items.column, target))
    rows = pattern[prompt, :, query]
    rows = rows.scatter(-1, query[:, None, None].expand(-1, rows.shape[1], 1), -1.0)
    best, chosen = rows.max(-1)
    right = ((chosen == target[:, None]) & (best > 0)).to(pattern)
    columns = torch.nn.functional.one_hot(column, 2 * len(RELATIONS)).to(pattern)
    return torch.stack([right.T @ columns, columns.sum(0).expand(rows.shape[1], -1)])


def difference(peer: dict[str, Tensor], collectors: list[Any]) -> float:
    """The largest difference of the peer's means from ours."""
    (at_position, syntax, _), largest = collectors, 0.0
    names = [measure.name for measure in syntax.chosen.measures]  # with strata, which the peer lacks
    columns = [names.index(f"relation:{name}:{way}") for name in RELATIONS for way in WAYS]
    for sink in ("kept", "removed"):
        totals = at_position.sums.totals[sink]
        means = (totals.scores.sum(0) / totals.weights.sum(0))[:-1]
        for column, name in enumerate(each.name for each in at_position.sums.measures):
            if f"{name} {sink}" in peer:
                largest = max(largest, float((means[:, column] - peer[f"{name} {sink}"]).abs().max()))
        chosen = syntax.chosen.totals[sink]
        n_heads = syntax.heads.count
        accuracy = (chosen.scores.sum(0) / chosen.weights.sum(0))[:n_heads, columns]
        largest = max(largest, float((accuracy - peer[f"relations {sink}"]).nan_to_num().abs().max()))
    return largest


def peer_line(shape: Shape, count: int, length: int, turns: int) -> None:
    corpus = passages(count, length)
    try:
        peer = Peer(shape, corpus)
    except ImportError as error:
        show(name="gpt2", skipped=f"the peer is not installed: {error}")
        return
    # if two words differ only by rounding, either may be chosen
    apart = difference(peer.totals(), collected(peer.ours, corpus))
    if apart > 2e-3:
        raise AssertionError(f"the peer's totals differ from ours by {apart}")
    (peer_s, same_s) = least(turns, peer.totals, lambda: collected(peer.ours, corpus, SAME))
    tokens = count * length
    more = {"peer_totals": "position and relations", "peer_tokens_per_s": round(tokens / peer_s)}
    more |= {"same_tokens_per_s": round(tokens / same_s), "peer_ratio": round(peer_s / same_s, 2)}
    line("gpt2", f"{shape}, texts of {length}", peer.ours, corpus, turns, **more, max_abs_diff=apart)


def main() -> None:
    parser = arguments(
        __doc__, quick="fewer texts and turns, and two layers of GPT-2", smallest="the default on 10 texts, in one turn"
    )
    parser.add_argument("--only", choices=["default", "minilm", "gpt2"], help="only one row")
    parser.add_argument("--ewt", type=Path, default=Path("../shared/data/ud-ewt/en_ewt-ud-dev.conllu"))
    options = parser.parse_args()
    turns = 1 if options.smallest else 3 if options.quick else 7
    only, texts = ("default", 10) if options.smallest else (options.only, 300)
    machine()
    if only in {None, "default"}:
        line("default", "4 layers, 32 heads", load("default"), list(stories(texts)), turns)
    if only in {None, "minilm"}:
        try:
            passages = list(islice(read(options.ewt), 100 if options.quick else texts))
            line("minilm", "6 layers, 72 heads", load("minilm"), passages, turns)
        except InputError as error:
            show(name="minilm", skipped=str(error))
    if only in {None, "gpt2"}:
        peer_line(SMALL if options.quick else GPT2, 16 if options.quick else 32, 128, min(turns, 3))


if __name__ == "__main__":
    main()
