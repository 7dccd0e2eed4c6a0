"""What is read from a model whose keys are hidden: its next token, a masked word, or a linear probe?

A causal model with an output layer is read at every row for the text's next token. A model that fills masks is read for
the row's own token, which is masked. For a model without output layer, probes of its last stream replace that layer.
They read a word's tag, or whether a pronoun and its nearest true antecedent are in one chain.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from analyses.measures.definitions import Behaviour
from analyses.reading.windows import MASKED, Window
from analyses.reading.windows import windows as windows_in
from analyses.scoring.antecedents import AntecedentItem, antecedent_items
from interp import AnnotatedText, InputError, TokenBatch, Transformer, run
from interp.patching.claimed_texts import Read, log_probabilities
from interp.probes import Axes, Probes, edge_vectors, fit

_AXES = 64  # principal axes for the antecedent probe
_PIECES, _EDGES = 10_000, 4_000  # to train a probe, at most
_BATCH_TOKENS = 4096


@dataclass(frozen=True, eq=False)
class Readout(ABC):
    """One way to read a model; `output` reads its final stream."""

    output: nn.Linear
    name: ClassVar[str]  # the column `readout`
    masks: ClassVar[bool] = False  # whether the text is masked at the rows read

    @abstractmethod
    def readable(self, window: Window) -> Collection[int]:
        """The rows that can be read."""

    @abstractmethod
    def read(self, window: Window, rows: Sequence[int]) -> Read:
        """The reading at some rows, summed over them."""

    def lot(self, window: Window, rows: Sequence[int], rng: random.Random) -> Collection[int]:
        """The rows that one pass can read."""
        return rows

    def text(self, window: Window, rows: Collection[int]) -> tuple[int, ...]:
        """The model's input ids for reading it at `rows`."""
        return window.ids


def readouts(
    model: Transformer, behaviours: Sequence[Behaviour], training: Sequence[AnnotatedText]
) -> dict[str, Readout]:
    """How to read the model for each behaviour; behaviours that cannot be read are left out.

    Without an output layer, probes are fitted to `training`.
    """
    if model.output is not None:
        mask_id = model.tokenizer.mask_id if model.tokenizer else None
        if model.config.last.causal:
            readout: Readout = _NextToken(model.output)
        elif mask_id is not None:
            readout = MaskedWord(model.output, mask_id)
        else:
            expected = 'a tokenizer with a mask token ("[MASK]" or "<mask>")'
            raise InputError(f"a model that sees both ways predicts masked words: expected {expected}, got none")
        return {behaviour.name: readout for behaviour in behaviours}
    windows = [window for text in training for window in windows_of(model, text)]
    read_by: dict[str, Readout] = {}
    for probe in (_TagProbe, _AntecedentProbe):
        names = [behaviour.name for behaviour in behaviours if f"{behaviour.probe} probe" == probe.name]
        if (fitted := probe.fitted(model, windows) if names else None) is not None:
            read_by |= dict.fromkeys(names, fitted)
    if not read_by:
        raise InputError(
            "this model has no output layer, so it needs probes, but the training texts have neither tags nor chains "
            "for these measures: give annotated texts of other documents as `training`"
        )
    return read_by


def windows_of(model: Transformer, text: AnnotatedText) -> Iterator[Window]:
    """The windows in which the model reads a text."""
    assert model.tokenizer is not None
    return windows_in(text, model.tokenizer, model.config.n_ctx, Counter())


class _NextToken(Readout):
    """Log-probability of the token that follows each row, in nats."""

    name = "next token"

    def readable(self, window: Window) -> Collection[int]:
        return {row for row in window.content if row + 1 in window.content}

    def read(self, window: Window, rows: Sequence[int]) -> Read:
        return Read(torch.tensor(rows), log_probabilities(torch.tensor([window.ids[row + 1] for row in rows])))


