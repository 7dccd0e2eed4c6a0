"""Who wrote what a head reads? Its query, key or value is a sum over all earlier writes to the stream.

With norms' scales held at the run's values, a norm is one matrix for all positions and a factor for each (Elhage 2021).
So is everything between a writer and the head; we compute nothing as wide as the stream.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, cast

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.attention import Attention
from interp.config import Rotary
from interp.devices import pick
from interp.errors import InputError, one_of
from interp.indices import entries, is_number
from interp.model import Model
from interp.parts import RootMeanSquare
from interp.patching.patch_sites import Attending, StackName, last_stack
from interp.positions import rotate
from interp.running import Run, counted, run
from interp.tokens import TokenBatch
from interp.transformer import Block, Sublayer, Transformer, with_parts

Part = Literal["q", "k", "v"]
Columns = Int[Tensor, "prompt place"]
Vectors = Float[Tensor, "writer prompt place d_head"]
Site = tuple[str, Sublayer, str]  # name, sublayer, and the stream that it adds to


@dataclass(frozen=True)
class Reading:
    """A linear map of the stream: one matrix, times a factor at each position from the norms' scales."""

    weight: Float[Tensor, "*prompt d_model d_head"]  # one per prompt, or one for all
    factor: Float[Tensor, "prompt place"]

    def __call__(self, x: Float[Tensor, "*vector d_model"]) -> Float[Tensor, "prompt place d_head"]:
        """Map one vector per position, or one for all."""
        return (torch.atleast_2d(x.to(self.weight)) @ self.weight) * self.factor[..., None]

    def before(self, norm: nn.Module, x: Callable[[], Tensor]) -> tuple["Reading", list[Tensor]]:
        """The same map from before a norm that reads `x`, and the mapped bias of the norm, if it has one."""
        if isinstance(norm, nn.Identity):
            return self, []
        shifts = [self(norm.bias)] if isinstance(norm, nn.LayerNorm) and norm.bias is not None else []
        return Reading(folded(norm, self.weight), self.factor * fixed_scale(norm, x())), shifts


