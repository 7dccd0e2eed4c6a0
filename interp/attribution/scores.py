"""Why does a head look there? We split its score by the writers of the query and of the key, its value by its writers.

With the norms' scales held at the run's values, a score is bilinear in the two streams, so the split is exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.attribution.writers import Columns, Reader, all_parts, checked_direction, grid, wide, with_sites
from interp.devices import move, pick
from interp.display import DataFrame, Figure, Result, draw_figure, signed, so_many
from interp.errors import InputError, one_of
from interp.patching.patch_sites import Attending, StackName
from interp.patching.results import cell_rows, dust, long_table, unreliable
from interp.running import Run
from interp.tokens import Positions, TokenBatch
from interp.visibility import Source, Visibility

NamedPositions = Positions | Mapping[str, Positions]  # one per prompt, or several by name, as in `Pairs.positions`
By = Literal["pair", "query", "key"]


@dataclass(frozen=True, repr=False)
class ScoreAttribution(Result):
    """A head's score of a key for a query (or what its value carries) as a sum over pairs of writers.

    Writers are `embed.token`, `embed.position`, `embed.bias`; `decoder.0.head.3`, `decoder.0.attn.bias`,
    `decoder.0.mlp`, `decoder.0.mlp.bias` (the shift of a norm after the sum); `norm.bias` of the norm through which the
    head reads; `q.bias`, `k.bias` or `v.bias` (with the shift of a norm of queries or keys). For cross-attention's keys
    they are the encoder's. A value has one query writer, `direction`. Values, plus `distance` (what relative positions
    add), sum to `total`, the model's own score. Named positions have an axis each before `prompt`; numbers are NaN
    where the query does not see the key.
    """

    query_writers: tuple[str, ...]
    key_writers: tuple[str, ...]
    values: Float[Tensor, "query_writer key_writer *place prompt"]
    total: Float[Tensor, "*place prompt"]
    distance: Float[Tensor, "*place prompt"] | None  # None if positions add nothing to scores
    names: Mapping[str, tuple[str, ...]]  # of named positions, by axis: `query`, `key`
    head: Mapping[str, Any] = field(repr=False)  # the head's stack, attention, layer and number

    def by_query(self) -> Float[Tensor, "query_writer *place prompt"]:
        """Each query writer's part, summed over key writers."""
        return self.values.sum(1)

    def by_key(self) -> Float[Tensor, "key_writer *place prompt"]:
        """Each key writer's part, summed over query writers."""
        return self.values.sum(0)

    def table(self, by: By = "pair", *, seed: int = 0) -> DataFrame:
        """One row per pair of writers, or per writer of one side: mean `effect` with interval, p and q, and `share`.

        Columns are `stack, attention, layer, head, query_writer, key_writer`, `query` and `key` for named positions,
        and those of `results.cell_rows`. What distance adds has a row, `distance`. Shares are of the total, and missing
        if the total cannot be told from 0. `seed` seeds the intervals' resampling.
        """
        one_of("by", by, By)
        values = {"pair": self.values, "query": self.by_query(), "key": self.by_key()}[by]
        sides = {"query_writer": self.query_writers, "key_writer": self.key_writers}
        sides = {side: names for side, names in sides.items() if by in ("pair", side.removesuffix("_writer"))}
        rows = []
        for place in product(*(range(len(each)) for each in self.names.values())):
            total = self.total[place]
            seen = total[~total.isnan()]
            whole = None if not len(seen) or unreliable(seen) else total
            cells = cell_rows([*sides], values[(..., *place, slice(None))], dust(total), whole, seed=seed)
            for side, writers in sides.items():
                cells[side] = [writers[index] for index in cells[side].tolist()]
            named = {axis: names[index] for (axis, names), index in zip(self.names.items(), place, strict=True)}
            rows.append(cells.assign(**named))
            if self.distance is not None:
                cells = cell_rows(["of"], self.distance[place][None], dust(total), whole, seed=seed).drop(columns="of")
                rows.append(cells.assign(**dict.fromkeys(sides, "distance"), **named))
        return long_table(self.head, rows, [*sides, *self.names])

    def figure(self, by: By = "pair", **options: Any) -> Figure:
        """The largest parts in either direction, with their intervals.

        For `options` see `analyses.figures.top_cells`: `top`, `title`, `width`, `font_size`, `ax`, ...
        """
        table = self.table(by)
        term = table.filter(like="_writer").agg(" → ".join, axis=1)
        for axis, word in (("query", "from"), ("key", "to")):
            term = term + f" {word} " + table[axis] if axis in self.names else term
        table = table.drop(columns=["head", *self.names]).assign(layer=None, term=term, metric="score", direction="")
        heading = f"Who wrote what L{self.head['layer']}.H{self.head['head']} reads?"
        return draw_figure("top_cells", table, "score", heading=heading, **options)

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """The total, and the largest pairs of writers."""
        means = self.values.flatten(2).nanmean(-1)
        wholes = {"whole": self.total, "distance": self.distance}
        facts = {name: signed(float(each.nanmean())) for name, each in wholes.items() if each is not None}
        for pair in means.flatten().abs().argsort(descending=True, stable=True)[:5].tolist():
            query, key = divmod(pair, len(self.key_writers))
            facts[f"{self.query_writers[query]} → {self.key_writers[key]}"] = signed(float(means[query, key]))
        name = f"{self.head['stack']} L{self.head['layer']}.H{self.head['head']}"
        return f"What {name} reads, by writer, over {so_many(self.total.shape[-1], 'prompt')}", facts


