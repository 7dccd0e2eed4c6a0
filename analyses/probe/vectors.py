"""What does a model make of the items? The vectors of words, and of both ends of edges, at every layer and head."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from analyses.probe.items import WindowItems, probed_stack
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


Read = dict[str, Vectors]  # of one split: "words" with labels, and both ends of the edges, "pronouns" and "mentions"


def read(model: Model, windows: Sequence[WindowItems], progress: Callable[[int], object] | None = None) -> Read:
    """Run a model and keep the vectors of the items, in their order. A word's vector is the mean over its pieces.

    Args:
        model: any; of two stacks the encoder is probed.
        windows: the items of each window.
        progress: is told how many windows have been read.
    """
    sizes = {part: sum(len(each.ends[part]) for each in windows) for part in ("words", "pronouns", "mentions")}
    vectors = {part: _room(model, size) for part, size in sizes.items()}
    filled, done = dict.fromkeys(sizes, 0), 0
    for batch in _batches(windows, _BATCH_TOKENS * (1 if model.device.type == "cpu" else 16)):
        ends = [each.ends for each in batch]
        # the words of an item, numbered; of a chapter they are few
        numbers = [{word: n for n, word in enumerate(dict.fromkeys(chain(*each.values())))} for each in ends]
        stream, heads = _word_vectors(model, [each.window for each in batch], numbers)
        for part, size in filled.items():
            places = [(row, numbers[row][word]) for row, words in enumerate(ends) for word in words[part]]
            rows, words = torch.tensor(places, dtype=torch.long).reshape(-1, 2).T
            here = slice(size, size + len(places))
            vectors[part].stream[:, here] = stream[rows, words].cpu().transpose(0, 1)
            vectors[part].heads[:, here] = heads[rows, words].cpu().transpose(0, 1)
            filled[part] = here.stop
        done += len(batch)
        if progress is not None:
            progress(done)
    return vectors


def _room(model: Model, count: int) -> Vectors:
    _, config = probed_stack(model)
    n_heads = config.n_layers * config.n_heads
    return Vectors(torch.empty(config.n_layers + 1, count, config.d_model), torch.empty(n_heads, count, config.d_head))


def _batches(windows: Sequence[WindowItems], most: int) -> Iterator[list[WindowItems]]:
    batch: list[WindowItems] = []
    for items in windows:
        if batch and (len(batch) + 1) * max(len(each.window.ids) for each in (batch[-1], items)) > most:
            yield batch
            batch = []
        batch.append(items)
    if batch:
        yield batch


def _word_vectors(
    model: Model, windows: Sequence[Window], numbers: Sequence[dict[int, int]]
) -> tuple[Float[Tensor, "prompt word site d_model"], Float[Tensor, "prompt word head d_head"]]:
    """Of the stream and of the heads, for the words that have numbers."""
    (stack, config), target = probed_stack(model), least_target(model, len(windows))
    wanted, last = (f"{stack}.0.resid_pre", f"{stack}.*.attn.z"), f"{stack}.{config.n_layers - 1}.resid_post"
    tokens = TokenBatch.from_rows([window.ids for window in windows])
    out = run(model, tokens, capture=(*wanted, f"{stack}.*.resid_post"), target=target, until=last)
    rows = [[number.get(word, -1) for word in window.word_of] for window, number in zip(windows, numbers, strict=True)]
    belongs = membership(rows, max(map(len, numbers)), out.tokens.ids.shape[1]).to(model.device)
    share = belongs / belongs.sum(-1, keepdim=True).clamp(min=1)
    stream, heads = [], []
    for name, value in out.activations.items():
        if name.endswith(".attn.z"):
            heads.append((share @ value.flatten(2).float()).unflatten(-1, value.shape[-2:]))
        else:
            stream.append(share @ value.float())
    return torch.stack(stream, 2), torch.cat(heads, 2)
