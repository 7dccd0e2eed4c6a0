"""Which hook of a TransformerLens bridge is which of our sites? Nothing is believed that a short run does not show.

A hook's name does not fix its meaning: in one architecture `attn.hook_out` is what attention adds to the stream, in
another the stream after it; `hook_attn_scores` may hold the pattern, and an edit of `hook_pattern` may come too late.
So a site is known by what must hold of it (streams add up, rows are the softmax of scores): hooks are tried on a short
random text, and what none fulfils is left out. Then each site is changed in a run of its own: where what follows from
it does not follow any more, it can be read and not changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from interp.tap import Edit

Seen = Mapping[str, Tensor]
_NORMS = ("ln1", "ln2", "ln3", "ln1_post", "ln2_post")
_HEADS = {"q": "q.hook_out", "k": "k.hook_out", "v": "v.hook_out", "z": "hook_z"}
_ROWS = {"scores": "hook_attn_scores", "pattern": "hook_pattern"}
_OWN, _CROSS = ("attn", "self_attn"), ("cross_attn",)
_ADDED = {  # hooks that may be what a part adds to the stream
    "attn_out": ["hook_attn_out", *(f"{name}.{hook}" for name in _OWN for hook in ("hook_out", "o.hook_out"))],
    "cross_attn_out": ["hook_cross_attn_out", "cross_attn.hook_out", "cross_attn.o.hook_out"],
    "mlp_out": ["hook_mlp_out", "mlp.hook_out", "mlp.out.hook_out"],
}
_ARRIVED = {"attn_out": "resid_mid", "cross_attn_out": "resid_cross", "mlp_out": "resid_post"}
_BETWEEN = ["hook_resid_mid", "hook_resid_mid2", "mlp.hook_in", *(f"{name}.hook_out" for name in (*_OWN, *_CROSS))]
_NORMED = [f"{norm}.{end}" for norm in _NORMS for end in ("hook_in", "hook_out")]
_INTO, _GATE, _POST = "mlp.in.hook_out", "mlp.gate.hook_out", "mlp.out.hook_in"
_ORDER = [
    "resid_pre",
    *(f"attn.{part}" for part in ("q", "k", "v", "scores", "pattern", "z")),
    *("attn_out", "resid_mid"),
    *(f"cross_attn.{part}" for part in ("q", "k", "v", "scores", "pattern", "z")),
    *("cross_attn_out", "resid_cross", "mlp.pre", "mlp.post", "mlp_out", "resid_post"),
]


@dataclass(frozen=True)
class Layer:
    """One block: the hook of each of its sites."""

    prefix: str  # "blocks.3"
    after: str | None  # the hook of what reads the stream out of this block, where there is one
    hooks: Mapping[str, str] = field(default_factory=dict)  # site within the block: hook
    others: Mapping[str, Sequence[str]] = field(default_factory=dict)  # further hooks with the same value
    wiring: Literal["pre", "post", "parallel"] | None = None  # how the stream adds up
    normed: Mapping[str, str] = field(default_factory=dict)  # where norms follow sums: a stream's site, its sum's hook


@dataclass(frozen=True)
class Place:
    """Where a site is read: a hook, plus the stream at another hook where the first has only what is added to it."""

    name: str  # the site's full name
    hook: str
    changeable: bool  # whether what follows reads a change
    stream: str | None = None


@dataclass(frozen=True)
class Hooks:
    """One stack: the hooks of its sites, and which of them carry a change on."""

    stack: str
    layers: tuple[Layer, ...]
    final: str | None  # the stream after the last norm
    changeable: frozenset[str] = frozenset()  # sites within a block, and resid_final

    def places(self) -> Iterator[Place]:
        """The stack's sites in the order of a call."""
        if "resid_pre" in self.layers[0].hooks:
            yield Place(f"{self.stack}.embed", self.layers[0].hooks["resid_pre"], "resid_pre" in self.changeable)
        for number, layer in enumerate(self.layers):
            for site in _ORDER:
                if site in layer.hooks:
                    yield self._place(f"{self.stack}.{number}.{site}", layer, site)
        if self.final is not None:
            yield Place(f"{self.stack}.resid_final", self.final, "resid_final" in self.changeable)

    def _place(self, name: str, layer: Layer, site: str) -> Place:
        """A stream whose own hook carries no change on is changed where the last thing is added to it."""
        before = {"resid_mid": ("resid_pre", "attn_out"), "resid_cross": ("resid_mid", "cross_attn_out")}
        if site in before and site not in self.changeable and layer.wiring == "pre":
            stream, added = before[site]
            if {stream, added} <= self.changeable:
                return Place(name, layer.hooks[added], True, layer.hooks[stream])
        return Place(name, layer.hooks[site], site in self.changeable)


