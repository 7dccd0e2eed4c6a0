"""A viewer's page, a notebook and a report contain what the model's heads look at, whatever the text."""

import base64
import json
import re
import zlib
from dataclasses import replace
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import tiny
import torch
from commands import command, refusal
from pages import Page, outside_addresses, unlisted
from worded import worded

from analyses import view, viewer
from analyses.behaviours import OURS
from analyses.headlines.head_cards import overview
from analyses.measures.head_tables import Heads
from analyses.viewer import Attention, Called, Passage, Viewer
from analyses.viewer.passages import choose_passages, read_texts
from analyses.viewer.pictures import averaged
from analyses.viewer.viewer_page import frame
from interp import AnnotatedText, InputError, logit_difference, run, sweep
from tests.analyses.headlines.hand_made_tables import hand_made

HOSTILE = ["</script><script>alert(1)</script>", "<!--", "\"'&", "שלום", "👩‍👩‍👧", "x" * 10_000]
TEXT = "The old lady shook her head."
HALF = 0.5 / 255 + 1e-6
HOSTILE += ["\u2028", "\x00\x07", "]]>"]


def data_of(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def attentions(passage: Passage) -> list[dict]:
    return data_of(viewer.page(Viewer((passage,), {}), "?"))["passages"][0]["attentions"]


def shares(attention: dict, layer: int, head: int) -> np.ndarray:
    """What the page's script computes from a packed head."""
    values = np.frombuffer(zlib.decompress(base64.b64decode(attention["kept"][f"{layer}.{head}"])), np.uint8) / 255
    n_queries, n_keys = len(attention["queries"]), len(attention["keys"] or attention["queries"])
    if not attention["causal"]:
        return values.reshape(n_queries, n_keys)
    square = np.zeros((n_queries, n_keys))
    square[np.tril_indices(n_queries)] = values
    return square


def small(packed: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.uint8).reshape(shape)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_page_holds_every_pattern_to_half_a_255th_and_nothing_below_one_percent(name):
    ids = tiny.token_ids(1, 7)
    out = run(tiny.model(name), ids, capture="*.pattern")
    (attention,) = attentions(viewer.passage(out))
    assert attention["queries"] == [str(id) for id in ids[0].tolist()]
    for layer, head in np.ndindex(2, 3):
        exact = out[f"{attention['stack']}.{layer}.attn.pattern"][0, head].numpy()
        np.testing.assert_allclose(shares(attention, layer, head), np.where(exact < 0.01, 0, exact), atol=HALF)
        picture = small(attention["pictures"], (2, 3, 7, 7))[layer, head]
        np.testing.assert_array_equal(picture, np.rint(255 * shares(attention, layer, head)))


def test_next_tokens_are_those_of_the_pass_that_read_the_patterns():
    model = worded()
    read = viewer.read(model, "Tim saw the dog")
    (logits,) = run(model, "Tim saw the dog").logits
    best = logits.softmax(-1).topk(3)
    for row, probabilities, ids in zip(read.following, best.values, best.indices.tolist(), strict=True):
        assert [token for token, _ in row] == [model.tokenizer.label(id) for id in ids]
        assert [percent for _, percent in row] == [round(100 * float(each)) for each in probabilities]
    assert data_of(viewer.page(Viewer((read,), {}), "?"))["passages"][0]["following"][0][0] == [*read.following[0][0]]
    padded = viewer.passage(run(model, ["Tim saw the dog", "He saw"], capture="*.pattern"), 1)
    alone = viewer.read(model, "He saw")  # padding is no part of a passage
    assert (padded.following, padded.attentions[0].queries) == (alone.following, alone.attentions[0].queries)
    np.testing.assert_array_equal(padded.attentions[0].weights, alone.attentions[0].weights)
    stopped = run(model, "Tim saw", until="*.pattern")
    masked = run(tiny.model("bert"), tiny.token_ids(1, 7), capture="*.pattern")
    for silent, why in ((stopped, "the run has no logits"), (masked, "this model reads both ways")):
        result = Viewer((viewer.passage(silent),), {})
        assert not result.passages[0].following
        assert f"No next words: {why}." in " ".join(Page(viewer.page(result, "?")).text.split())


def test_of_an_encoder_decoder_source_and_target_stand_side_by_side():
    model, source, target = tiny.two_stacks("original"), torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[2, 4, 3]])
    out = run(model, source, capture="*.pattern", target=target)
    records = attentions(viewer.passage(out))
    kinds = [("encoder", "self", False), ("decoder", "self", True), ("decoder", "cross", False)]
    assert [(each["stack"], each["attention"], each["causal"]) for each in records] == kinds
    assert (records[2]["queries"], records[2]["keys"]) == (["2", "4", "3"], ["5", "6", "7", "8", "9"])
    best = out.logits[0].softmax(-1).topk(3).indices.tolist()
    following = viewer.passage(out).following
    assert [[token for token, _ in row] for row in following] == [[str(id) for id in ids] for ids in best]
    exact = out["decoder.1.cross_attn.pattern"][0, 3].numpy()
    np.testing.assert_allclose(shares(records[2], 1, 3), np.where(exact < 0.01, 0, exact), atol=HALF)
    assert viewer.address(model, ("decoder", "cross", 1, 3)) == "cross.L1.H3"
    assert viewer.head_named(model, "cross.L1.H3") == ("decoder", "cross", 1, 3)
    with pytest.raises(InputError, match=r"no head 'cross.L2.H0'.*encoder.L0.H0 to encoder.L1.H2"):
        viewer.head_named(model, "cross.L2.H0")