@torch.no_grad()
def score_attribution(
    out: Run,
    layer: int,
    head: int,
    query: NamedPositions,
    key: NamedPositions,
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
) -> ScoreAttribution:
    """A head's score of `key` for `query`, by the writers of the query and of the key, with norms' scales held fixed.

    A value is (one writer's part of the query) · (another's part of the key), scaled, after rotation (Elhage 2021).
    They sum to the model's score up to rounding; RMSNorm rounds to float32 at any precision.

    Args:
        out: a run. Its text is run again, without edits, unless it captured all that is needed.
        layer, head: whose score; if heads share keys, `head` is the query head.
        query, key: a position in each prompt's own tokens (negative: from its end), one for all or one per prompt, or
            several by name (`{"END": -1, "S2": [9, 7]}`, `pairs.positions`). Cross-attention's keys are the encoder's.
        stack: whose head, by default the last stack's.
        attention: `self`, or `cross`: from the decoder to the encoder.

    Raises:
        InputError: no such layer, head or position; keys that no query sees; capped scores, which are not a sum.
    """
    q, k = Reader.from_arguments(out.model, layer, head, stack, attention, "qk")
    out = with_sites(out, [q, k])
    (query_names, queries), (key_names, keys) = _columns(q.text(out), query), _columns(k.text(out), key)
    both = [each for each in scores_of(out, q, k, queries) if each is not None]
    total, *distance = [each.gather(2, keys[:, None].expand(-1, queries.shape[1], -1)) for each in both]
    hidden = total.isneginf()
    if bool(hidden.all()):
        raise InputError("no query sees its key: expected keys up to the query, and within its reach")
    (query_writers, asked), (key_writers, answered) = all_parts(q, out, queries), all_parts(k, out, keys)
    terms = "asking prompt query d_head, answering prompt key d_head -> asking answering prompt query key"
    values = einsum(asked * q.attn.config.score_scale, answered, terms)
    parts = [each.masked_fill(hidden, torch.nan) for each in (values, total, *distance)]
    return _result(q, (query_writers, key_writers), parts, {"query": query_names, "key": key_names})