def candidates(blocks: str, n_layers: int, norm: str) -> list[str]:
    """Names of all hooks that could be a site of the blocks called `blocks` and of the last norm."""
    attention = [f"{name}.{hook}" for name in (*_OWN, *_CROSS) for hook in (*_HEADS.values(), *_ROWS.values())]
    added = [hook for hooks in _ADDED.values() for hook in hooks]
    block = ["hook_in", "hook_out", *attention, *added, *_BETWEEN, *_NORMED, _INTO, _GATE, _POST]
    names = [f"{blocks}.{layer}.{hook}" for layer in range(n_layers) for hook in dict.fromkeys(block)]
    return [*names, f"{norm}.hook_in", f"{norm}.hook_out"]


def find(probe: Callable[[Mapping[str, Edit]], Seen], stack: str, blocks: str, n_layers: int, norm: str) -> Hooks:
    """The sites of the stack whose blocks are called `blocks` and whose last norm `norm`.

    `probe` runs the model on a short text with some hooks changed and gives the value of every candidate, and `logits`.
    """
    plain = probe({})
    final = _final(plain, f"{blocks}.{n_layers - 1}", norm)
    afters = [*(f"{blocks}.{layer}.hook_in" for layer in range(1, n_layers)), final and f"{norm}.hook_in"]
    layers = [_layer(plain, f"{blocks}.{number}", after) for number, after in enumerate(afters)]
    if final is None and layers[-1].wiring == "post":  # the last block has normalised already
        final = layers[-1].hooks.get("resid_post")
    hooks = Hooks(stack, tuple(layers), final)
    changeable = set()
    for site in dict.fromkeys(site for layer in layers for site in layer.hooks):
        for tried in _alternatives(hooks, site):
            if _carries(probe, plain, tried, site):
                hooks = tried
                changeable.add(site)
                break
    rebuilt = [site for site in ("attn.scores", "cross_attn.scores") if site not in changeable]  # without their mask
    hooks = replace(hooks, layers=tuple(_without(layer, rebuilt) for layer in hooks.layers))
    if hooks.final is not None and _moved(probe({hooks.final: _disturbed}), plain, layers[-1]):
        changeable.add("resid_final")
    return replace(hooks, changeable=frozenset(changeable))


def _layer(plain: Seen, prefix: str, after: str | None) -> Layer:
    """The sites that a block has: proposed by the names of hooks, kept where what must hold does."""
    start, end = f"{prefix}.hook_in", f"{prefix}.hook_out"
    if start not in plain or end not in plain or plain[start].shape != plain[end].shape:
        return Layer(prefix, after)
    hooks = {"resid_pre": start, "resid_post": end}
    for ours, names in {"attn": _OWN, "cross_attn": _CROSS}.items():
        for name in names:
            parts = {f"{ours}.{part}": f"{prefix}.{name}.{hook}" for part, hook in {**_HEADS, **_ROWS}.items()}
            hooks |= {site: hook for site, hook in parts.items() if hook in plain and plain[hook].ndim == 4}
    gated = f"{prefix}.{_GATE}" in plain and f"{prefix}.{_INTO}" in plain
    forward = {"mlp.pre": f"{prefix}.{_GATE if gated else _INTO}", "mlp.post": f"{prefix}.{_POST}"}
    hooks |= forward if all(hook in plain and plain[hook].ndim == 3 for hook in forward.values()) else {}
    wiring, sums, normed = _sums(plain, prefix)
    layer = Layer(prefix, after, hooks | {site: each[0] for site, each in sums.items()}, sums, wiring, normed)
    for ours in ("attn", "cross_attn"):
        if (hook := hooks.get(f"{ours}.pattern")) and not same(plain[hook].sum(-1), torch.ones(plain[hook].shape[:-1])):
            layer = _without(layer, (f"{ours}.pattern", f"{ours}.scores"))
    for law in _laws(layer):
        if not law.holds(plain):
            layer = _without(layer, law.doubtful)
    return layer


def _without(layer: Layer, sites: Sequence[str]) -> Layer:
    return replace(layer, hooks={site: hook for site, hook in layer.hooks.items() if site not in sites})


# Laws: what must hold of a block, on any text and after any change.


