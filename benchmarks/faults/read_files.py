"""Which files are read, and what is right of what was read? A small good file of each kind, and its reader.

A reader raises where what it was given is refused, and where what it gives cannot be.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import models as backends
from tokenizers import pre_tokenizers, processors

from analyses import corpora, runs
from analyses.provenance import recorded
from analyses.report import output
from interp import AnnotatedText, StackConfig, Tokenizer, Transformer, TransformerConfig
from interp.config import Gated, RMSNorm, Rotary
from interp.finite import check_finite
from interp.initialisation import initialise
from interp.patching.pair_files import read_columns
from interp.training import record, state, token_arrays
from models import load, save
from models.recipes import read as read_recipe
from models.recipes.pair_sources import Paired
from models.recipes.text_sources import Generated, Kept, Text


@dataclass(frozen=True)
class Reader:
    """A kind of file: `make` writes a good one into a folder, with what belongs beside it, and `read` reads it."""

    file: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    writes: bool = False  # whether to read it changes other files, which are to be good ones the next time


def _word(number: int, form: str, tag: str, head: int, relation: str, misc: str = "_") -> str:
    return f"{number}\t{form}\t{form.lower()}\t{tag}\tX\tNumber=Sing|Case=Nom\t{head}\t{relation}\t_\t{misc}"


_CONLLU = "\n".join(
    (
        *("# newdoc id = weblog-1", "# sent_id = weblog-1-0001", "# text = The cat didn't sleep."),
        *(_word(1, "The", "DET", 2, "det"), _word(2, "cat", "NOUN", 5, "nsubj")),
        "3-4\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_",
        *(_word(3, "did", "AUX", 5, "aux"), _word(4, "n't", "PART", 5, "advmod")),
        *(_word(5, "sleep", "VERB", 0, "root", "SpaceAfter=No"), "5.1\tit\tit\tPRON\t_\t_\t_\t_\t5:obj\t_"),
        *(_word(6, ".", "PUNCT", 5, "punct"), "", "# sent_id = weblog-1-0002"),
        *(_word(1, "Dogs", "NOUN", 2, "nsubj"), _word(2, "bark", "VERB", 0, "root"), "", ""),
    )
)
_GUM = (
    "\n".join(
        (
            *("# newdoc id = GUM_news_one", "# global.Entity = GRP-etype-infstat-minspan-link-identity"),
            *("# sent_id = GUM_news_one-1", "# text = Ann saw Bob and his dog"),
            *(_word(1, "Ann", "PROPN", 2, "nsubj", "Entity=(1-person-new-1-sgl)"), _word(2, "saw", "VERB", 0, "root")),
            _word(3, "Bob", "PROPN", 2, "obj", "Entity=(2-person-new-1,4-coref(3-person[1/2]-new-1-coref)"),
            *(_word(4, "and", "CCONJ", 6, "cc"), _word(5, "his", "PRON", 6, "nmod:poss", "Entity=(4-animal-new-2(3)")),
            *(_word(6, "dog", "NOUN", 3, "conj", "SpaceAfter=No|Entity=4)2)"), "", ""),
        )
    )
    .replace("(3-person[1/2]-new-1-coref)", "(3[1/2]-person-new-1-coref3[1/2])")
    .replace("(3)", "(3[2/2]-person)")
)
_LITBANK = "\n".join(
    (
        "#begin document (105_persuasion); part 0",
        *(
            "\t".join(("105_persuasion", "0", str(at), word, *"-" * 8, chain))
            for at, (word, chain) in enumerate(
                (("Sir", "(3"), ("Walter", "3)"), ("saw", "_"), ("his", "(4|(3)"), ("house", "4)"), (".", "_"))
            )
        ),
        *("", "\t".join(("105_persuasion", "0", "0", "He", *"-" * 8, "(3)")), "#end document", ""),
    )
)
_GAP_COLUMNS = [
    "ID",
    "Text",
    "Pronoun",
    "Pronoun-offset",
    "A",
    "A-offset",
    "A-coref",
    "B",
    "B-offset",
    "B-coref",
    "URL",
]
_GAP_ROW = ("Ann met Eve before she left.", "she", "19", "Ann", "0", "TRUE", "Eve", "8", "FALSE")
_GAP = "".join(
    "\t".join(row) + "\n"
    for row in (
        _GAP_COLUMNS,
        *((f"development-{at}", *_GAP_ROW, f"http://en.wikipedia.org/wiki/Page_{at}") for at in (1, 2, 3)),
    )
)
_WINOBIAS = (
    "1 [The developer] argued with the designer because [she] did not like the design.\n"
    "2 The developer argued with [the designer] because [his] idea cannot be implemented.\n"
    "3 [The mechanic] greeted the receptionist because [he] was standing in front of the door.\n"
    "4 The mechanic greeted [the receptionist] because [she] was in a good mood.\n"
)
_WINOGENDER = (
    "sentid\tsentence\n"
    "technician.customer.1.male.txt\tThe technician told the customer that he could pay with cash.\n"
    "technician.someone.0.female.txt\tThe technician told someone that she had finished.\n"
)
_TEMPLATES = (
    "occupation(0)\tother-participant(1)\tanswer\tsentence\n"
    "technician\tcustomer\t1\tThe $OCCUPATION told the $PARTICIPANT that $NOM_PRONOUN could pay with cash.\n"
)
_PLAIN = "Call me Ishmael. Some years ago,\nnever mind how long.\n\nThere is a “damp” November in my soul.\n"
_PAIRED = "word\tphonemes\ncat\tK AE1 T\ndog\tD AO1 G\nbird\tB ER1 D\nfish\tF IH1 SH\n"
_PAIRS_CSV = 'clean,corrupt,answer,wrong,position:name\n"The king, tired","The queen, tired",he,she,1\n"A","B",c,d,A\n'
_RECIPE = """[model]
kind = "decoder"
n_layers = 1
d_model = 8
n_heads = 2
d_mlp = 8
n_ctx = 16
norm = "RMSNorm"
positions = { kind = "Rotary", base = 10_000.0 }
initial = "unit"
[tokenizer]
d_vocab = 300
[data.tales]
kind = "generated"
name = "tales"
count = 20
held_out = 0.05
[data.repeats]
kind = "repeats"
[training]
seed = 0
learning_rate = 2e-3
warmup = 2
snapshot_at = [1, 4]
[[phases]]
steps = 4
rows = 2
row = 16
[phases.mix]
tales = 0.5
repeats = 0.5
"""


def check(text: AnnotatedText) -> None:
    """What holds of every text that was read.

    Raises:
        AssertionError: it does not.
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