@dataclass(frozen=True, eq=False)
class MaskedWord(Readout):
    """Log-probability of each row's own token, which is masked, in nats."""

    mask_id: int
    name = "masked word"
    masks = True

    def readable(self, window: Window) -> Collection[int]:
        """Every token of the text."""
        return window.content

    def lot(self, window: Window, rows: Sequence[int], rng: random.Random) -> Collection[int]:
        """Random rows: at most 15% of the text's tokens, and at least one."""
        return rng.sample(rows, min(len(rows), max(1, int(MASKED * len(window.content)))))

    def text(self, window: Window, rows: Collection[int]) -> tuple[int, ...]:
        """The ids with a mask at each row."""
        return tuple(self.mask_id if row in rows else id for row, id in enumerate(window.ids))

    def read(self, window: Window, rows: Sequence[int]) -> Read:
        """Log-probabilities of the masked tokens."""
        return Read(torch.tensor(rows), log_probabilities(torch.tensor([window.ids[row] for row in rows])))


@dataclass(frozen=True, eq=False)
class _TagProbe(Readout):
    """Log-odds of the tag of each row's word, against all other tags, by a linear probe of its last stream."""

    classes: dict[str, int]
    name = "tag probe"

    @staticmethod
    def fitted(model: Transformer, windows: Sequence[Window]) -> "_TagProbe | None":
        """A probe fitted to pieces of tagged words; None without two tags to separate."""
        tagged, rows, labels = [], [], []
        for window in windows:
            tags = window.text.tags
            if tags is not None and len(labels) < _PIECES:
                tagged.append(window)
                rows.append([column for word in window.columns for column in window.columns[word]])
                labels += [tags[word] for word in window.columns for _ in window.columns[word]]
        classes = {tag: number for number, tag in enumerate(sorted(set(labels)))}
        if len(classes) < 2:
            return None
        vectors = torch.cat([stream[pieces] for stream, pieces in zip(_streams(model, tagged), rows, strict=True)])
        probes = fit(vectors[None], torch.tensor([[classes[tag] for tag in labels]]).to(vectors.device), len(classes))
        return _TagProbe(_linear(model, *_affine(probes)), classes)

    def readable(self, window: Window) -> Collection[int]:
        return {row for row in window.content if self._class(window, row) is not None}

    def read(self, window: Window, rows: Sequence[int]) -> Read:
        tags = torch.tensor([self._class(window, row) for row in rows])
        return Read(torch.tensor(rows), partial(_tag_odds, torch.arange(len(self.classes)) == tags[:, None]))

    def _class(self, window: Window, row: int) -> int | None:
        word, tags = window.word_of[row], window.text.tags
        return None if tags is None or word < 0 else self.classes.get(tags[word])


@dataclass(frozen=True, eq=False)
class _AntecedentProbe(Readout):
    """Log-odds that a pronoun and its nearest true antecedent are in one chain, by an edge probe of their last streams.

    An output layer computes coordinates along principal axes. The probe is linear in both words' coordinates and in
    their product. A row is a piece of the pronoun; an antecedent is the mean over its pieces.
    """

    weight: Float[Tensor, " three_axis"]  # for one chain against two
    bias: Float[Tensor, ""]
    name = "antecedent probe"

    @staticmethod
    def fitted(model: Transformer, windows: Sequence[Window]) -> "_AntecedentProbe | None":
        """A probe fitted to pronouns with their nearest right and nearest wrong mention; None without any."""
        with_edges = [(window, edges) for window in windows if (edges := _edges(window))]
        pronouns, mentions, labels = [], [], []
        streams = _streams(model, [window for window, _ in with_edges])
        for (_, edges), stream in zip(with_edges, streams, strict=True):
            pronouns += [stream[row] for row, _, _ in edges]
            mentions += [stream[mention].mean(0) for _, mention, _ in edges]
            labels += [same for _, _, same in edges]
            if len(labels) >= _EDGES:
                break
        if len({*labels}) < 2:
            return None
        ends = torch.stack(pronouns)[None], torch.stack(mentions)[None]
        axes = Axes.of(torch.cat(ends, 1), min(_AXES, model.config.d_model))
        edges = edge_vectors(*map(axes, ends))
        weight, bias = _affine(fit(edges, torch.tensor([labels]).to(edges.device), 2))
        output = _linear(model, axes.axes[0], -(axes.centre[0] @ axes.axes[0])[0])
        return _AntecedentProbe(output, *((part[..., 1] - part[..., 0]).to(output.weight) for part in (weight, bias)))

    def readable(self, window: Window) -> Collection[int]:
        return {*self._antecedents(window)}

    def read(self, window: Window, rows: Sequence[int]) -> Read:
        antecedents = self._antecedents(window)
        positions = [*rows, *(column for row in rows for column in antecedents[row])]
        sizes = torch.tensor([len(antecedents[row]) for row in rows])
        share = torch.zeros(len(rows), len(positions))
        of_row = torch.arange(len(rows)).repeat_interleave(sizes)
        share[of_row, torch.arange(len(rows), len(positions))] = (1 / sizes)[of_row]
        return Read(torch.tensor(positions), partial(_chain_odds, share, self.weight, self.bias))

    def _antecedents(self, window: Window) -> dict[int, list[int]]:
        """For each piece of a pronoun, the pieces of its nearest true antecedent."""
        pieces: dict[int, list[int]] = {}
        for item in antecedent_items(window.text):
            mention = _nearest(item, window, in_chain=True)
            if mention is not None:
                pieces |= dict.fromkeys(window.columns.get(item.pronoun, ()), window.columns[mention])
        return pieces