@dataclass(frozen=True)
class Law:
    """`result` follows from other values; where that does not hold, `doubtful` sites are not what their names say."""

    result: str
    doubtful: tuple[str, ...]
    holds: Callable[[Seen], bool]


def _laws(layer: Layer) -> Iterator[Law]:
    at, prefix = layer.hooks, layer.prefix
    yield from _laws_of_sums(layer)
    for ours in ("attn", "cross_attn"):
        pattern, scores, z, v = (f"{ours}.{part}" for part in ("pattern", "scores", "z", "v"))
        if pattern in at and scores in at:
            yield Law(pattern, (scores,), lambda s, p=at[pattern], c=at[scores]: same(s[p], _softmax(s[c])))
        if {pattern, z, v} <= {*at}:
            yield Law(z, (z,), lambda s, z=at[z], p=at[pattern], v=at[v]: same(s[z], _mixed(s[p], s[v])))
    if "mlp.pre" in at:
        pre, post, into = at["mlp.pre"], at["mlp.post"], f"{prefix}.{_INTO}"
        gated = pre != into
        yield Law(
            "mlp.post", ("mlp.pre", "mlp.post"), lambda s: _activated(s[pre], s[into] if gated else None, s[post])
        )
    if "resid_post" in at and (after := layer.after) is not None:
        yield Law("resid_pre", ("resid_post",), lambda s: same(s.get(after), s[at["resid_post"]]))


def _laws_of_sums(layer: Layer) -> Iterator[Law]:
    at = layer.hooks
    if layer.wiring == "parallel":
        terms = [at[site] for site in ("resid_pre", "attn_out", "mlp_out")]
        yield Law(
            "resid_post",
            ("attn_out", "mlp_out"),
            lambda s: same(s[f"{layer.prefix}.hook_out"], s[terms[0]] + s[terms[1]] + s[terms[2]]),
        )
        return
    stream = at.get("resid_pre")
    for added, arrived in _ARRIVED.items():
        if added not in at or stream is None:
            continue
        result = arrived if arrived in at else "resid_post"  # nothing follows in this block
        end = at.get(arrived, f"{layer.prefix}.hook_out")
        whole = layer.normed.get(result, end)
        yield Law(
            "" if whole != end else result,
            (added, result),
            lambda s, whole=whole, stream=stream, out=at[added]: same(s[whole], s[stream] + s[out]),
        )
        stream = end


def _softmax(scores: Tensor) -> Tensor:
    return scores.float().softmax(-1).to(scores.dtype)