@torch.no_grad()
def value_attribution(
    out: Run,
    layer: int,
    head: int,
    key: NamedPositions,
    *,
    direction: Float[Tensor, "*prompt d_model"] | None = None,
    stack: StackName | None = None,
    attention: Attending = "self",
) -> ScoreAttribution:
    """What a head would carry from `key` (its `v` times `W_O`) along a direction of the stream, by the value's writers.

    The default direction is that of the whole vector at each key, so that the parts sum to its length. This leaves out
    the attention weight and any norm after attention. For the rest see `score_attribution`.
    """
    (v,) = Reader.from_arguments(out.model, layer, head, stack, attention, "v")
    out = with_sites(out, [v])
    names, keys = _columns(v.text(out), key)
    weight = wide(v.attn.W_O[v.head]).to(keys.device)
    whole = wide(pick(out[v.site], grid(keys)))[..., v.row, :] @ weight
    if direction is None:
        toward = whole / whole.norm(dim=-1, keepdim=True)
    else:
        n_prompts, _, d_model = whole.shape
        toward = checked_direction(direction.to(whole), n_prompts, d_model)[:, None].expand_as(whole)
    writers, vectors = all_parts(v, out, keys)
    read = toward @ weight.mT
    values = einsum(vectors, read, "writer prompt key d_head, prompt key d_head -> writer prompt key")
    parts = [values[None, ..., None, :], (whole * toward).sum(-1)[:, None]]
    return _result(v, (("direction",), writers), parts, {"query": (), "key": names})


def scores_of(
    out: Run, q: Reader, k: Reader, columns: Columns
) -> tuple[Float[Tensor, "prompt query key"], Float[Tensor, "prompt query key"] | None]:
    """The model's own scores of all keys for the queries at `columns`, and what relative positions add to them."""
    attn, text, device = q.attn, q.text(out), out[q.site].device
    if attn.config.score_cap is not None:
        raise InputError(
            "this model caps its scores (cap * tanh(score / cap)), so they are not sums of writes: use "
            "value_attribution, or remove_from_key and the pattern of a run"
        )
    visibility = Visibility.from_batch(text, causal=attn.config.causal).at(columns)
    if q.attention == "cross":
        visibility = Source.from_stream(out[k.site].flatten(-2), k.text(out)).seen_by(visibility)
    seen = move(visibility, device)
    asked = q.queries(out, columns)
    answered = attn.keys(out[k.site], k.text(out).positions.to(device))[..., k.row, :]
    scaled = asked @ answered.mT * attn.config.score_scale
    bias = None if attn.bias is None else attn.bias(seen)[:, q.head].expand_as(scaled)
    scores = attn.entering(scaled, bias, seen.near(attn.reach).mask()[:, 0])
    return wide(scores).to(columns.device), None if bias is None else bias.to(columns.device, wide(scores).dtype)


def _columns(text: TokenBatch, place: NamedPositions) -> tuple[tuple[str, ...], Columns]:
    """The positions' names, if any, and their columns."""
    columns = [text.columns(each) for each in (place.values() if isinstance(place, Mapping) else [place])]
    if not columns or any(each.shape[1] != 1 for each in columns):
        count = columns[0].shape[1] if columns else "none"
        raise InputError(f"expected one position per prompt, or several by name ({{'END': -1}}); got {count}")
    return tuple(place) if isinstance(place, Mapping) else (), torch.cat(columns, 1)


def _result(
    reader: Reader,
    writers: tuple[tuple[str, ...], tuple[str, ...]],
    parts: Sequence[Tensor],
    names: Mapping[str, tuple[str, ...]],
) -> ScoreAttribution:
    """Parts `... prompt query key` as a result, in which unnamed positions have no axis."""
    index = (..., *(slice(None) if names[axis] else 0 for axis in ("query", "key")), slice(None))
    values, total, *distance = [each.movedim(-3, -1)[index] for each in parts]
    head = {"stack": reader.stack, "attention": reader.attention, "layer": reader.layer, "head": reader.head}
    axes = {axis: each for axis, each in names.items() if each}
    return ScoreAttribution(*writers, values, total, distance[0] if distance else None, axes, head)