def _tag_odds(is_tag: Bool[Tensor, "read cls"], logits: Float[Tensor, "*cells read cls"]) -> Float[Tensor, "*cells"]:
    right = is_tag.to(logits.device)
    odds = logits.masked_fill(~right, 0.0).sum(-1) - logits.masked_fill(right, -torch.inf).logsumexp(-1)
    return odds.sum(-1)


def _chain_odds(
    share: Float[Tensor, "row read"],
    weight: Float[Tensor, " three_axis"],
    bias: Float[Tensor, ""],
    coordinates: Float[Tensor, "*cells read axis"],
) -> Float[Tensor, "*cells"]:
    """Log-odds of one chain, summed; reads are the pronouns, then pieces with a `share` in each antecedent."""
    pronouns = coordinates[..., : len(share), :]
    ends = pronouns, share.to(coordinates) @ coordinates
    edges = edge_vectors(*(end.reshape(1, -1, end.shape[-1]) for end in ends))[0]
    return (edges @ weight + bias).view(pronouns.shape[:-1]).sum(-1)


def _edges(window: Window) -> list[tuple[int, list[int], int]]:
    """A pronoun's piece, a mention's pieces, and whether both are in one chain: the nearest right and wrong mention."""
    edges = []
    for item in antecedent_items(window.text):
        wrong, right = (_nearest(item, window, in_chain=same) for same in (False, True))
        if window.scores(item.pronoun) and wrong is not None and right is not None:
            for row in window.columns[item.pronoun]:
                edges += [(row, window.columns[wrong], 0), (row, window.columns[right], 1)]
    return edges


def _nearest(item: AntecedentItem, window: Window, *, in_chain: bool) -> int | None:
    """The last visible candidate in the pronoun's chain, or outside it."""
    candidates = zip(item.candidates, item.correct, strict=True)
    return next((word for word, right in [*candidates][::-1] if right == in_chain and word in window.columns), None)


def _streams(model: Transformer, texts: Sequence[Window]) -> Iterator[Float[Tensor, "position d_model"]]:
    (stack,) = model.config.stacks
    site, batch = f"{stack}.resid_final", []
    for number, window in enumerate(texts, start=1):
        batch.append(window.ids)
        following = len(texts[number].ids) if number < len(texts) else _BATCH_TOKENS
        if (len(batch) + 1) * max(following, *map(len, batch)) > _BATCH_TOKENS:
            yield from run(model, TokenBatch.from_rows(batch), capture=site)[site].float()
            batch = []


def _affine(probes: Probes) -> tuple[Float[Tensor, "feature cls"], Float[Tensor, " cls"]]:
    """A probe's weights and bias on unscaled vectors."""
    weight = probes.weight[0, 0, :-1] / probes.scaling.size[0]
    return weight, probes.weight[0, 0, -1] - (probes.scaling.centre[0] @ weight)[0]


def _linear(model: Transformer, weight: Float[Tensor, "feature output"], bias: Float[Tensor, " output"]) -> nn.Linear:
    layer = nn.Linear(weight.shape[0], weight.shape[1]).requires_grad_(False)
    layer = layer.to(model.device, model.last.embed.token.weight.dtype)
    layer.weight.copy_(weight.T)
    layer.bias.copy_(bias)
    return layer
