"""Can the behaviours' colours be told apart and read, light and dark, in a figure too, by the colour-blind too?

We simulate sight without one kind of cone as Machado, Oliveira and Fernandes do (2009, "A physiologically-based model
for simulation of color vision deficiency", severity 1), and compare colours by CIEDE2000: a difference of about 1 is
just visible if one looks for it, 10 at a glance. The authors call their model of tritanopia an approximation.
"""

import re
import warnings
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from analyses.figures import style

colour = pytest.importorskip("colour", reason="colour-science is not installed: pip install -e '.[test]'")

APART, READABLE = 10, 4.5  # CIEDE2000, and the contrast that WCAG 2.2 requires of text (1.4.3)
BESIDE_WORDS = 5  # CIEDE2000: in a darkened figure, where words label each colour
NAMES = ("position", "syntax", "coreference", "own")
SHEET = (Path(style.__file__).parents[1] / "report" / "templates" / "style.css").read_text("utf-8")
_LUMA = np.array([0.213, 0.715, 0.072])  # by which CSS rotates hues


def themes() -> list[dict[str, str]]:
    """Colours by name, for a light page and a dark one."""
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})\b", part)) for part in SHEET.split(":root {")[1:3])
    return [{"bg": "#ffffff"} | {name: each for name, each in light.items() if len(each) == 7}, dark]


def rgb(code: str) -> np.ndarray:
    return np.array([int(code[start : start + 2], 16) / 255 for start in (1, 3, 5)])


def inverted(code: str, ground: str) -> np.ndarray:
    """A figure's colour on a dark page: `invert(1) hue-rotate(180deg)`, then `screen`."""
    turned = 2 * (1 - rgb(code)) @ _LUMA - (1 - rgb(code))
    return 1 - (1 - rgb(ground)) * (1 - turned.clip(0, 1))


LIGHT, DARK = themes()
PALETTES = {
    "light page": ({name: rgb(LIGHT[name]) for name in NAMES}, rgb(LIGHT["bg"])),
    "dark page": ({name: rgb(DARK[name]) for name in NAMES}, rgb(DARK["bg"])),
    "figure on a dark page": (  # a user's behaviour has figures of its own
        dict(zip(NAMES[:3], [inverted(each, DARK["bg"]) for each in style.BEHAVIOURS.values()], strict=True)),
        rgb(DARK["bg"]),
    ),
}


def linear(shade: np.ndarray) -> np.ndarray:
    return colour.cctf_decoding(shade, function="sRGB")


def lab(shade: np.ndarray, lacking: str) -> np.ndarray:
    """The colour in CIE L*a*b*, as seen by someone who lacks these cones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tritanopia is approximated
        matrix = np.eye(3) if lacking == "none" else colour.blindness.matrix_cvd_Machado2009(lacking, 1.0)
    signal = colour.cctf_encoding((matrix @ linear(shade)).clip(0, 1), function="sRGB")
    return colour.XYZ_to_Lab(colour.sRGB_to_XYZ(signal))


def contrast(first: np.ndarray, second: np.ndarray) -> float:
    low, high = sorted(float(linear(each) @ [0.2126, 0.7152, 0.0722]) for each in (first, second))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("lacking", ["none", "Protanomaly", "Deuteranomaly", "Tritanomaly"])
@pytest.mark.parametrize("palette", PALETTES)
def test_any_two_behaviours_are_told_apart_at_a_glance(palette, lacking):
    inks = {name: lab(shade, lacking) for name, shade in PALETTES[palette][0].items()}
    least = BESIDE_WORDS if palette == "figure on a dark page" else APART
    for first, second in combinations(inks, 2):
        assert colour.delta_E(inks[first], inks[second], method="CIE 2000") >= least, (first, second)


@pytest.mark.parametrize("palette", PALETTES)
def test_each_can_be_read_on_its_ground(palette):
    inks, ground = PALETTES[palette]
    assert min(contrast(ink, ground) for ink in inks.values()) >= READABLE


WASHES = [(name, f"{name}-wash", READABLE) for name in NAMES[:3]]
LETTERS = [("ink", 7), ("soft", READABLE)]
GROUNDS = ["bg", "tint", *(ground for _, ground, _ in WASHES)]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read_on_every_ground(theme):
    """And edges of fields and folds are visible."""
    letters = [(ink, ground, least) for ground in GROUNDS for ink, least in LETTERS]
    for ink, ground, least in [*WASHES, *letters, ("own", "tint", READABLE), ("edge", "bg", 3)]:
        assert contrast(rgb(theme[ink]), rgb(theme[ground])) >= least, (ink, ground)


def test_figures_and_pages_have_the_same_colours():
    assert [*style.BEHAVIOURS.values(), style.CUSTOM] == [LIGHT[name] for name in NAMES]
    assert (LIGHT["ink"], LIGHT["soft"]) == (style.INK, style.SOFT)
