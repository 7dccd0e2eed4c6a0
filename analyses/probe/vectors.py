"""What does a model make of the items? The vectors of words, and of both ends of edges, at every layer and head."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from analyses.probe.items import AskedWindow, probed_stack
from analyses.reading.inputs import least_target
from analyses.reading.windows import Window
from interp import Model, TokenBatch, run
from interp.patterns import membership

_BATCH_TOKENS = 1024  # on a processor, whose caches hold what is made of them; elsewhere sixteen times as many


@dataclass(frozen=True)
class Vectors:
    """Vectors of the same items at each site: the stream into the first block and out of every one; every head's z."""

    stream: Float[Tensor, "depth item d_model"]
    heads: Float[Tensor, "head item d_head"]

    def __len__(self) -> int:
        return self.stream.shape[1]

    def of(self, items: Tensor) -> "Vectors":
        """Those of some items."""
        return Vectors(self.stream[:, items], self.heads[:, items])


@dataclass(frozen=True)
class Read:
    """What a model made of the items of one split: words, and both ends of the edges."""

    words: Vectors
    pronouns: Vectors
    mentions: Vectors


def read(model: Model, asked: Sequence[AskedWindow], progress: Callable[[int], object] | None = None) -> Read:
    """Run a model and keep the vectors of what is asked, in its order. A word's vector is the mean over its pieces.

    Args:
        model: any; of two stacks the encoder is probed.
        asked: what is asked in each window.
        progress: is told how many windows have been read.
    """
    n_words, n_edges = (sum(len(getattr(each, name)) for each in asked) for name in ("words", "edges"))
    made = Read(*(_room(model, count) for count in (n_words, n_edges, n_edges)))
    filled, done = [0, 0, 0], 0
    for batch in _batches(asked, _BATCH_TOKENS * (1 if model.device.type == "cpu" else 16)):
        numbers = [_numbered(each) for each in batch]
        stream, heads = _word_vectors(model, [each.window for each in batch], numbers)
        for part, (vectors, chosen) in enumerate(
            zip((made.words, made.pronouns, made.mentions), _places(batch, numbers), strict=True)
        ):
            at = torch.tensor(chosen, dtype=torch.long).reshape(-1, 2).T
            here = slice(filled[part], filled[part] + len(chosen))
            vectors.stream[:, here] = stream[at[0], at[1]].cpu().transpose(0, 1)
            vectors.heads[:, here] = heads[at[0], at[1]].cpu().transpose(0, 1)
            filled[part] += len(chosen)
        done += len(batch)
        if progress is not None:
            progress(done)
    return made


def _room(model: Model, count: int) -> Vectors:
    _, config = probed_stack(model)
    n_heads = config.n_layers * config.n_heads
    return Vectors(torch.empty(config.n_layers + 1, count, config.d_model), torch.empty(n_heads, count, config.d_head))


def _batches(asked: Sequence[AskedWindow], most: int) -> Iterator[list[AskedWindow]]:
    batch: list[AskedWindow] = []
    for each in asked:
        if batch and (len(batch) + 1) * max(len(one.window.ids) for one in (batch[-1], each)) > most:
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch


def _numbered(asked: AskedWindow) -> dict[int, int]:
    """The words that something is asked of, each with its number among them; of a chapter they are few."""
    ends = (word for edge in asked.edges for word in (edge.pronoun, edge.mention))
    return {word: number for number, word in enumerate(dict.fromkeys([*asked.words, *ends]))}


def _places(batch: Sequence[AskedWindow], numbers: Sequence[dict[int, int]]) -> tuple[list[tuple[int, int]], ...]:
    """Row and number of words, pronouns and mentions."""
    edges = [(row, edge) for row, each in enumerate(batch) for edge in each.edges]
    return (
        [(row, numbers[row][word]) for row, each in enumerate(batch) for word in each.words],
        [(row, numbers[row][edge.pronoun]) for row, edge in edges],
        [(row, numbers[row][edge.mention]) for row, edge in edges],
    )


def _word_vectors(
    model: Model, shown: Sequence[Window], numbers: Sequence[dict[int, int]]
) -> tuple[Float[Tensor, "prompt word site d_model"], Float[Tensor, "prompt word head d_head"]]:
    """Of the stream and of the heads, for the words that have numbers."""
    (stack, config), target = probed_stack(model), least_target(model, len(shown))
    wanted, last = (f"{stack}.0.resid_pre", f"{stack}.*.attn.z"), f"{stack}.{config.n_layers - 1}.resid_post"
    tokens = TokenBatch.from_rows([window.ids for window in shown])
    out = run(model, tokens, capture=(*wanted, f"{stack}.*.resid_post"), target=target, until=last)
    rows = [[number.get(word, -1) for word in window.word_of] for window, number in zip(shown, numbers, strict=True)]
    belongs = membership(rows, max(map(len, numbers)), out.tokens.ids.shape[1]).to(model.device)
    share = belongs / belongs.sum(-1, keepdim=True).clamp(min=1)
    stream, heads = [], []
    for name, value in out.activations.items():
        if name.endswith(".attn.z"):
            heads.append((share @ value.flatten(2).float()).unflatten(-1, value.shape[-2:]))
        else:
            stream.append(share @ value.float())
    return torch.stack(stream, 2), torch.cat(heads, 2)