def planted() -> Passage:
    """Layer 0: head 0 looks at the first token, head 1 one back, head 2 at itself; layer 1 is uniform."""
    weights, rows = np.zeros((2, 3, 6, 6), np.uint8), np.arange(6)
    for head, keys in enumerate((0, np.maximum(rows - 1, 0), rows)):
        weights[0, head, rows, keys] = 255
    weights[1] = np.tril(255 // (rows + 1)[:, None] * np.ones(6, int))
    tokens = tuple(f" t{each}" for each in rows)
    return Passage((Attention(Heads("decoder", 2, 3), tokens, tokens, weights),))


def test_heads_that_are_called_something_come_first_then_the_firmest():
    page = viewer.page(Viewer((planted(),), {}), "?")
    (picture,) = re.findall(r"<noscript>(.*?)</noscript>", page, re.DOTALL)
    assert picture.count("<line") == 6  # the clearest head looks one back, the first token at itself
    assert "L0.H1 looks" in picture
    view = Viewer((planted(),), {("decoder", "self", 1, 2): Called("induction", "position")})
    assert view.ordered[:2] == [("decoder", "self", 1, 2), ("decoder", "self", 0, 1)]
    assert {name[2:] for name in view.ordered[-2:]} == {(0, 0), (0, 2)}  # first token and itself are least informative
    assert view.start == ("decoder", "self", 1, 2)


def test_what_a_page_has_no_room_for_is_left_out_last_first_and_said():
    random = np.random.default_rng(0).integers(3, 255, (2, 3, 40, 40), dtype=np.uint8)
    attention = Attention(Heads("decoder", 2, 3), ("x",) * 40, ("x",) * 40, random)
    called = {("decoder", "self", 1, 1): Called("induction"), ("decoder", "self", 0, 2): Called("self")}
    result = Viewer((Passage((attention,)),), called, budget=int(2.5 * len(attention.packed(0, 0))))
    page = viewer.page(result, "?")
    (entry,) = data_of(page)["passages"][0]["attentions"]
    assert {*entry["kept"]} == {"1.1", "0.2"}
    assert entry["pictures"] == ""  # patterns need at least a third
    assert "4 of 6 patterns were left out" in " ".join(page.split())
    whole = viewer.page(Viewer(result.passages, called), "?")
    assert "left out" not in Page(whole).text.split("{")[0]
    (entry,) = data_of(whole)["passages"][0]["attentions"]
    pictures = small(entry["pictures"], (2, 3, 24, 24))
    np.testing.assert_allclose(pictures, averaged(random).clip(max=255), atol=0.5)
    (bare,) = Viewer(result.passages, called, heads=False).data["passages"][0]["attentions"]
    assert bare["pictures"] == ""  # the page has them elsewhere
    assert len(bare["kept"]) == 6


def test_texts_show_as_text_whatever_they_hold(tmp_path):
    words = [word for word in HOSTILE if not word.isspace()]
    model = worded(*words)
    read = viewer.read(model, " ".join(words))
    assert len(read.attentions[0].queries) == len(words)
    for page in (
        viewer.page(Viewer((read,), {("decoder", "self", 0, 0): Called(HOSTILE[0])}), HOSTILE[0], HOSTILE[0]),
        frame(Viewer((read,), {})),
    ):
        tags = [tag for tag, _ in Page(page).tags]
        assert tags.count("script") == (0 if page.startswith("<iframe") else 2)
        assert not outside_addresses(Page(page))
    data = data_of(viewer.page(Viewer((read,), {}), "?"))
    tokens = data["passages"][0]["attentions"][0]["queries"]
    assert tokens[:5] == words[:5]
    assert len(tokens[5]) == 60


def test_nothing_on_the_page_needs_what_its_policy_forbids():
    page = Page(viewer.page(Viewer((planted(),), {}), "?"))
    assert unlisted(page) == []
    script = (Path(viewer.__file__).parent / "viewer.js").read_text()
    assert not re.search(r"eval\(|new Function|innerHTML|document\.write|fetch\(|XMLHttp", script)
    (policy,) = (str(attrs["content"]) for tag, attrs in page.tags if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy


def test_the_command_writes_a_page_and_takes_no_others_place(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("view.html", "view-2.html"):
        code, out, _ = command(capsys, "view", TEXT, "--head", "L2.H5")
        assert (code, out.split(": ")[0]) == (0, f"wrote {name}")
        assert f"{name}#L2.H5" in out
    data = data_of((tmp_path / "view.html").read_text("utf-8"))
    assert data["first"] == {"stack": "decoder", "attention": "self", "layer": 2, "head": 5}
    assert (tmp_path / "view.html").stat().st_size < 60_000
    assert "wrote mine.html: " in command(capsys, "view", TEXT, "--out", "mine")[1]


def test_a_page_of_ours_is_replaced_and_a_file_of_others_where_it_is_told(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.html"
    page.write_text("mine")
    arguments = "view", TEXT, "--out", str(page)
    with monkeypatch.context() as patched:
        patched.setattr("analyses.viewer.read", lambda *_: pytest.fail("it read before it looked"))
        assert "page.html exists, but interp did not write it" in refusal(capsys, *arguments)
    assert page.read_text() == "mine"
    assert command(capsys, *arguments, "--force").code == 0
    assert command(capsys, *arguments).code == 0
    page.rename(tmp_path / "moved.html")
    page.symlink_to("moved.html")
    assert "page.html is a link" in refusal(capsys, *arguments, "--force")
    assert page.is_symlink()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["  "], "got an empty one"),
        (["a", "--head", "L9.H0"], "no head 'L9.H0': this model has L0.H0 to L3.H7"),
        (["a", "--target", "b"], "expected no target"),
        (["a", "b", "c", "--target", "b", "--target", "c"], "one --target for each of 3 texts"),
        (["a", "--labels", "."], "no run.json is in it"),
        (["word " * 50_000], "a text of at most 20 times the context, which holds 256 tokens"),
    ],
)
def test_what_cannot_be_viewed_is_one_line(more, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert expected in refusal(capsys, "view", *more)
    assert not [*tmp_path.iterdir()]


MODEL = worded("</iframe><script>x</script>")


@pytest.fixture(scope="module")
def viewed():
    return run(MODEL, ["Tim saw the </iframe><script>x</script>", "Sue saw"], capture="*.pattern")


def test_a_run_is_shown_in_a_frame_that_reaches_nothing_around_it_or_a_picture_or_kept_as_a_page(viewed, tmp_path):
    result = view(viewed, head="L1.H2")
    (frame,) = Page(result._repr_html_()).tags
    assert frame[0] == "iframe"
    assert frame[1]["sandbox"] == "allow-scripts"
    inside = unescape(re.search(r'srcdoc="(.*?)"', result.html, re.DOTALL)[1])
    assert '"layer":1,"head":2' in inside
    assert inside.count("<script") == 2  # data and ours
    assert repr(result).startswith("View of 6 heads, 2 texts, 6 tokens")
    bundle = result._repr_mimebundle_()
    assert {*bundle} == {"text/html", "image/svg+xml", "text/plain"}
    picture = ElementTree.fromstring(bundle["image/svg+xml"])  # well-formed, whatever the tokens
    assert any("</iframe>" in (each.text or "") for each in picture.iter())
    view(MODEL, "Tim saw", "Sue saw").save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.filterwarnings("ignore:no shares")
@pytest.mark.parametrize("by", [("layer", "head"), ("layer", "head", "position")])
def test_a_sweep_is_shown_as_its_figure_with_its_text(by):
    result = view(sweep(tiny.model("gpt2"), tiny.ragged_pairs(), logit_difference(), by=by))
    texts = [each.text for each in ElementTree.fromstring(result.svg).iter("{http://www.w3.org/2000/svg}text")]
    assert any("logit difference" in (text or "") for text in texts)
    assert result._repr_html_() == result.svg


def test_what_cannot_be_viewed_says_what_to_do(viewed):
    for wrong, expected in [
        (lambda: view(run(MODEL, "Tim saw")), r'no pattern was captured.*capture="\*.pattern"'),
        (lambda: view(run(MODEL, "Tim", "*.1.attn.pattern")), "'decoder.0.attn.pattern' was not captured"),
        (lambda: view(MODEL), r"view\(model, "),
        (lambda: view(viewed, "more"), "expected no texts"),
        (lambda: view(viewed, head="L7.H0"), "no head 'L7.H0'"),
    ]:
        with pytest.raises(InputError, match=expected):
            wrong()


SENTENCE = "Tim saw the dog because He saw Sue"  # 8 words


def sentences(n_sentences: int, sentence: str = SENTENCE) -> AnnotatedText:
    starts = tuple(len(sentence.split()) * number for number in range(n_sentences))
    return replace(AnnotatedText.plain(f"{sentence} " * n_sentences, "d"), sentence_starts=starts)


def lengths(passages) -> list[int]:
    return [len(each.attentions[0].queries) for each in passages]


def test_whole_sentences_that_fit_begin_the_first_texts():
    model, too_short = worded(), sentences(1, "Tim saw")
    assert model.config.n_ctx == 29
    beyond_context = sentences(9)  # its first seven sentences are 56 words
    assert lengths(choose_passages(model, [too_short, sentences(1, "saw " * 61), beyond_context])) == []
    assert lengths(choose_passages(model, [too_short, sentences(3), sentences(1), sentences(2)])) == [24, 8]
    # those with more pronouns come first
    rests = "the dog because Sue saw Tim", "Sue because He saw the dog", "Sue because He saw his dog"
    bare, fewer, more = (sentences(1, f"Tim saw {rest}") for rest in rests)
    passages = choose_passages(worded("his"), [bare, fewer, more])
    assert [each.attentions[0].queries for each in passages] == [more.words, fewer.words]


def test_it_is_told_which_words_a_measure_asks_where_what_it_needs_is_annotated():
    words = ["Sue", "saw", "the", "dog", "because", "Tim", "saw", "Sue"]
    tags = ("PROPN", "VERB", "DET", "NOUN", "SCONJ", "PROPN", "VERB", "PROPN")
    relations = ("nsubj", "root", "det", "obj", "mark", "nsubj", "advcl", "obj")
    text, measures = sentences(1, " ".join(words)), OURS["part-of-speech"].measures
    annotated = replace(text, tags=tags, heads=(1, -1, 3, 1, 6, 6, 1, 6), relations=relations)
    (passage,) = choose_passages(worded(), [annotated], measures)
    assert passage.asking["tag:VERB->PROPN"] == [1, 6]
    assert passage.asking["relation:obj:dependent->head"] == [3, 7]
    assert "relation:obj:head->dependent" not in passage.asking  # objects follow their verbs, which cannot see them
    assert "relation:root:dependent->head" not in passage.asking
    called = {("decoder", "self", 0, 0): Called("object to its verb", "part-of-speech", "relation:obj:dependent->head")}
    (data,) = Viewer((passage,), called).data["passages"]
    assert data["asking"] == {"relation:obj:dependent->head": [3, 7]}
    (bare,) = choose_passages(worded(), [text], measures)
    assert bare.asking == {}


def test_a_typed_text_is_read_and_refused_where_it_cannot_be():
    assert lengths(read_texts(worded(), ["Tim saw the dog"])) == [4]
    assert lengths(read_texts(worded(), ["saw " * 30])) == [29, 1]
    sentences_of_20 = " ".join([*["saw"] * 19, "dog."] * 2)
    assert lengths(read_texts(worded(), [sentences_of_20, "Tim"])) == [20, 20, 1]  # no sentence is cut
    with pytest.raises(InputError, match="at most 20 times the context, which holds 29 tokens"):
        read_texts(worded(), ["saw " * 581])
    with pytest.raises(InputError, match="has no tokenizer"):
        read_texts(tiny.model("gpt2"), ["Tim saw"])
    assert choose_passages(tiny.model("gpt2"), [sentences(1)]) == []


def test_under_the_atlas_heads_are_called_by_their_first_fact_and_the_strongest_is_seen_first():
    _, first = overview(hand_made(), OURS, read_texts(worded(), [SENTENCE]))
    ((viewer,),) = [section.blocks for section in first.below]
    assert isinstance(viewer, Viewer)
    assert not viewer.heads  # the atlas has them
    assert viewer.start == ("decoder", "self", 0, 1)
    assert viewer.called["decoder", "self", 1, 0] == Called("induction", "position", "induction", needed=True)
    assert overview(hand_made(), OURS)[1].below == []