@dataclass(frozen=True)
class Reader:
    """One side of one head: its queries (`q`), keys (`k`) or values (`v`)."""

    model: Transformer
    part: Part
    stack: StackName
    layer: int
    head: int
    attention: Attending

    @staticmethod
    def from_arguments(
        model: Model | None, layer: int, head: int, stack: StackName | None, attention: Attending, parts: str
    ) -> "list[Reader]":
        """The sides of a head that `parts` names; an InputError lists the layers, heads or stacks there are."""
        if model is None:
            raise InputError("this run does not know its model: make it with interp.run")
        model = with_parts(model, "attribution to writers")
        name = last_stack(model) if stack is None else one_of("stack", stack, model.config.stacks)
        layer = _entry(layer, model.config.stacks[name].n_layers, "layer", f"in the {name}")
        attention_layer(model.stack(name).blocks[layer], attention)  # raises if there is none
        head = _entry(head, model.config.stacks[name].n_heads, "head", f"in a layer of the {name}")
        return [Reader(model, cast(Part, part), cast(StackName, name), layer, head, attention) for part in parts]

    @property
    def attn(self) -> Attention:
        """The layer's attention."""
        return attention_layer(self.model.stack(self.stack).blocks[self.layer], self.attention)

    @property
    def row(self) -> int:
        """The head's index among its part's heads; for keys and values these are key/value heads."""
        config = self.attn.config
        return self.head if self.part == "q" else self.head * config.kv_heads // config.n_heads

    @property
    def site(self) -> str:
        """The full name of the part's site."""
        return f"{self.stack}.{self.layer}.{'cross_' * (self.attention == 'cross')}attn.{self.part}"

    @property
    def source(self) -> str:
        """The stack whose stream it reads."""
        across = self.attention == "cross" and self.part != "q"
        return next(iter(self.model.config.stacks)) if across else self.stack

    def text(self, out: Run) -> TokenBatch:
        """The text that the source stack reads in a run."""
        return counted(self.model, self.site, out.tokens, out.target)["position"]

    @property
    def path(self) -> tuple[nn.Module, str, list[Site]]:
        """The norm through which it reads the stream, the stream before the norm, and the sublayers before it."""
        stack, before = self.model.stack(self.source), sublayers(self.model, self.source)
        for place, (_, sublayer, stream) in enumerate(before):
            if sublayer.layer is self.attn:
                return sublayer.norm_before, stream, before[:place]
        return stack.norm, f"{self.source}.{len(stack.blocks) - 1}.resid_post", before

    @property
    def sites(self) -> list[str]:
        """What a run must capture for `parts`."""
        norm, stream, before = self.path
        sites = [self.site] if isinstance(norm, nn.Identity) else [self.site, stream]
        for name, sublayer, residual in before:
            sites.append(f"{name}.z" if isinstance(sublayer.layer, Attention) else f"{name}_out")
            sites += [] if isinstance(sublayer.norm_sum, nn.Identity) else [residual, f"{name}_out"]
        return sites

    def queries(self, out: Run, columns: Columns) -> Float[Tensor, "prompt place d_head"]:
        """The model's own queries at `columns`, as they enter the scores."""
        queries = pick(out[self.site], grid(columns)).to(out[self.site].device)
        positions = self.text(out).positions.gather(1, columns)
        return self.attn.queries(queries, positions.to(queries.device))[..., self.row, :]

    def parts(self, out: Run, columns: Columns, *, entered: bool = True) -> Iterator[tuple[list[str], Vectors]]:
        """Each writer's part at `columns`: names and vectors, a few writers at a time, the last to write first.

        They sum to what enters the scores, normalised (at the run's scale) and rotated; without `entered`, to the
        site's own value.
        """
        rotary, positions = self.attn.positions, self.text(out).positions.gather(1, columns)
        for names, vectors in self._written(out, columns, entered):
            if entered and self.part != "v" and isinstance(rotary, Rotary):
                yield names, rotate(vectors[..., None, :], positions, rotary)[..., 0, :]
            else:
                yield names, vectors

    def _written(self, out: Run, columns: Columns, entered: bool) -> Iterator[tuple[list[str], Vectors]]:
        index = grid(columns)

        def at(site: str) -> Float[Tensor, "prompt place *axes"]:
            return wide(pick(out[site], index))

        reading, bias = self._projection(at(self.site), entered)
        yield from named(f"{self.part}.bias", bias)
        norm, stream, before = self.path
        reading, shifts = reading.before(norm, lambda: at(stream))
        yield from named("norm.bias", shifts)
        reading = yield from contributions(reading, before, at)
        yield from self._embedded(reading, self.text(out), columns)

    def _embedded(self, reading: Reading, text: TokenBatch, columns: Columns) -> Iterator[tuple[list[str], Vectors]]:
        """The embedding's parts: tokens and positions separately."""
        embed, shifts = self.model.stack(self.source).embed, []
        terms = embed.terms(text.ids.gather(1, columns), text.positions.gather(1, columns))
        if isinstance(embed.project, nn.Linear):
            shifts.append(reading(embed.project.bias))
            reading = Reading(embed.project.weight.T.to(reading.weight) @ reading.weight, reading.factor)
        reading, more = reading.before(embed.norm, lambda: wide(reduce(torch.add, terms.values())))
        read = {name: reading(term) for name, term in terms.items()}
        yield from named("embed.bias", [*shifts, *more, *([read.pop("type")] if "type" in read else [])])
        yield [f"embed.{name}" for name in read], torch.stack([*read.values()])

    def _projection(self, x: Float[Tensor, "prompt place head d_head"], entered: bool) -> tuple[Reading, list[Tensor]]:
        """The map from the normalised stream, with the norm of queries or keys folded in, and the added biases."""
        attn, part, width = self.attn, self.part, self.attn.config.d_head
        norm = {"q": attn.norm_q, "k": attn.norm_k}.get(part, nn.Identity()) if entered else nn.Identity()
        rows, bias = wide(getattr(attn, f"W_{part.upper()}")).to(x), attn.qkv.bias
        if bias is not None:
            rows = torch.cat([rows, getattr(attn, f"b_{part.upper()}").to(x)[:, None]], 1)  # folded the same way
        columns = slice(None)
        if attn.config.qk_norm == "all":
            x, rows = x.flatten(-2), rearrange(rows, "head row d_head -> 1 row (head d_head)")
            columns = slice(self.row * width, (self.row + 1) * width)
        else:
            x, rows = x[..., self.row, :], rows[self.row][None]
        rows = folded(norm, rows.mT, writes=True).mT[0, :, columns]
        factor, n = fixed_scale(norm, x), attn.config.d_model
        added = [*(row * factor[..., None] for row in rows[n:])]
        if isinstance(norm, nn.LayerNorm) and norm.bias is not None:
            added.append(norm.bias[columns].to(x).expand(*factor.shape, -1))
        return Reading(rows[:n], factor), added


def all_parts(reader: Reader, out: Run, columns: Columns, *, entered: bool = True) -> tuple[tuple[str, ...], Vectors]:
    """The names of all writers, in the order in which they wrote, and their vectors (see `Reader.parts`)."""
    blocks = [*reader.parts(out, columns, entered=entered)][::-1]
    return tuple(name for names, _ in blocks for name in names), torch.cat([vectors for _, vectors in blocks])


def grid(columns: Columns) -> tuple[Tensor, Tensor]:
    """An index of each prompt's columns."""
    return torch.arange(len(columns), device=columns.device)[:, None], columns


def with_sites(out: Run, readers: list[Reader]) -> Run:
    """A run with the sites that the readers need: `out`, or a new run (without edits) on the same text."""
    sites = dict.fromkeys(site for reader in readers for site in reader.sites)
    if sites.keys() <= out.activations.keys() and out[readers[-1].site].ndim == 4:
        return out
    return run(readers[0].model, out.tokens, [*sites], target=out.target, until=readers[-1].site)


