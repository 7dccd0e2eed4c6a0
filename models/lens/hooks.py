"""Which hook of a TransformerLens bridge is which of our sites? A table names them; a run on a short text tests it.

A hook's name does not fix its meaning. In one architecture `attn.hook_out` is what attention adds to the stream, in
another the stream after it; `hook_attn_scores` may hold the pattern, and an edit of `hook_pattern` may come too late.
So streams must add up, rows must be the softmax of scores, and z the pattern's mix of values. A site that fails is left
out. Then each site is changed in a run: if nothing after it changes, the site is read-only.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from interp.tap import Edit

Values = Mapping[str, Tensor]  # by hook, and the logits
Wiring = Literal["pre", "post", "parallel"]

_PARTS = {
    **{"q": "q.hook_out", "k": "k.hook_out", "v": "v.hook_out"},
    **{"scores": "hook_attn_scores", "pattern": "hook_pattern", "z": "hook_z"},
}
_NAMES = {"attn": ("attn", "self_attn"), "cross_attn": ("cross_attn",)}  # of attention, as architectures call it
_INTO = "mlp.in.hook_out"
_INSIDE: Mapping[str, Sequence[str]] = {  # hooks by site; the last one that exists counts
    **{f"{ours}.{part}": [f"{name}.{_PARTS[part]}" for name in _NAMES[ours]] for ours in _NAMES for part in _PARTS},
    **{"mlp.pre": [_INTO, "mlp.gate.hook_out"], "mlp.post": ["mlp.out.hook_in"]},
}
_ENDS: Mapping[str, Sequence[str]] = {"resid_pre": ["hook_in"], "resid_post": ["hook_out"]}
_WIRINGS: Mapping[Wiring, Mapping[str, Sequence[str]]] = {
    "pre": {
        **{"attn_out": ["hook_attn_out"], "cross_attn_out": ["hook_cross_attn_out"], "mlp_out": ["hook_mlp_out"]},
        **{"resid_mid": ["hook_resid_mid"], "resid_cross": ["hook_resid_mid2"]},
    },
    "post": {
        **{"attn_out": ["attn.o.hook_out", "self_attn.o.hook_out"], "cross_attn_out": ["cross_attn.o.hook_out"]},
        **{"mlp_out": ["hook_mlp_out"], "resid_mid": ["ln1.hook_out"], "resid_cross": ["ln2.hook_out"]},
    },
    "parallel": {"attn_out": ["hook_attn_out"], "mlp_out": ["hook_mlp_out"]},
}
_NORMS = [f"ln{number}.{end}" for number in (1, 2, 3) for end in ("hook_in", "hook_out")]  # where norms follow sums
_SUMS = {"attn_out": "resid_mid", "cross_attn_out": "resid_cross", "mlp_out": "resid_post"}  # the stream after each


@dataclass(frozen=True)
class Layer:
    """One block: the hook of each of its sites."""

    prefix: str  # "blocks.3"
    next_hook: str | None  # the hook that reads the stream out of this block, if there is one
    hooks: Mapping[str, str] = field(default_factory=dict)  # by site within the block
    wiring: Wiring | None = None  # how the stream adds up

    @property
    def added(self) -> list[str]:
        """The sites that are added to the stream, in order."""
        return [site for site in _SUMS if site in self.hooks]

    def drop(self, sites: Sequence[str]) -> "Layer":
        """The block with fewer sites."""
        return replace(self, hooks={site: hook for site, hook in self.hooks.items() if site not in sites})


@dataclass(frozen=True)
class Place:
    """Where a site is read: a hook, and earlier hooks whose values are added where the site is a sum."""

    name: str  # the site's full name
    hook: str
    changeable: bool  # whether what follows reads a change
    terms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hooks:
    """One stack: the hooks of its sites, and at which of them a change has an effect."""

    stack: str
    layers: tuple[Layer, ...]
    final: str | None  # the stream after the last norm
    changeable: frozenset[str] = frozenset()  # sites within a block, and resid_final

    def places(self) -> Iterator[Place]:
        """Where the stack's sites are."""
        start = self.layers[0].hooks.get("resid_pre")
        for name, site, hook in (("embed", "resid_pre", start), ("resid_final", "resid_final", self.final)):
            if hook is not None:
                yield Place(f"{self.stack}.{name}", hook, site in self.changeable)
        for number, layer in enumerate(self.layers):
            sums = {_SUMS[site]: layer.added[: at + 1] for at, site in enumerate(layer.added[:-1])}
            for site, hook in layer.hooks.items():
                name = f"{self.stack}.{number}.{site}"
                if layer.wiring == "pre" and site in sums:
                    *terms, last = (layer.hooks[term] for term in ("resid_pre", *sums[site]))
                    yield Place(name, last, sums[site][-1] in self.changeable, tuple(terms))
                else:
                    yield Place(name, hook, site in self.changeable)


