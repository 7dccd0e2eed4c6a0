"""What is seen of a passage where no script runs? One head's strongest links, as a plain SVG picture."""

from html import escape

import numpy as np

from analyses.viewer.passages import Attention, Viewer

_MOST = 40  # tokens of each side that are drawn
_LINE, _COLUMN, _GAP = 20, 150, 160  # pixels: a token's height, and the widths of a column and of what is between
_SIGNS = 18  # of a token


def still(viewer: Viewer) -> str:
    """An SVG picture: on the left the tokens that look, on the right those that they look at, wider lines for more.

    It is of the first passage and head, and of no more than its first tokens.
    """
    stack, attention, layer, head = viewer.start
    shown = next(
        (
            each
            for each in viewer.passages[0].attentions
            if (stack, attention) == (each.heads.stack, each.heads.attention)
        ),
        viewer.passages[0].attentions[0],
    )
    shares = shown.weights[layer, head, :_MOST, :_MOST] / 255
    height = (max(shares.shape) + 1) * _LINE + 4
    width = 2 * _COLUMN + _GAP
    name = f"{'cross-attention ' if attention == 'cross' else ''}L{layer}.H{head}"
    said = f"{name} looks from the tokens on the left to those on the right{_cut_short(shown)}"
    lines = [
        f'<line x1="{_COLUMN + 6}" y1="{_middle(query)}" x2="{_COLUMN + _GAP - 6}" y2="{_middle(key)}" '
        f'stroke-opacity="{share:.2f}" stroke-width="{0.5 + 2.5 * share:.2f}"/>'
        for query, key in np.argwhere(shares >= 0.05).tolist()
        for share in [shares[query, key]]
    ]
    left = [_word(token, at, _COLUMN, "end") for at, token in enumerate(shown.queries[:_MOST])]
    right = [_word(token, at, _COLUMN + _GAP, "start") for at, token in enumerate(shown.keys[:_MOST])]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(said)}" font-family="sans-serif" font-size="13" fill="currentColor">'
        f'<text x="{width / 2:g}" y="14" text-anchor="middle">{escape(said)}</text>'
        f'<g stroke="currentColor">{"".join(lines)}</g>{"".join(left)}{"".join(right)}</svg>'
    )


def _cut_short(shown: Attention) -> str:
    longest = max(len(shown.queries), len(shown.keys))
    return f" (the first {_MOST} of {longest})" if longest > _MOST else ""


def _middle(at: int) -> int:
    return (at + 1) * _LINE + _LINE // 2


def _word(token: str, at: int, x: int, anchor: str) -> str:
    shown = token.strip() or "␣"
    shown = shown if len(shown) <= _SIGNS else f"{shown[: _SIGNS - 1]}…"
    return f'<text x="{x}" y="{_middle(at) + 4}" text-anchor="{anchor}">{escape(_drawable(shown))}</text>'


def _drawable(text: str) -> str:
    """Without signs that no XML may hold."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)
