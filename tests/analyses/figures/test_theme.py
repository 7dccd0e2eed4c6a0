"""One theme: pages and figures have the same colours, which are read by all, on white and on dark."""

import re
from itertools import combinations

import numpy as np
import pytest

from analyses.figures import style
from analyses.report import renderer

# Machado, Oliveira & Fernandes 2009: what no red, no green and no blue cones see of linear light
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
NAMES = ("position", "syntax", "coreference")


def themes() -> dict[str, dict[str, str]]:
    """The variables of `style.css`, in its light and its dark half."""
    css = (renderer.TEMPLATES / "style.css").read_text("utf-8")
    light, dark = css.split("@media (prefers-color-scheme: dark)")
    found = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", each.split(".position")[0])) for each in (light, dark)]
    return {"light": found[0], "dark": found[1]}


def linear(colour: str) -> np.ndarray:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * each for each in colour[1:])
    channels = np.array([int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """As WCAG 2.2 defines it: 1 to 21."""
    dim, bright = sorted(float(linear(each) @ [0.2126, 0.7152, 0.0722]) + 0.05 for each in (one, other))
    return bright / dim


def lab(light: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear sRGB, under D65."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    scaled = np.array(to_xyz) @ light / [0.95047, 1.0, 1.08883]
    x, y, z = np.where(scaled > (6 / 29) ** 3, np.cbrt(scaled), scaled / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_the_contrast_of_black_and_white_and_a_known_grey():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#fff") == pytest.approx(4.54, abs=0.01)
    np.testing.assert_allclose(lab(linear("#ffffff")), [100, 0, 0], atol=0.02)


def test_figures_and_pages_have_the_same_colours():
    assert [themes()["light"][name] for name in NAMES] == [style.POSITION, style.SYNTAX, style.COREFERENCE]
    assert themes()["light"]["own"] == style.OWN
    assert (themes()["light"]["ink"], themes()["light"]["soft"]) == (style.INK, style.SOFT)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_every_ground(theme):
    colours = themes()[theme]
    for name in NAMES:
        assert contrast(colours[name], colours["bg"]) >= 4.5, name
        assert contrast(colours["ink"], colours[f"{name}-wash"]) >= 7, name
        assert contrast(colours["soft"], colours[f"{name}-wash"]) >= 4.5, name
        assert contrast(colours[name], colours[f"{name}-wash"]) >= 4.5, name
    for ground in ("bg", "tint"):
        assert contrast(colours["ink"], colours[ground]) >= 7
        assert contrast(colours["soft"], colours[ground]) >= 4.5
    assert contrast(colours["own"], colours["tint"]) >= 4.5
    assert contrast(colours["edge"], colours["bg"]) >= 3, "what marks a field or a fold"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eyes", ["all", *BLIND])
def test_behaviours_are_told_apart_by_all_eyes(theme, eyes):
    """A distance of 2.3 in L*a*b* is just noticed (Mahy 1994): nine times that, and four for no blue cones.

    Blue and green are near for the few who have none; no page or figure has colour alone.
    """
    seen = np.eye(3) if eyes == "all" else np.array(BLIND[eyes])
    places = {name: lab(np.clip(seen @ linear(themes()[theme][name]), 0, 1)) for name in NAMES}
    apart = {pair: float(np.linalg.norm(places[pair[0]] - places[pair[1]])) for pair in combinations(NAMES, 2)}
    assert min(apart.values()) >= (9 if eyes == "tritan" else 20), apart
