"""How a config.json, new or old, states the rotation of queries and keys, and how we write it."""

import math
from collections.abc import Mapping
from typing import Any

from interp.config import Interpolated, Positions, Rotary, Stretched, Yarn
from interp.errors import InputError
from models.families.fields import Fields
from models.families.local_attention import FULL, NEAR


def rotary(fields: Fields, d_head: int, *, base: float = 10_000.0, share: float | None = None) -> Rotary:
    """The rotation, from `rope_parameters` or, in older files, `rope_theta` and `rope_scaling`.

    `base` and `share` (of a head's dimensions that turn) are defaults; without a `share` all turn.
    """
    parameters, scaling = fields.inner("rope_parameters"), fields.inner("rope_scaling")
    rope = scaling if scaling.raw else parameters
    base = fields.number("rope_theta", base)
    if share is None:
        fields.only(partial_rotary_factor=1.0)
        rope.only(partial_rotary_factor=1.0)
    else:
        share = rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", share))
    return one_rotary(rope, d_head, base, fields.size("max_position_embeddings"), share or 1.0)


def one_rotary(rope: Fields, d_head: int, base: float, n_ctx: int, share: float = 1.0) -> Rotary:
    """The rotation that one object states."""
    dims = int(d_head * share)
    if dims % 2 or not 0 < dims <= d_head:
        raise InputError(
            f"config.json: rotary positions turn pairs of dimensions, so {share} of a head's {d_head} are not possible"
        )
    base = rope.number("rope_theta", base)
    positions = Rotary(base, None if dims == d_head else dims, scaling=_scaling(rope, n_ctx))
    rope.rest(["partial_rotary_factor", "finetuned"])
    return positions


def two_rotaries(
    fields: Fields, d_head: int, bases: tuple[float, float], scaling: Mapping[str, Any]
) -> tuple[Rotary, Rotary]:
    """The rotations of layers that see everything and of layers that see a window; `bases` count in older files."""
    parameters, n_ctx = fields.inner("rope_parameters"), fields.size("max_position_embeddings")
    everywhere, nearby = parameters.inner(FULL), parameters.inner(NEAR)
    parameters.rest(())
    everywhere = Fields({**everywhere.raw, **scaling})
    for rope in (everywhere, nearby):
        rope.only(partial_rotary_factor=1.0, truncate=True)  # their code would not find these in this place
    return one_rotary(everywhere, d_head, bases[0], n_ctx), one_rotary(nearby, d_head, bases[1], n_ctx)


def _scaling(rope: Fields, n_ctx: int) -> Interpolated | Stretched | Yarn | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    rope.get("type")
    match kind:
        case "default":
            return None
        case "linear":
            return Interpolated(rope.number("factor"))
        case "llama3":
            n_ctx = rope.size("original_max_position_embeddings", n_ctx)
            slow, fast = rope.number("low_freq_factor"), rope.number("high_freq_factor")
            return Stretched(rope.number("factor"), slow, fast, n_ctx)
        case "yarn":
            return _yarn(rope, n_ctx)
        case _:
            raise InputError(
                f"config.json: rotation of type {kind!r} is not supported, only default, linear, llama3 and yarn"
            )


def _yarn(rope: Fields, n_ctx: int) -> Yarn:
    trained = rope.size("original_max_position_embeddings", n_ctx)
    factor = rope.number("factor", n_ctx / trained)
    scale, scale_of_all = rope.get("mscale") or 0.0, rope.get("mscale_all_dim") or 0.0
    usual = _length(factor, scale) / _length(factor, scale_of_all) if scale and scale_of_all else _length(factor, 1.0)
    length = rope.number("attention_factor", usual)
    slow, fast = rope.number("beta_slow", 1.0), rope.number("beta_fast", 32.0)
    return Yarn(factor, slow, fast, trained, length, rope.flag("truncate", True))


def _length(factor: float, scale: float) -> float:
    """Peng 2023, equation 22."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def rope_fields(positions: Positions | None, d_head: int) -> dict[str, Any]:
    """`rope_parameters` for ours."""
    if not isinstance(positions, Rotary):
        return {}
    dims = positions.dims or d_head
    share = dims / d_head
    share = share if int(d_head * share) == dims else math.nextafter(share, 1)  # they round down
    fields = {"rope_theta": positions.base, "rope_type": "default", "partial_rotary_factor": share}
    match positions.scaling:
        case Interpolated(factor):
            fields |= {"rope_type": "linear", "factor": factor}
        case Stretched(factor, slow, fast, n_ctx):
            fields |= {"rope_type": "llama3", "factor": factor, "low_freq_factor": slow, "high_freq_factor": fast}
            fields["original_max_position_embeddings"] = n_ctx
        case Yarn(factor, slow, fast, n_ctx, length, whole):
            fields |= {"rope_type": "yarn", "factor": factor, "beta_slow": slow, "beta_fast": fast}
            fields |= {"original_max_position_embeddings": n_ctx, "attention_factor": length, "truncate": whole}
    return fields