def _corpus(name: str, content: str, *kinds: str) -> Reader:
    def read(folder: Path) -> None:
        for spec in kinds or (f"{folder / name}",):
            for text in corpora.read(spec.replace("PATH", str(folder / name))):
                check(text)

    return Reader(name, lambda folder: (folder / name).write_text(content, "utf-8"), read)


def tokenizer() -> Tokenizer:
    """A few words; every text starts with <s>."""
    words = ["<s>", "<unk>", *(f"w{at}" for at in range(20))]
    backend = Backend(backends.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
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
    made = Transformer(TransformerConfig(decoder=stack, output="untied"), tokenizer())
    initialise(made, 0)
    return made


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
    found = load(folder)
    check_finite(found)
    if found.tokenizer is not None:
        found.tokenizer.encode("w1 w2")


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
    found = runs.read(folder / "run")
    repr(found)
    for name in found.tables:
        pd.testing.assert_frame_equal(found.table(name), _TABLE)
    joined = runs.join([found])
    joined.about()
    for name in joined.tables:
        joined.table(name)


def _replaced_run(folder: Path) -> None:
    """A run is written over one whose record is damaged; only it may be gone afterwards."""
    (folder / "mine").write_text("mine")
    with output.writing(folder / "run") as out:
        out.text("report.html", "new")
        out.run({})
    assert (folder / "mine").read_text() == "mine", "what lies beside was changed"


_TENSORS = {"weights/a": torch.arange(6.0).reshape(2, 3), "moments/a/step": torch.tensor(3.0)}
_FACTS = {"step": 3, "made_of": {"tokenizer": "abc"}}


def _same_state(folder: Path) -> None:
    """A state is as it was written, or refused."""
    found = state.read(folder / state.FILE)
    assert dict(found.facts) == _FACTS, "other facts than were written"
    assert found.tensors.keys() == _TENSORS.keys(), "other tensors than were written"
    assert all(torch.equal(found.tensors[name], value) for name, value in _TENSORS.items()), "other numbers"


_DOCUMENTS = [token_arrays.Document("one", "w1 w2 w3 w4 " * 20), token_arrays.Document("two", "w5 w6 " * 9)]


def _same_tokens(folder: Path) -> None:
    """An array is used as it was written, or made anew."""
    found = token_arrays.tokenize(_DOCUMENTS, tokenizer(), folder / "text.tokens", "these")
    expected = [id for each in _DOCUMENTS for id in (0, *(1 + int(word[1:]) + 1 for word in each.text.split()))]
    assert found.tokens.tolist() == expected, "other tokens than the text's"
    assert list(found.names) == ["one", "two"], "other names than the texts'"


def _record(folder: Path) -> None:
    with_sample = [{"step": step, "held_out/loss": 1.0 / step, "sample": "w1 w2"} for step in (1, 2, 3)]
    (folder / record.METRICS).write_text("".join(f"{json.dumps(line)}\n" for line in with_sample))


def _texts(folder: Path) -> None:
    kind = Text(str(folder / "novel.txt"))
    kind.digest()
    for held_out in (False, True):
        assert all(isinstance(each.text, str) for each in kind.documents(held_out=held_out))


def _paired(folder: Path) -> None:
    Paired(str(folder / "pairs.tsv"), held_out=0.0).digest()


def _same_texts(folder: Path) -> None:
    """Generated texts are as they were written, or refused; they are written where there are none."""
    source = Generated("stories", 3, seed=1)
    found = [each.text for each in Kept(source, folder / "stories.texts").documents(held_out=False)]
    assert found == [each.text for each in source.every()], "other texts than were written"


def _writes(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content, "utf-8")


def _model(file: str, make: Callable[[Path], object] = lambda folder: save(model(), folder, "llama")) -> Reader:
    return Reader(file, make, _loaded)


READERS: Mapping[str, Reader] = {
    "CoNLL-U": _corpus("ewt.conllu", _CONLLU, "PATH", "conllu:PATH"),
    "GUM": _corpus("gum.conllu", _GUM, "PATH", "gum:PATH"),
    "LitBank": _corpus("persuasion.conll", _LITBANK, "PATH", "litbank:PATH"),
    "GAP": _corpus("gap-development.tsv", _GAP, "PATH", "gap:PATH"),
    "WinoBias": _corpus("pro_stereotyped_type1.txt.dev", _WINOBIAS, "PATH", "winobias:PATH"),
    "Winogender": _corpus("all_sentences.tsv", _WINOGENDER, "PATH", "winogender:PATH"),
    "Winogender's templates": _corpus("templates.tsv", _TEMPLATES, "winogender:PATH"),
    "two columns": _corpus("paired-words.tsv", _PAIRED, "PATH", "paired:PATH"),
    "plain text": _corpus("plain.txt", _PLAIN, "text:PATH", "lines:PATH"),
    "pairs to patch": Reader(
        "pairs.csv", _writes("pairs.csv", _PAIRS_CSV), lambda folder: read_columns(folder / "pairs.csv")
    ),
    "recipe": Reader(
        "recipe.toml",
        _writes("recipe.toml", _RECIPE),
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
    "metrics of a training": Reader(record.METRICS, _record, record.read),
    "training text": Reader("novel.txt", _writes("novel.txt", _PLAIN), _texts),
    "training pairs": Reader("pairs.tsv", _writes("pairs.tsv", _PAIRED), _paired),
}
"""Every kind of file that is read back or comes from others, by what it is called on a page."""
