"""How is a file damaged? One to three changes drawn from a seed: bytes, lines, fields, numbers, encodings.

Nothing here knows a format. Hostile values are known problems for readers of text and JSON: huge numbers, paths that
lead outside, values that are not numbers, deep nesting, invalid UTF-8.
"""

import gzip
import random
import re
from collections.abc import Callable

HOSTILE = (
    *(b"", b"_", b"0", b"-1", b"1.5", b"1e999", b"NaN", b"-Infinity", b"true", b"null", b'""', b"[]", b"{}", b"\0"),
    *(b"999999999", b"9" * 5_000, b"18446744073709551616", b"1-999999999", b"3.1", b"\xd9\xa3", b"\xc2\xb2"),
    *(b"x" * 100_000, b"(" * 3_000, b"[" * 3_000, b"{" * 3_000, b'{"a":' * 3_000, b"[[" * 2_000 + b"]]" * 2_000),
    *(b"../../../escaped", b"/dev/zero", b"$OCCUPATION", b"=1+1", b"\t" * 40, b"\r", b"\xff\xfe", b"\xed\xa0\x80"),
    *(b"\xe2\x80\xae", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"<script>", b"'", b'"', b"\\u0000", b"\\ud800"),
)
_NUMBER = re.compile(rb"\d+")
_FIELD = re.compile(rb"[^\s,:{}\[\]]+")
Draw = random.Random


def mutated(content: bytes, seed: int) -> bytes:
    """`content` with one to three changes; the same for the same seed."""
    draw = Draw(seed)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        content = draw.choice(CHANGES)(content, draw)
    return content


def flipped(content: bytes, draw: Draw) -> bytes:
    """Change some bytes, half of the time within the first quarter, where headers are."""
    changed = bytearray(content)
    end = len(changed) if draw.random() < 0.5 else len(changed) // 4
    for _ in range(draw.choice((1, 1, 2, 8, 40)) if end else 0):
        changed[draw.randrange(end)] = draw.randrange(256)
    return bytes(changed)


def one_bit(content: bytes, draw: Draw) -> bytes:
    """Flip one bit."""
    changed = bytearray(content)
    if changed:
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut_short(content: bytes, draw: Draw) -> bytes:
    """Cut off the end."""
    return content[: draw.randrange(len(content) + 1)]


def without_a_span(content: bytes, draw: Draw) -> bytes:
    """Remove some bytes in the middle."""
    start, end = _span(content, draw)
    return content[:start] + content[end:]


def with_a_span_twice(content: bytes, draw: Draw) -> bytes:
    """Repeat some bytes."""
    start, end = _span(content, draw)
    return content[:end] + content[start:]


def with_lines_changed(content: bytes, draw: Draw) -> bytes:
    """Remove or repeat a line, or swap two."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    first, second = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(3):
        case 0:
            del lines[first]
        case 1:
            lines.insert(second, lines[first])
        case _:
            lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


def with_a_hostile_number(content: bytes, draw: Draw) -> bytes:
    """Replace a number by a hostile value."""
    return _replaced(_NUMBER, content, draw)


def with_a_hostile_field(content: bytes, draw: Draw) -> bytes:
    """Replace a word, a column or a JSON value by a hostile value."""
    return _replaced(_FIELD, content, draw)


def with_something_between(content: bytes, draw: Draw) -> bytes:
    """Insert a hostile value."""
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.choice(HOSTILE) + content[place:]


def with_fields_exchanged(content: bytes, draw: Draw) -> bytes:
    """Swap two words, columns or values."""
    fields = list(_FIELD.finditer(content))
    if len(fields) < 2:
        return content
    first, second = sorted(draw.sample(fields, 2), key=lambda match: match.start())
    between = content[first.end() : second.start()]
    return content[: first.start()] + second[0] + between + first[0] + content[second.end() :]


def encoded_otherwise(content: bytes, draw: Draw) -> bytes:
    """Use another encoding, other line ends, or gzip, whole or cut short."""
    text, packed = content.decode("utf-8", "replace"), gzip.compress(content, mtime=0)
    ends = draw.choice((b"\r\n", b"\r", b"\x0b", b"\xe2\x80\xa8"))
    utf16, latin = text.encode("utf-16"), text.encode("latin-1", "replace") + b"\xe9"
    others = (utf16, text.encode("utf-32-be"), latin, b"\xef\xbb\xbf" + content, content.replace(b"\n", ends))
    return draw.choice((*others, packed, cut_short(packed, draw)))


def another_file(content: bytes, draw: Draw) -> bytes:
    """An empty file, or a file of another kind."""
    return draw.choice((b"", b"\n", b"\0" * 64, draw.randbytes(len(content)), b"# x", b"{}", b"[]", b"\x1f\x8b"))


CHANGES: tuple[Callable[[bytes, Draw], bytes], ...] = (
    *(flipped, one_bit, cut_short, without_a_span, with_a_span_twice, with_lines_changed, with_lines_changed),
    *(with_a_hostile_number, with_a_hostile_number, with_a_hostile_field, with_a_hostile_field),
    *(with_something_between, with_fields_exchanged, encoded_otherwise, another_file),
)


def _span(content: bytes, draw: Draw) -> tuple[int, int]:
    start = draw.randrange(len(content) + 1)
    return start, min(len(content), start + draw.choice((1, 4, 30, 300)))


def _replaced(pattern: re.Pattern[bytes], content: bytes, draw: Draw) -> bytes:
    matches = list(pattern.finditer(content))
    if not matches:
        return content
    match = draw.choice(matches)
    return content[: match.start()] + draw.choice(HOSTILE) + content[match.end() :]
