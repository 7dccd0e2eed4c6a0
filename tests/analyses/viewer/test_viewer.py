"""What a viewer's page carries is what the model's heads look at, within its budget, whatever a text holds."""

import base64
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from pages import Page, outside_addresses
from worded import worded

from analyses import viewer
from analyses.cli import app as cli
from analyses.tables.head_tables import Heads
from analyses.viewer import Attention, Called, Passage, Viewer
from interp import InputError, StackConfig, Transformer, TransformerConfig, run
from interp.config import LayerNorm

HOSTILE = ["</script><script>alert(1)</script>", "<!--", "\"'&", "שלום", "👩‍👩‍👧", "x" * 10_000]
HOSTILE += ["\u2028", "\x00\x07", "]]>"]


def data_of(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def shares(attention: dict, layer: int, head: int) -> np.ndarray:
    """What the page's script makes of a packed head."""
    found = np.frombuffer(zlib.decompress(base64.b64decode(attention["kept"][f"{layer}.{head}"])), np.uint8) / 255
    n_queries, n_keys = len(attention["queries"]), len(attention["keys"] or attention["queries"])
    if not attention["causal"]:
        return found.reshape(n_queries, n_keys)
    square = np.zeros((n_queries, n_keys))
    square[np.tril_indices(n_queries)] = found
    return square


def translator() -> Transformer:
    """A random encoder-decoder, the decoder of more layers."""
    encoder = StackConfig(2, 12, 3, 4, 7, 9, 13, causal=False, norm=LayerNorm())
    decoder = StackConfig(3, 12, 2, 6, 7, 9, 13, causal=True, norm=LayerNorm(), cross_attention=True)
    built = Transformer(TransformerConfig(decoder=decoder, encoder=encoder, target_start=1))
    tiny.randomise(built)
    return built


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_page_holds_every_pattern_to_half_a_255th_and_nothing_below_one_percent(name):
    ids = tiny.token_ids(1, 7)
    out = run(tiny.model(name), ids, capture="*.pattern")
    (attention,) = data_of(viewer.page(Viewer((viewer.passage(out),), {}), "?"))["passages"][0]["attentions"]
    assert attention["queries"] == [str(id) for id in ids[0].tolist()]
    stack = attention["stack"]
    for layer in range(2):
        for head in range(3):
            exact = out[f"{stack}.{layer}.attn.pattern"][0, head].numpy()
            shown = shares(attention, layer, head)
            assert (shown[exact < 0.01] == 0).all()
            np.testing.assert_allclose(shown[exact >= 0.01], exact[exact >= 0.01], atol=0.5 / 255 + 1e-6)


def test_of_an_encoder_decoder_source_and_target_stand_side_by_side():
    model, source, target = translator(), torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[1, 4, 3]])
    out = run(model, source, capture="*.pattern", target=target)
    found = data_of(viewer.page(Viewer((viewer.passage(out),), {}), "?"))["passages"][0]["attentions"]
    assert [(each["stack"], each["attention"], each["causal"]) for each in found] == [
        ("encoder", "self", False),
        ("decoder", "self", True),
        ("decoder", "cross", False),
    ]
    assert found[2]["queries"] == ["1", "4", "3"]
    assert found[2]["keys"] == ["5", "6", "7", "8", "9"]
    exact = out["decoder.2.cross_attn.pattern"][0, 1].numpy()
    np.testing.assert_allclose(shares(found[2], 2, 1), np.where(exact < 0.01, 0, exact), atol=0.5 / 255 + 1e-6)


def test_padding_is_no_part_of_a_passage():
    model = worded()
    several = run(model, ["Tim saw the dog", "He saw"], capture="*.pattern")
    alone = run(model, "He saw", capture="*.pattern")
    padded, plain = viewer.passage(several, 1).attentions[0], viewer.passage(alone).attentions[0]
    assert padded.queries == plain.queries
    np.testing.assert_array_equal(padded.weights, plain.weights)