def _mixed(pattern: Tensor, v: Tensor) -> Tensor | None:
    if pattern.shape[1] % v.shape[2]:
        return None
    shared = v.repeat_interleave(pattern.shape[1] // v.shape[2], 2).transpose(1, 2)
    return (pattern.to(v.dtype) @ shared).transpose(1, 2)


def _activated(pre: Tensor, partner: Tensor | None, post: Tensor) -> bool:
    """Whether some activation function turns one into the other."""
    for name in ACT2FN:
        function: Any = ACT2FN[name]
        if not [*function.parameters()] and same(post, function(pre) if partner is None else function(pre) * partner):
            return True
    return False


# How the stream adds up through a block.


def _sums(
    plain: Seen, prefix: str
) -> tuple[Literal["pre", "post", "parallel"] | None, dict[str, list[str]], dict[str, str]]:
    """The block's wiring, the hooks of what is added and of the streams between, and of sums before their norms."""
    at = {hook.removeprefix(f"{prefix}."): value for hook, value in plain.items() if hook.startswith(f"{prefix}.")}
    width = at["hook_in"].shape
    at = {hook: value for hook, value in at.items() if value.shape == width}
    outs = {kind: [hook for hook in (*hooks, *_NORMED) if hook in at] for kind, hooks in _ADDED.items()}
    has = {"attn_out": _OWN, "cross_attn_out": _CROSS, "mlp_out": ("mlp",)}
    chain = [kind for kind in _ADDED if any(hook.startswith((*(f"{name}." for name in has[kind]),)) for hook in at)]
    for wiring in ("pre", "post"):
        if (found := _chain(at, outs, chain, wiring)) is not None:
            sums, normed = found
            full = {site: [f"{prefix}.{hook}" for hook in hooks] for site, hooks in sums.items()}
            return wiring, full, {site: f"{prefix}.{hook}" for site, hook in normed.items()}
    for one in outs["attn_out"]:
        for other in outs["mlp_out"]:
            if one != other and same(at["hook_out"], at["hook_in"] + at[one] + at[other]):
                return "parallel", {"attn_out": [f"{prefix}.{one}"], "mlp_out": [f"{prefix}.{other}"]}, {}
    return None, {}, {}


def _chain(
    at: Seen, outs: Mapping[str, Sequence[str]], chain: Sequence[str], wiring: str
) -> tuple[dict[str, list[str]], dict[str, str]] | None:
    """Hooks that add up to the stream out of the block, one addition after the other; None where none do."""
    stream, sums, normed = at["hook_in"], {}, {}
    for kind in chain:
        last = kind == chain[-1]
        arrivals = ["hook_out"] if last else [hook for hook in (*_BETWEEN, *_NORMED) if hook in at]
        step = next((step for out in outs[kind] if (step := _step(at, stream, out, arrivals, wiring))), None)
        if step is None:
            return None
        out, arrived, norm = step
        sums[kind] = [out, *(hook for hook in outs[kind] if hook != out and same(at[hook], at[out]))]
        if not last:
            sums[_ARRIVED[kind]] = arrived
        if norm is not None:
            normed[_ARRIVED[kind] if not last else "resid_post"] = norm
        stream = at[arrived[0]]
    return (sums, normed) if chain else None


def _step(
    at: Seen, stream: Tensor, out: str, arrivals: Sequence[str], wiring: str
) -> tuple[str, list[str], str | None] | None:
    """What is added, the hooks of the stream after it, and, where a norm follows the sum, the hook of the sum."""
    whole, norms = stream + at[out], [None]
    if wiring == "post":
        norms = [norm for norm in _NORMS if same(at.get(f"{norm}.hook_in"), whole) and f"{norm}.hook_out" in at]
    for norm in norms:
        value = whole if norm is None else at[f"{norm}.hook_out"]
        if arrived := [hook for hook in arrivals if same(at[hook], value)]:
            return out, arrived, None if norm is None else f"{norm}.hook_in"
    return None


def _final(plain: Seen, last: str, norm: str) -> str | None:
    """The hook of the stream after the last norm; None where no norm reads the stream out of the last block."""
    follows = f"{norm}.hook_out" in plain and same(plain.get(f"{norm}.hook_in"), plain.get(f"{last}.hook_out"))
    return f"{norm}.hook_out" if follows else None


# Whether a change is read.


def _alternatives(hooks: Hooks, site: str) -> Iterator[Hooks]:
    """The same with each hook in turn that has the site's value."""
    first = next(layer for layer in hooks.layers if site in layer.hooks)
    choices = first.others.get(site) or [first.hooks[site]]
    for hook in choices:
        inside = hook.removeprefix(f"{first.prefix}.")
        yield replace(hooks, layers=tuple(_choosing(layer, site, inside) for layer in hooks.layers))


def _choosing(layer: Layer, site: str, inside: str) -> Layer:
    hook = f"{layer.prefix}.{inside}"
    known = site in layer.hooks and hook in layer.others.get(site, ())
    return replace(layer, hooks={**layer.hooks, site: hook}) if known else layer


def _carries(probe: Callable[[Mapping[str, Edit]], Seen], plain: Seen, hooks: Hooks, site: str) -> bool:
    """Whether, with the site changed in every layer, something else comes out and all laws hold that follow from it."""
    edited = probe({layer.hooks[site]: _disturbed for layer in hooks.layers if site in layer.hooks})
    laws = (law for layer in hooks.layers for law in _laws(layer) if law.result != site)
    return _moved(edited, plain, hooks.layers[-1]) and all(law.holds(edited) for law in laws)


def _moved(edited: Seen, plain: Seen, last: Layer) -> bool:
    end = "logits" if "logits" in plain else f"{last.prefix}.hook_out"
    return not torch.equal(edited[end], plain[end])  # a change that is not read leaves every bit as it was


def _disturbed(value: Tensor) -> Tensor:
    """Something else, not too far away; what is masked stays so."""
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(1)).to(value)
    real = value > torch.finfo(value.dtype).min / 2
    return torch.where(real, value + noise * value[real].float().std().to(value), value)


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two values are equal up to rounding at their precision."""
    if one is None or other is None or one.shape != other.shape:
        return False
    tolerance = max(1e-5, 16 * torch.finfo(one.dtype).eps)
    one, other = one.detach().double().cpu(), other.detach().double().cpu()
    return bool((one - other).abs().max() <= tolerance * max(float(other.abs().max()), 1e-3))