def candidates(blocks: str, n_layers: int, norm: str) -> list[str]:
    """Names of all hooks that the table and its test read, in the blocks called `blocks` and at the last norm."""
    tables = (_ENDS, _INSIDE, *_WIRINGS.values())
    inside = dict.fromkeys([*(name for table in tables for names in table.values() for name in names), *_NORMS])
    block = [f"{blocks}.{layer}.{name}" for layer in range(n_layers) for name in inside]
    return [*block, f"{norm}.hook_in", f"{norm}.hook_out"]


def find(probe: Callable[[Mapping[str, Edit]], Values], stack: str, blocks: str, n_layers: int, norm: str) -> Hooks:
    """The sites of the stack whose blocks are called `blocks` and whose last norm `norm`.

    `probe` runs the model on a short text with some hooks changed and gives the value of every candidate and `logits`.
    """
    plain = probe({})
    last = f"{blocks}.{n_layers - 1}.hook_out"
    end = "logits" if "logits" in plain else last
    normed = agree(plain.get(f"{norm}.hook_in"), plain.get(last)) and f"{norm}.hook_out" in plain
    afters = [*(f"{blocks}.{layer}.hook_in" for layer in range(1, n_layers)), f"{norm}.hook_in" if normed else None]
    layers = [_layer(plain, f"{blocks}.{number}", after) for number, after in enumerate(afters)]
    final = f"{norm}.hook_out" if normed else None
    if final is None and layers[-1].wiring == "post":  # the last block has normalised already
        final = layers[-1].hooks.get("resid_post")

    def moves(edited: Values) -> bool:
        """Whether a change is read: otherwise every bit stays as it was."""
        return not torch.equal(edited[end], plain[end])

    def is_changeable(site: str) -> bool:
        """Whether a change of the site in every layer changes the output, in line with all laws."""
        edited = probe({layer.hooks[site]: _disturbed for layer in layers if site in layer.hooks})
        laws = (law for layer in layers for law in _laws(layer, edited))
        return moves(edited) and all(holds for result, _, holds in laws if result != site)

    changeable = {
        site for site in dict.fromkeys(site for layer in layers for site in layer.hooks) if is_changeable(site)
    }
    rebuilt = [site for site in ("attn.scores", "cross_attn.scores") if site not in changeable]  # without their mask
    if final is not None and moves(probe({final: _disturbed})):
        changeable.add("resid_final")
    return Hooks(stack, tuple(layer.drop(rebuilt) for layer in layers), final, frozenset(changeable))


def _layer(plain: Values, prefix: str, next_hook: str | None) -> Layer:
    """The sites that the table names in a block, except those that fail a law."""
    start, end = (plain.get(f"{prefix}.{name}") for name in ("hook_in", "hook_out"))
    if start is None or end is None or start.shape != end.shape:
        return Layer(prefix, next_hook)

    def present(table: Mapping[str, Sequence[str]], fits: Callable[[str, Tensor], bool]) -> dict[str, str]:
        named = ((site, f"{prefix}.{name}") for site, names in table.items() for name in names)
        return {site: hook for site, hook in named if hook in plain and fits(site, plain[hook])}

    inside = present(_INSIDE, lambda site, value: value.ndim == (3 if site.startswith("mlp") else 4))
    layer = Layer(prefix, next_hook, present(_ENDS, lambda *_: True) | inside)
    for wiring, table in _WIRINGS.items():
        streams = present(table, lambda _, value: value.shape == start.shape)
        trial = replace(layer, hooks={**layer.hooks, **streams}, wiring=wiring)
        if trial.added and all(holds for _, _, holds in _stream_laws(trial, plain)):
            layer = trial
            break
    while doubtful := next((sites for _, sites, holds in _laws(layer, plain) if not holds), None):
        layer = layer.drop(doubtful)
    return layer


