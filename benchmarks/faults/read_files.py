"""Which files are read, and which results are valid? A small good file of each kind, and its reader.

A reader raises if it refuses its input, or if its result is invalid.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import models as backends
from tokenizers import pre_tokenizers, processors

from analyses import corpora, runs
from analyses.execution import output
from analyses.execution.provenance import recorded
from interp import AnnotatedText, StackConfig, Tokenizer, Transformer, TransformerConfig
from interp.config import Gated, RMSNorm, Rotary
from interp.patching.pair_files import read_columns
from interp.running import check_finite
from interp.training import state, token_arrays
from models import load, save
from models.initialisation import initialise
from models.recipes import read as read_recipe
from models.recipes.text_sources import Generated, Paired, StoredTexts, Text

SAMPLES = Path(__file__).parent / "samples"


@dataclass(frozen=True)
class Reader:
    """A kind of file: `make` writes a good one and its companions into a folder, and `read` reads it."""

    file: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    writes: bool = False  # whether reading changes other files, which must then be restored


def check(text: AnnotatedText) -> None:
    """Check what holds for every text that was read.

    Raises:
        AssertionError: something does not hold.
    """
    n_words, spelled = len(text.words), text.text
    assert n_words, "a text without words"
    assert all(word in spelled for word in text.words), "words that the text does not have"
    for name in ("space_after", "tags", "heads", "relations", "lemmas", "xpos", "feats", "misc"):
        column = getattr(text, name)
        assert column is None or len(column) == n_words, f"{name} is not as long as the text"
    assert all(-1 <= head < n_words for head in text.heads or ()), "a head outside the text"
    for mention in text.mentions or ():
        assert 0 <= mention.start <= mention.head < mention.end <= n_words, "a mention outside the text"
    assert all(0 <= start < n_words for start in text.sentence_starts or ()), "a sentence outside the text"


def _copies(name: str) -> Callable[[Path], object]:
    """A function that copies the named sample into a folder."""
    return lambda folder: shutil.copy(SAMPLES / name, folder)


def _rows(folder: Path) -> None:
    words = [line.split() for line in (SAMPLES / "plain.txt").read_text("utf-8").splitlines()]
    rows = pd.DataFrame({"words": words, "tags": [["X"] * len(each) for each in words], "document": "d"})
    rows.to_parquet(folder / "rows.parquet")
    rows.to_json(folder / "rows.jsonl", orient="records", lines=True)
    packed = pa.compress((folder / "rows.jsonl").read_bytes(), "zstd", asbytes=True)
    (folder / "rows.jsonl.zst").write_bytes(packed)


def _corpus(name: str, *kinds: str, make: Callable[[Path], object] | None = None) -> Reader:
    def read(folder: Path) -> None:
        for spec in kinds:
            for text in corpora.read(spec.replace("PATH", str(folder / name))):
                check(text)

    return Reader(name, make or _copies(name), read)


def tokenizer() -> Tokenizer:
    """A few words; every text starts with <s>."""
    words = ["<s>", "<unk>", *(f"w{number}" for number in range(20))]
    backend = Backend(backends.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<s>"])
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    return Tokenizer(backend)


def model() -> Transformer:
    """A decoder of one layer, with random weights."""
    stack = StackConfig(
        n_layers=1,
        d_model=8,
        n_heads=2,
        d_head=4,
        d_mlp=8,
        n_ctx=16,
        d_vocab=22,
        causal=True,
        norm=RMSNorm(1e-5),
        positions=Rotary(),
        mlp=Gated("silu"),
        attention_bias=False,
    )
    transformer = Transformer(TransformerConfig(decoder=stack, output="untied"), tokenizer())
    initialise(transformer, 0)
    return transformer


def _sharded(folder: Path) -> None:
    save(model(), folder, "llama")
    whole = folder / "model.safetensors"
    tensors = load_file(whole)
    halves = [names := sorted(tensors), names[::2]]
    shards = {name: f"model-0000{1 + (name in halves[1])}-of-00002.safetensors" for name in names}
    for shard in set(shards.values()):
        save_file({name: tensors[name] for name in names if shards[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}, indent=1))
    whole.unlink()


def _loaded(folder: Path) -> None:
    loaded = load(folder)
    check_finite(loaded)
    if loaded.tokenizer is not None:
        loaded.tokenizer.encode("w1 w2")


_TABLE = pd.DataFrame({"layer": [0, 1], "head": [1, 0], "measure": ["previous-token", "offset:-2"], "n": [3, 4]})


def _write_run(folder: Path) -> None:
    with output.writing(folder / "run") as out:
        out.table("heads", _TABLE)
        out.run(
            {
                **recorded(command="interp report", seed=0, seconds=1.0, stages={"reading": 1.0}),
                "name": "m",
                "corpora": [],
            }
        )


def _run_read(folder: Path) -> None:
    run = runs.read(folder / "run")
    repr(run)
    for name in run.tables:
        pd.testing.assert_frame_equal(run.table(name), _TABLE)
    joined = runs.join([run])
    joined.about()
    for name in joined.tables:
        joined.table(name)


def _replaced_run(folder: Path) -> None:
    """Write a run over one with a damaged record; only that run may disappear."""
    (folder / "mine").write_text("mine")
    with output.writing(folder / "run") as out:
        out.text("report.html", "new")
        out.run({})
    assert (folder / "mine").read_text() == "mine", "what lies beside was changed"


_TENSORS = {"weights/a": torch.arange(6.0).reshape(2, 3), "moments/a/step": torch.tensor(3.0)}
_FACTS = {"step": 3, "made_of": {"tokenizer": "abc"}}


def _same_state(folder: Path) -> None:
    """A state is unchanged or refused."""
    stored = state.read(folder / state.FILE)
    assert dict(stored.facts) == _FACTS, "other facts than were written"
    assert stored.tensors.keys() == _TENSORS.keys(), "other tensors than were written"
    assert all(torch.equal(stored.tensors[name], value) for name, value in _TENSORS.items()), "other numbers"


_DOCUMENTS = [token_arrays.Document("one", "w1 w2 w3 w4 " * 20), token_arrays.Document("two", "w5 w6 " * 9)]


def _same_tokens(folder: Path) -> None:
    """An array is used unchanged, or rebuilt."""
    array = token_arrays.tokenize(_DOCUMENTS, tokenizer(), folder / "text.tokens", "these")
    expected = [id for each in _DOCUMENTS for id in (0, *(1 + int(word[1:]) + 1 for word in each.text.split()))]
    assert array.tokens.tolist() == expected, "other tokens than the text's"
    assert list(array.names) == ["one", "two"], "other names than the texts'"


def _record(folder: Path) -> None:
    with_sample = [{"step": step, "held_out/loss": 1.0 / step, "sample": "w1 w2"} for step in (1, 2, 3)]
    (folder / state.METRICS).write_text("".join(f"{json.dumps(line)}\n" for line in with_sample))


def _texts(folder: Path) -> None:
    kind = Text(str(folder / "plain.txt"))
    kind.digest()
    for held_out in (False, True):
        assert all(isinstance(each.text, str) for each in kind.documents(held_out=held_out))


def _paired(folder: Path) -> None:
    Paired(str(folder / "paired-words.tsv"), held_out=0.0).digest()


def _same_texts(folder: Path) -> None:
    """Generated texts are unchanged or refused; missing ones are written."""
    source = Generated("stories", 3, seed=1)
    texts = [each.text for each in StoredTexts(source, folder / "stories.texts").documents(held_out=False)]
    assert texts == [each.text for each in source.generate()], "other texts than were written"


def _model(file: str, make: Callable[[Path], object] = lambda folder: save(model(), folder, "llama")) -> Reader:
    return Reader(file, make, _loaded)


READERS: Mapping[str, Reader] = {
    "CoNLL-U": _corpus("ewt.conllu", "PATH", "conllu:PATH"),
    "GUM": _corpus("gum.conllu", "PATH", "gum:PATH"),
    "LitBank": _corpus("persuasion.conll", "PATH", "litbank:PATH"),
    "GAP": _corpus("gap-development.tsv", "PATH", "gap:PATH"),
    "WinoBias": _corpus("pro_stereotyped_type1.txt.dev", "PATH", "winobias:PATH"),
    "Winogender": _corpus("all_sentences.tsv", "PATH", "winogender:PATH"),
    "two columns": _corpus("paired-words.tsv", "PATH", "paired:PATH"),
    "JSON Lines": _corpus("rows.jsonl", "PATH", "jsonl:PATH", make=_rows),
    "JSON Lines, packed": _corpus("rows.jsonl.zst", "PATH", "jsonl:PATH", make=_rows),
    "Parquet": _corpus("rows.parquet", "PATH", "parquet:PATH", make=_rows),
    "plain text": _corpus("plain.txt", "text:PATH", "lines:PATH"),
    "pairs to patch": Reader("pairs.csv", _copies("pairs.csv"), lambda folder: read_columns(folder / "pairs.csv")),
    "recipe": Reader(
        "recipe.toml",
        _copies("recipe.toml"),
        lambda folder: read_recipe(folder / "recipe.toml", {"phases.0.steps": 3}).resolved(),
    ),
    "config.json": _model("config.json"),
    "safetensors": _model("model.safetensors"),
    "index of shards": _model("model.safetensors.index.json", _sharded),
    "tokenizer.json": _model("tokenizer.json"),
    "tokenizer_config.json": _model("tokenizer_config.json"),
    "run.json": Reader("run/run.json", _write_run, _run_read),
    "run.json, replaced": Reader("run/run.json", _write_run, _replaced_run, writes=True),
    "table of a run": Reader("run/tables/heads.parquet", _write_run, _run_read),
    "state of a training": Reader(
        state.FILE, lambda folder: state.write(folder / state.FILE, state.State(_TENSORS, _FACTS)), _same_state
    ),
    "token array": Reader("text.tokens", _same_tokens, _same_tokens, writes=True),
    "note of a token array": Reader("text.tokens.json", _same_tokens, _same_tokens, writes=True),
    "generated texts": Reader("stories.texts", _same_texts, _same_texts),
    "metrics of a training": Reader(state.METRICS, _record, state.read_metrics),
    "training text": Reader("plain.txt", _copies("plain.txt"), _texts),
    "training pairs": Reader("paired-words.tsv", _copies("paired-words.tsv"), _paired),
}
"""Every kind of file that we read back or get from others, by its name on a page."""
