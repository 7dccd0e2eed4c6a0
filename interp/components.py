"""Which parts does a model have, and which of them reads which?

A node writes to the residual stream: the embedding, a head, a feed-forward. A receiver reads it: a head's query, key or
value, a feed-forward, the logits. An edge joins a node and a later receiver directly, by the stream alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from interp.config import Learned, NoMLP, Sinusoidal, StackConfig, TransformerConfig
from interp.display import Result
from interp.errors import InputError, one_of
from interp.model import Model, check_model

Embeddings = Literal["together", "apart"]
Names = Literal["senders", "receivers", "positions"]
ELSEWHERE = "elsewhere"  # all positions without a name
_NORMS = (
    "edges are not defined where norms follow the layers: each norm mixes what several components write, so "
    "no component's write reaches a later one by itself; expected a model with norms before its layers"
)
_ALL_HEADS = "edges to queries and keys are not defined where all heads' are normalised as one"
_TWO_STACKS = "edges are for models of one stack, and this one has an encoder and a decoder: take nodes"
_APART = "embeddings stand apart only where positions add a vector to the token's, and no norm mixes the two"


@dataclass(frozen=True, eq=False, repr=False)
class Graph(Result):
    """The nodes and edges of a model.

    `senders` are, in the order in which they write, `embed` (or `token` and `position` apart), heads (`0.3`: layer,
    head) and feed-forwards (`mlp.2`). With two stacks they begin with the stack's name, and heads of cross-attention
    are `decoder.cross.0.3`. `receivers` are heads' queries, keys and values (`1.4.q`; `k` and `v` per key/value head),
    feed-forwards and `logits`. `exists` is true if the sender writes before the receiver reads. With `positions` (names
    from the pairs) there is an edge for each name, and one for all other positions (`elsewhere`, the last): the
    position at which the receiver reads, and so the key's for `k` and `v`.
    """

    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    exists: Bool[Tensor, "sender receiver"]
    positions: tuple[str, ...] = ()
    reason: str = ""  # why there are only nodes

    @staticmethod
    def from_model(model: Model, *, embeddings: Embeddings = "together", positions: Sequence[str] = ()) -> "Graph":
        """The graph of a model; only its nodes, with the reason, if edges are not defined."""
        check_model(model)
        config, apart = model.config, one_of("embeddings", embeddings, Embeddings) == "apart"
        names = (*positions,)
        if len({*names, ELSEWHERE}) <= len(names):
            raise InputError(f"expected distinct names of positions, none {ELSEWHERE!r}; got {', '.join(names)}")
        if reason := _refusal(config):
            if apart or names:
                raise InputError(reason)
            return Graph(nodes := (*_nodes(config),), (), torch.zeros(len(nodes), 0).bool(), reason=reason)
        if apart and (not isinstance(config.last.positions, Learned | Sinusoidal) or config.last.embedding_norm):
            raise InputError(_APART)
        inputs = ["token", "position"] if apart else ["embed"]
        senders, receivers, n_before = inputs, [], []
        for heads, reads, feed in _layers(config.last):
            before_feed = len(senders) + len(heads) * (not config.last.parallel)
            n_before += [len(senders)] * len(reads) + [before_feed] * len(feed)
            senders, receivers = [*senders, *heads, *feed], [*receivers, *reads, *feed]
        exists = torch.arange(len(senders))[:, None] < torch.tensor([*n_before, len(senders)])
        return Graph((*senders,), (*receivers, "logits"), exists, names)

    @property
    def n_nodes(self) -> int:
        """Senders and the logits."""
        return len(self.senders) + 1

    @property
    def n_edges(self) -> int:
        """All edges, counted at each named position and elsewhere."""
        return int(self.exists.sum()) * (self.shape[0] if self.positions else 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a table of all edges."""
        return (len(self.positions) + 1,) * bool(self.positions) + (*self.exists.shape,)

    @cached_property
    def parts(self) -> Bool[Tensor, "receiver sender"]:
        """Which receivers are inputs of which sender; shared keys and values are inputs of several heads."""
        rows, index = torch.zeros(self.exists.shape[::-1], dtype=torch.bool), self.index("senders")
        queries, keys = (sum(name.endswith(part) for name in self.receivers) for part in (".q", ".k"))
        for row, name in enumerate(self.receivers[:-1]):
            layer, number = name.split(".")[:2]
            n_heads = queries // keys if name.endswith((".k", ".v")) else 1
            first = index[f"{layer}.{int(number) * n_heads}"]
            rows[row, first : first + n_heads] = True
        return rows

    def index(self, kind: Names) -> dict[str, int]:
        """The index of each name."""
        one_of("kind", kind, Names)
        names = (*self.positions, ELSEWHERE) if kind == "positions" else getattr(self, kind)
        return {name: place for place, name in enumerate(names)}

    def facts(self) -> tuple[str, dict[str, str]]:
        """The numbers of nodes and edges."""
        return "Graph", {"nodes": f"{self.n_nodes:,}", "edges": self.reason or f"{self.n_edges:,}"}


def equal_graphs(first: Graph, second: Graph) -> bool:
    """Whether two graphs have the same nodes, edges and positions."""
    names = [(graph.senders, graph.receivers, graph.positions) for graph in (first, second)]
    return names[0] == names[1] and torch.equal(first.exists, second.exists)


def _refusal(config: TransformerConfig) -> str:
    """Why such a model has no edges; "" if it has."""
    if len(config.stacks) > 1:
        return _TWO_STACKS
    return _NORMS if config.last.norms_writes else _ALL_HEADS if config.last.qk_norm == "all" else ""


def _layers(config: StackConfig) -> Iterable[tuple[list[str], list[str], list[str]]]:
    """Each layer's heads, their receivers, and its feed-forward, if there is one."""
    parts = [("q", config.n_heads), ("k", config.kv_heads), ("v", config.kv_heads)]
    for layer in range(config.n_layers):
        feed = [] if isinstance(config.mlp, NoMLP) else [f"mlp.{layer}"]
        reads = [f"{layer}.{head}.{part}" for part, heads in parts for head in range(heads)]
        yield [f"{layer}.{head}" for head in range(config.n_heads)], reads, feed


def _nodes(config: TransformerConfig) -> Iterable[str]:
    for stack, each in config.stacks.items():
        prefix = f"{stack}." if len(config.stacks) > 1 else ""
        yield f"{prefix}embed"
        for heads, _, feed in _layers(each):
            yield from (f"{prefix}{name}" for name in heads)
            yield from (f"{prefix}cross.{name}" for name in heads if each.cross_attention)
            yield from (f"{prefix}{name}" for name in feed)