# Laws: what must hold in a block, on any text and after any change. A law has the site that follows from others, the
# sites that are not what their names say if it fails, and whether it holds.

Law = tuple[str, tuple[str, ...], bool]


def _laws(layer: Layer, values: Values) -> Iterator[Law]:
    sites = {site: values[hook] for site, hook in layer.hooks.items()}
    yield from _stream_laws(layer, values)
    for name in _NAMES:
        pattern, scores, v, z = (sites.get(f"{name}.{part}") for part in ("pattern", "scores", "v", "z"))
        if pattern is None:
            continue
        rows = torch.ones(pattern.shape[:-1])
        yield f"{name}.pattern", (f"{name}.pattern", f"{name}.scores"), agree(pattern.sum(-1), rows)
        if scores is not None:
            softmax = scores.float().softmax(-1).to(scores.dtype)
            yield f"{name}.pattern", (f"{name}.scores",), agree(pattern, softmax)
        if v is not None and z is not None:
            yield f"{name}.z", (f"{name}.z",), agree(z, _mixed(pattern, v))
    if {"mlp.pre", "mlp.post"} & sites.keys():
        pre, post = sites.get("mlp.pre"), sites.get("mlp.post")
        yield "mlp.post", ("mlp.pre", "mlp.post"), _is_activation(layer, pre, post, values)
    if layer.next_hook is not None and "resid_post" in sites:
        yield "resid_pre", ("resid_post",), agree(values.get(layer.next_hook), sites["resid_post"])


def _stream_laws(layer: Layer, values: Values) -> Iterator[Law]:
    """How the stream adds up; where norms follow sums, the norm reads the sum."""
    if layer.wiring is None:
        return
    stream, end = (values[f"{layer.prefix}.{name}"] for name in ("hook_in", "hook_out"))
    terms = [values[layer.hooks[site]] for site in layer.added]
    if layer.wiring == "parallel":
        yield "resid_post", ("attn_out", "mlp_out"), agree(end, sum(terms, stream))
        return
    for number, (site, term) in enumerate(zip(layer.added, terms, strict=True), 1):
        result = "resid_post" if number == len(terms) else _SUMS[site]
        written = end if number == len(terms) else values.get(layer.hooks.get(result, ""))
        if layer.wiring == "pre":
            yield result, (site, result), agree(written, stream + term)
        else:
            entered, normed = (values.get(f"{layer.prefix}.ln{number}.{name}") for name in ("hook_in", "hook_out"))
            yield "", (site, result), agree(entered, stream + term)
            yield result, (result,), agree(written, normed)
        if written is None:
            return
        stream = written


def _mixed(pattern: Tensor, v: Tensor) -> Tensor | None:
    if pattern.shape[1] % v.shape[2]:
        return None
    shared = v.repeat_interleave(pattern.shape[1] // v.shape[2], 2).transpose(1, 2)
    return (pattern.to(v.dtype) @ shared).transpose(1, 2)


def _is_activation(layer: Layer, pre: Tensor | None, post: Tensor | None, values: Values) -> bool:
    """Whether `post` is some activation function of `pre`, times the other factor where there is a gate."""
    into = f"{layer.prefix}.{_INTO}"
    factor = 1.0 if layer.hooks.get("mlp.pre") == into else values.get(into)
    if pre is None or factor is None:
        return False
    functions = (function for function in map(ACT2FN.__getitem__, ACT2FN) if not [*function.parameters()])
    return any(agree(post, function(pre) * factor) for function in functions)


def _disturbed(value: Tensor) -> Tensor:
    """Another value nearby; masked entries stay masked."""
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(1)).to(value)
    real = value > torch.finfo(value.dtype).min / 2
    return torch.where(real, value + noise * value[real].float().std().to(value), value)


def agree(first: Tensor | None, second: Tensor | None) -> bool:
    """Whether two values are equal up to rounding at their precision."""
    if first is None or second is None or first.shape != second.shape:
        return False
    tolerance = max(1e-5, 16 * torch.finfo(first.dtype).eps)
    first, second = first.detach().double().cpu(), second.detach().double().cpu()
    return bool((first - second).abs().max() <= tolerance * max(float(second.abs().max()), 1e-3))
