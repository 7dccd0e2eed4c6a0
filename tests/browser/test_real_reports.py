"""Reports of real models as readers open them: wide and narrow, light and dark, and printed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pages import retold, slips

from analyses import report
from analyses.corpora import read
from analyses.over_training.training_runs import run_of_model
from interp import Model, Transformer
from models import load
from models.initialisation import initialise

pytestmark = pytest.mark.slow
_FIRST_SCREEN = Path(__file__).with_name("first_screen.js").read_text()
_WORDS = 120  # on the first screen
_EXAMPLES = """[...document.querySelectorAll(".fact")].map(fact => ({
    id: fact.id, sentence: !!fact.querySelector(".look"),
    wrong: fact.textContent.includes("Wrong here"),
    right: !!fact.querySelector(".look mark"),
}))"""
_THREE_ATLASES = 10  # more words if a model has two stacks


class Asked(NamedTuple):
    """A model, its text, and further options of its report."""

    model: Callable[[pytest.FixtureRequest], Model]
    text: str
    limit: int
    more: dict[str, Any]


def twelve_by_twelve(request: pytest.FixtureRequest) -> Model:
    """The default's parts in a narrow version of GPT-2 small's shape, with the weights of the first step."""
    default = load("default")
    stack = replace(default.config.last, n_layers=12, n_heads=12, n_kv_heads=None, d_model=96, d_head=8, d_mlp=128)
    model = Transformer(replace(default.config, decoder=stack), default.tokenizer)
    initialise(model, 0)
    return model


def spelling(request: pytest.FixtureRequest) -> Model:
    return load(request.getfixturevalue("shared_file")("models", "spelling-to-phonemes"))


def real(name: str) -> Callable[[pytest.FixtureRequest], Model]:
    return lambda request: load(request.getfixturevalue(name))


_BARE = {"labels": False, "probes": False, "experiments": False, "pairs": 6}
ASKED = {
    "default": Asked(lambda request: load("default"), "tales:12", 12, _BARE),
    "minilm": Asked(real("minilm"), "ud-ewt/en_ewt-ud-dev.conllu", 20, _BARE | {"behaviours": ["part-of-speech"]}),
    "stories260K": Asked(real("stories"), "tales:6", 6, _BARE | {"behaviours": ["position"]}),
    "spelling-to-phonemes": Asked(spelling, "pronunciations", 30, _BARE),
    "12x12": Asked(twelve_by_twelve, "tales:3", 3, _BARE | {"behaviours": ["position"]}),
}


@pytest.fixture(scope="module", params=ASKED)
def file(request, tmp_path_factory, shared_file) -> Path:
    case = ASKED[request.param]
    model = case.model(request)
    if case.text == "pronunciations":
        corpus = read(f"paired:{shared_file('models', 'spelling-to-phonemes', 'pronunciations.tsv')}", case.limit)
    elif case.text.startswith("ud-ewt"):
        corpus = read(shared_file("data", *case.text.split("/")), case.limit)
    else:
        corpus = read(case.text, case.limit)
    out = tmp_path_factory.mktemp("real") / "out"
    # annotation that the text lacks comes from a few tales, not a hundred
    training = run_of_model(request.param, model)  # the default's
    report.build(model, [corpus, read("tales:4")], out, name=request.param, training=training, **case.more)
    return out / "report.html"


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_opens_without_a_fault(browse, file, width, dark):
    window = browse(file, width=width, dark=dark)
    assert (window.errors, window.outside, window.small()) == ([], [], [])
    assert window.overflow() <= 0
    assert window.barriers() == []  # with all folds open
    assert window.overflow() <= 0


def test_it_is_small_and_has_no_slips(file):
    assert file.stat().st_size < 10_000_000
    assert slips(file.read_text("utf-8")) == []
    assert retold(file.read_text("utf-8")) == []


def test_the_first_screen_says_little(browse, file):
    """At 1280x800, before any action, at most 120 words of prose are visible.

    Prose is every word except the marks at the atlas's edges (L0, H0), the words in its cells, and sentences of texts,
    because readers look those up one by one, as on a map.
    """
    page = browse(file).page
    words = page.evaluate(_FIRST_SCREEN, 800)
    prose = [word for kind, word in words if kind in {"said", "name"}]
    most = _WORDS + _THREE_ATLASES * (page.locator("table.atlas").count() > 1)
    assert 10 < len(prose) <= most, prose
    assert {"mark", "text"} <= {kind for kind, _ in words}


def test_it_is_drawn_at_once(browse, file):
    """Time from the first byte to the first paint of everything; only printed, because machines differ."""
    paints = browse(file).page.evaluate(
        "performance.getEntriesByType('paint').map(each => [each.name, each.startTime])"
    )
    print(dict(paints))
    assert {name for name, _ in paints} >= {"first-contentful-paint"}


def test_every_fact_has_an_example_that_shows_it_or_is_said_to_be_wrong(browse, file):
    page = browse(file).page
    facts = page.evaluate(_EXAMPLES)
    assert all(each["sentence"] for each in facts)
    assert all(each["right"] or each["wrong"] for each in facts if each["sentence"])