def planted(n_tokens: int = 6) -> Attention:
    """Layer 0: head 0 looks at the first token, head 1 one back, head 2 at itself; layer 1 everywhere alike."""
    weights = np.zeros((2, 3, n_tokens, n_tokens), np.uint8)
    at = np.arange(n_tokens)
    weights[0, 0, :, 0] = 255
    weights[0, 1, at, np.maximum(at - 1, 0)] = 255
    weights[0, 2, at, at] = 255
    weights[1] = np.tril(255 // np.arange(1, n_tokens + 1)[:, None] * np.ones(n_tokens, int))
    tokens = tuple(f" t{each}" for each in at)
    return Attention(Heads("decoder", 2, 3), tokens, tokens, weights)


def test_heads_that_are_called_something_come_first_then_the_firmest():
    page = viewer.page(Viewer((Passage((planted(),)),), {}), "?")
    (picture,) = re.findall(r"<noscript>(.*?)</noscript>", page, re.DOTALL)  # where no script runs
    assert picture.count("<line") == 6  # the firmest head looks one back, and the first token at itself
    assert "L0.H1 looks" in picture
    named = Viewer((Passage((planted(),)),), {("decoder", "self", 1, 2): Called("induction", "position")})
    assert named.ordered[:2] == [("decoder", "self", 1, 2), ("decoder", "self", 0, 1)]
    assert {name[2:] for name in named.ordered[-2:]} == {(0, 0), (0, 2)}  # first token and itself tell least
    assert named.start == ("decoder", "self", 1, 2)


def test_what_a_page_has_no_room_for_is_left_out_last_first_and_said():
    random = np.random.default_rng(0).integers(3, 255, (2, 3, 40, 40), dtype=np.uint8)
    attention = Attention(Heads("decoder", 2, 3), ("x",) * 40, ("x",) * 40, random)
    one = len(attention.packed(0, 0))
    called = {("decoder", "self", 1, 1): Called("induction"), ("decoder", "self", 0, 2): Called("self")}
    seen = Viewer((Passage((attention,)),), called, budget=int(2.5 * one))
    page = viewer.page(seen, "?")
    (found,) = data_of(page)["passages"][0]["attentions"]
    assert {*found["kept"]} == {"1.1", "0.2"}
    assert "4 of 6 patterns were left out" in " ".join(page.split())
    assert sum(map(len, found["kept"].values())) <= seen.budget
    whole = viewer.page(Viewer(seen.passages, called), "?")
    assert "left out" not in Page(whole).text.split("{")[0]


def test_texts_show_as_text_whatever_they_hold(tmp_path):
    words = [word for word in HOSTILE if not word.isspace()]
    model = worded(*words)
    read = viewer.read(model, " ".join(words))
    assert len(read.attentions[0].queries) == len(words)
    for page in (
        viewer.page(Viewer((read,), {("decoder", "self", 0, 0): Called(HOSTILE[0])}), HOSTILE[0], HOSTILE[0]),
        viewer.frame(Viewer((read,), {})),
    ):
        tags = [tag for tag, _ in Page(page).tags]
        assert tags.count("script") == (0 if page.startswith("<iframe") else 2)
        assert not outside_addresses(Page(page))
    held = data_of(viewer.page(Viewer((read,), {}), "?"))
    shown = held["passages"][0]["attentions"][0]["queries"]
    assert shown[:5] == words[:5]
    assert len(shown[5]) == 60


def test_nothing_on_the_page_needs_what_its_policy_forbids():
    page = viewer.page(Viewer((Passage((planted(),)),), {}), "?")
    for tag, attributes in Page(page).tags:
        assert not {name for name in attributes if name.startswith("on")} | ({"style"} & attributes.keys()), tag
    assert not re.search(
        r"eval\(|new Function|innerHTML|document\.write|fetch\(|XMLHttp",
        (Path(viewer.__file__).parent / "viewer.js").read_text(),
    )
    (policy,) = (str(attrs["content"]) for tag, attrs in Page(page).tags if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy


def test_a_head_is_called_by_its_best_label():
    rows = [("attention", 0.9, "self", "position"), ("both", 0.2, "induction", "position"), ("effect", 0.8, "x", "y")]
    table = pd.DataFrame(
        [("decoder", "self", 1, 2, label, evidence, gain, behaviour) for evidence, gain, label, behaviour in rows],
        columns=["stack", "attention", "layer", "head", "label", "evidence", "gain", "behaviour"],
    )
    assert viewer.labelled(table) == {
        ("decoder", "self", 1, 2): Called("induction", "position", "induction", needed=True)
    }
    with pytest.raises(InputError, match="without evidence"):
        viewer.labelled(table.drop(columns="evidence"))


def test_heads_have_addresses():
    model = translator()
    assert viewer.address(model, ("decoder", "cross", 2, 1)) == "cross.L2.H1"
    assert viewer.head_named(model, "cross.L2.H1") == ("decoder", "cross", 2, 1)
    assert viewer.head_named(tiny.model("gpt2"), "L1.H2") == ("decoder", "self", 1, 2)
    with pytest.raises(InputError, match=r"no head 'cross.L3.H0'.*encoder.L0.H0 to encoder.L1.H2"):
        viewer.head_named(model, "cross.L3.H0")


def test_a_run_without_its_patterns_says_what_to_capture():
    for capture, expected in (
        ("*.z", "no pattern was"),
        ("decoder.1.attn.pattern", r"'decoder.0.attn.pattern' was not"),
    ):
        with pytest.raises(InputError, match=f"{expected} captured"):
            viewer.passage(run(tiny.model("gpt2"), tiny.token_ids(1, 5), capture=capture))


# The command.


def test_the_command_writes_a_page_and_takes_no_others_place(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("view.html", "view-2.html"):
        with pytest.raises(SystemExit) as ended:
            cli.main(["view", "The old lady shook her head.", "--head", "L2.H5"])
        assert not ended.value.code
        said = capsys.readouterr().out
        assert said.startswith(f"wrote {name}: ")
        assert f"{name}#L2.H5" in said
    data = data_of((tmp_path / "view.html").read_text("utf-8"))
    assert data["first"] == {"stack": "decoder", "attention": "self", "layer": 2, "head": 5}
    assert len([*tmp_path.iterdir()]) == 2
    assert (tmp_path / "view.html").stat().st_size < 60_000


def test_a_page_of_ours_is_replaced_and_a_file_of_others_where_it_is_told(tmp_path, monkeypatch, capsys):
    def written(*more: str) -> bool:
        with pytest.raises(SystemExit) as ended:
            cli.main(["view", "The old lady shook her head.", "--out", str(page), *more])
        return not ended.value.code

    page = tmp_path / "page.html"
    page.write_text("mine")
    with monkeypatch.context() as patched:
        patched.setattr("analyses.viewer.read", lambda *_: pytest.fail("it read before it looked"))
        assert not written()
        assert "page.html is there, and interp did not write it" in capsys.readouterr().err
    assert page.read_text() == "mine"
    assert written("--force")
    assert written()
    page.rename(tmp_path / "moved.html")
    page.symlink_to("moved.html")
    assert not written("--force")
    assert "page.html is a link" in capsys.readouterr().err
    assert page.is_symlink()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([""], "got an empty one"),
        (["  "], "got an empty one"),
        (["a", "--head", "L9.H0"], "no head 'L9.H0': this model has L0.H0 to L3.H7"),
        (["a", "--target", "b"], "expected no target"),
        (["a", "b", "c", "--target", "b", "--target", "c"], "one --target for each of 3 texts"),
        (["a", "--labels", "."], "no run.json is in it"),
        (["a", "--labels", "x" * 300], "no directory can be called so"),
        (["a", "--out", "."], "is a directory"),
        (["a", "--out", "/proc/x"], "cannot write /proc/x"),
        (["word " * 5000], "longer than the model's context of 256"),
    ],
)
def test_what_cannot_be_viewed_is_one_line(more, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["view", *more])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    assert not [*tmp_path.iterdir()]
