"""How long may a text become on its way to tokens? In 2 kB of JSON, steps that each double it take all memory."""

import base64
import json
from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Any

from interp.errors import InputError

LIMIT = 300  # characters or tokens that one character may become; no known tokenizer makes more than 72 of one
_STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_LISTS = ("normalizers", "pretokenizers", "processors", "decoders")  # fields with a sequence's steps
# steps that make a text no longer, or by a factor that does not grow when they are repeated
_STEADY = {
    *("Sequence", "Replace", "Prepend", "Precompiled", "TemplateProcessing"),  # their own fields tell the size
    *("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "Strip", "StripAccents", "BertNormalizer"),
    *("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Split", "Punctuation", "Digits", "CharDelimiterSplit"),
    *("UnicodeScripts", "FixedLength", "BertProcessing", "RobertaProcessing", "ByteFallback", "Fuse"),
}
_FACTORS = {"Metaspace": 2, "ByteLevel": 4}  # a space in front, a character for each byte; others: the largest


def check_growth(text: str) -> None:
    """Refuse a tokenizer.json that is no JSON or makes more than `LIMIT` characters of one."""
    try:
        content = json.loads(text)
        steps = content if isinstance(content, dict) else {}
        *sizes, decoded = [_growth(steps.get(name)) for name in _STEPS]
    except (ValueError, RecursionError) as error:
        raise InputError(str(error)) from error
    if (growth := max(prod(sizes), decoded)) > LIMIT:
        raise InputError(f"its steps turn one character into up to {growth:.3g}; the limit is {LIMIT}: remove some")


def _growth(step: Any) -> float:
    """How many characters or tokens a step makes of one character, at most."""
    if not isinstance(step, Mapping):
        return 1.0
    kind = step.get("type")
    factor = 1.0 if kind in _STEADY else float(_FACTORS.get(str(kind), 4))
    if isinstance(content := step.get("content"), str):
        pattern = step.get("pattern")
        text = pattern.get("String") if isinstance(pattern, Mapping) else None
        # a regular expression may match nothing, between any two characters
        factor *= max(1, len(content) / len(text)) if isinstance(text, str) and text else 1 + len(content)
    if isinstance(prefix := step.get("prepend"), str):
        factor *= 1 + len(prefix)
    if isinstance(table := step.get("precompiled_charsmap"), str):
        factor *= _longest(table)
    for template in (step.get("single"), step.get("pair")):
        factor *= _repeats(template)
    return factor * prod(_growth(each) for name in _LISTS for each in _listed(step.get(name)))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _repeats(template: Any) -> int:
    """How often a template repeats a text, at most."""
    pieces = [each.get("Sequence") for each in _listed(template) if isinstance(each, Mapping)]
    return max(Counter(str(piece.get("id")) for piece in pieces if isinstance(piece, Mapping)).values(), default=1)


def _longest(table: str) -> int:
    """The longest text that SentencePiece's table substitutes: texts follow the index and end in 0."""
    content = base64.b64decode(table)
    texts = content[4 + int.from_bytes(content[:4], "little") :]
    return max(1, *(len(text.decode(errors="replace")) for text in texts.split(b"\0")))