def sublayers(model: Transformer, stack: str) -> list[Site]:
    """A stack's sublayers in the order in which they write: name, sublayer, and the stream that each adds to."""
    sites: list[Site] = []
    for layer, block in enumerate(model.stack(stack).blocks):
        place, stream = f"{stack}.{layer}.", "resid_pre"
        cross = [] if block.cross_attn is None else [block.cross]
        for sublayer in (block.attention, *cross, *([] if block.mlp is None else [block.feed_forward])):
            sites.append((f"{place}{sublayer.name}", sublayer, f"{place}{stream}"))
            stream = sublayer.site
    return sites


def contributions(
    reading: Reading, before: Sequence[Site], at: Callable[[str], Tensor]
) -> Generator[tuple[list[str], Vectors], None, Reading]:
    """Each sublayer's part, the last first, from the activations `at` a site; returns the map from the embedding."""
    for site, sublayer, residual in reversed(before):
        reading, shifts = reading.before(sublayer.norm_sum, lambda: at(residual) + at(f"{site}_out"))  # noqa: B023
        if not isinstance(sublayer.layer, Attention):
            yield from named(f"{site}.bias", shifts)
            yield [site], reading(at(f"{site}_out"))[None]
            continue
        z = at(f"{site}.z")
        toward, more = head_readings(reading, sublayer, z)
        heads = (z.transpose(1, 2) @ toward.weight).movedim(1, 0) * toward.factor[..., None]
        yield from named(f"{site}.bias", [*shifts, *more])
        yield [f"{site.removesuffix('attn')}head.{head}" for head in range(len(heads))], heads
    return reading


def head_readings(
    reading: Reading, sublayer: Sublayer, z: Float[Tensor, "prompt place head d_z"]
) -> tuple[Reading, list[Tensor]]:
    """The map from each head's z, and the mapped output bias and bias of a norm after attention."""
    attn = cast(Attention, sublayer.layer)
    weight, bias = attn.W_O.to(z), [] if attn.out.bias is None else [attn.out.bias.to(z)]
    reading, shifts = reading.before(sublayer.norm_after, lambda: sum(bias, z.flatten(-2) @ weight.flatten(0, 1)))
    return Reading(weight @ reading.weight[..., None, :, :], reading.factor), [*shifts, *map(reading, bias)]


def named(name: str, terms: list[Tensor]) -> Iterator[tuple[list[str], Vectors]]:
    """The sum of the terms as one writer, if there are any."""
    if terms:
        yield [name], sum(terms[1:], terms[0])[None]


def _entry(index: int, size: int, axis: str, owner: str) -> int:
    if not is_number(index):
        raise InputError(f"expected one {axis} {owner}, 0-{size - 1}; got {index!r}")
    return entries(index, size, axis, owner)[0]


def attention_layer(block: Block, attention: Attending) -> Attention:
    """A block's self-attention or cross-attention."""
    layer = block.attn if one_of("attention", attention, Attending) == "self" else block.cross_attn
    if layer is None:
        raise InputError(f"no attention {attention!r} in this model: expected self")
    return layer


def fixed_scale(norm: nn.Module, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch"]:
    """The scale of a norm that reads `x`, at each position: 1 / deviation or root mean square; 1 without a norm."""
    if isinstance(norm, nn.LayerNorm):
        return (x.var(-1, correction=0) + norm.eps).rsqrt()
    if isinstance(norm, RootMeanSquare):
        assert norm.eps is not None
        return (x.square().mean(-1) + norm.eps).rsqrt()
    return torch.ones_like(x[..., 0])


def folded(
    norm: nn.Module, weight: Float[Tensor, "*batch d_model d_head"], *, writes: bool = False
) -> Float[Tensor, "*batch d_model d_head"]:
    """A matrix with the norm before it (`writes`: after it) folded in: its weight, and LayerNorm's mean removal."""
    if not isinstance(norm, nn.LayerNorm | RootMeanSquare):
        return weight
    centred = isinstance(norm, nn.LayerNorm)
    if writes and centred:
        weight = weight - weight.mean(-2, keepdim=True)
    gain = norm.weight + norm.config.offset if isinstance(norm, RootMeanSquare) else norm.weight
    weight = gain.to(weight)[:, None] * weight
    return weight - weight.mean(-2, keepdim=True) if centred and not writes else weight


def checked_direction(
    direction: Float[Tensor, "*prompt d_model"], n_prompts: int, d_model: int
) -> Float[Tensor, "prompt d_model"]:
    """Directions of the stream, one per prompt, from one for all or one per prompt; else an InputError."""
    if direction.shape not in {(d_model,), (n_prompts, d_model)}:
        expected = f"({d_model},) or ({n_prompts}, {d_model})"
        raise InputError(f"a direction has shape {expected}, got {tuple(direction.shape)}")
    return direction.expand(n_prompts, -1)


def wide(x: Tensor) -> Tensor:
    """`x` in float32 or wider, because we sum many small terms."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
