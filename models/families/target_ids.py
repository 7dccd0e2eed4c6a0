"""How a decoder with an encoder begins and ends its text: ids in config.json and generation_config.json.

These files also say how the next token is chosen (beams, penalties of repetition), which the caller decides.
"""

from collections.abc import Mapping
from typing import Any

from interp.config import TransformerConfig, Writing
from interp.errors import InputError
from models.families.fields import Fields

START, ENDS, FIRST, LAST = "decoder_start_token_id", "eos_token_id", "forced_bos_token_id", "forced_eos_token_id"
NEVER = "bad_words_ids"


def target_ids(fields: Fields) -> dict[str, Any]:
    """The ids, as arguments of TransformerConfig.

    Without a named end, a text goes on until it is long enough.
    """
    ends, never = fields.get(ENDS), fields.get(NEVER) or []
    if not isinstance(never, list | tuple) or not all(isinstance(word, list | tuple) and word for word in never):
        raise InputError(f"config.json: {NEVER} must be a list of lists of token ids, got {never!r}")
    ends = [id for id in (ends if isinstance(ends, list | tuple) else [ends]) if id is not None]
    writing = Writing(
        ends=tuple(_checked(ENDS, id) for id in ends),
        first=_id(fields, FIRST),
        last=_id(fields, LAST),
        never=tuple(_checked(NEVER, word[0]) for word in never if len(word) == 1),  # longer ones need a search
    )
    return {"target_start": _id(fields, START), "writing": writing}


def ids_of(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    writing = config.writing
    return {
        START: config.target_start,
        ENDS: list(writing.ends) if len(writing.ends) > 1 else next(iter(writing.ends), None),
        FIRST: writing.first,
        LAST: writing.last,
        NEVER: [[id] for id in writing.never] or None,
    }


def with_generation(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of config.json with those of generation_config.json, which win."""
    stated = {key: generation.get(key) for key in (ENDS, FIRST, LAST, NEVER)}
    start = generation.get(START)
    return {**raw, **stated, START: raw.get(START) if start is None else start}


def _id(fields: Fields, key: str) -> int | None:
    value = fields.get(key)
    return None if value is None else _checked(key, value)


def _checked(key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"config.json: {key} must be a token id, got {value!r}")
    return value
