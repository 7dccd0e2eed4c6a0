"""A corpus: a stream of annotated texts that can be read several times, from files or from a generator.

Only the current text is in memory. Each corpus is read once for all questions that it serves.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar
from warnings import warn

from analyses.corpora import chains, conllu, reader
from analyses.corpora import pronoun_choices as choices
from analyses.corpora import text_rows as rows
from analyses.corpora.reader import Format, begins, has_columns
from interp.annotation import AnnotatedText
from interp.bounded_files import check_name, is_file, lines, opened
from interp.errors import InputError, InputWarning
from models.huggingface.model_files import files_digest
from models.stories import GENERATORS

_FORMATS = (
    Format("conllu", "CoNLL-U", "*.conllu", conllu.recognises, conllu.parse),
    Format("gum", "GUM (CoNLL-U with Entity)", "*.conllu", begins(f"# {chains.ORDER}"), chains.gum),
    Format("litbank", "LitBank (CoNLL-2012 columns)", "*.conll", begins("#begin document"), chains.litbank),
    Format("gap", "GAP", "gap-*.tsv", has_columns(choices.GAP), choices.gap),
    Format("winogender", "Winogender", "all_sentences.tsv", has_columns(choices.WINOGENDER), choices.winogender),
    Format("winobias", "WinoBias", "*_stereotyped_type?.txt.*", choices.is_winobias, choices.winobias),
    Format("jsonl", "JSON Lines", "*.jsonl", begins("{"), rows.parse),
    Format("paired", "two columns of source and target", "paired-*.tsv", reader.has_two_columns, reader.paired),
    Format("parquet", "Parquet", "*.parquet", begins(rows.MAGIC), rows.parse, records=rows.parquet, unit="row"),
    Format("text", "plain text in paragraphs", "*.txt", None, reader.paragraphs, whole_files=True),
    Format("lines", "plain text in lines", "*.txt", None, reader.one_a_line, whole_files=True),
)
FORMATS = {each.kind: each for each in _FORMATS}
"""The file formats of `read`, by kind."""
_RECOGNISED = [each for each in _FORMATS if each.recognises]  # by content
_PLAIN = "text:PATH reads plain text by paragraphs, lines:PATH line by line"
GENERATED = "tales:100"  # generated text, if no corpus is given or none has the annotation
_COUNT, _SEED = 300, 1
# ten million texts take hours to generate, and seeds must fit in 64 bits
_PARAMETERS = re.compile(r"(?:([1-9][0-9]{0,6})(?::([0-9]{1,18}))?)?", re.ASCII)
_HASHED = 100  # texts to hash, so a generated corpus's digest changes with its grammar
_CALLED = {"tags": "tags", "relations": "dependencies", "chains": "coreference chains", "targets": "targets"}
Text = TypeVar("Text")


@dataclass(frozen=True)
class Corpus:
    """Texts from one source. Every iteration streams them anew; a malformed line then raises an `InputError`."""

    name: str  # a path or "stories:300:1", with changes: "stories:300:1, first 20"
    kind: str  # a key of FORMATS or GENERATORS, "datasets", "rows" (`from_rows`), or "joined" (several kinds)
    annotates: frozenset[str]  # what the first text has of "tags", "relations", "chains" and "targets"
    digest: str  # SHA-256 of the files' bytes, a data set's commit, a generator's first texts, or the rows
    source: Callable[[], Iterator[AnnotatedText]] = field(repr=False)
    files: tuple[Path, ...] = field(default=(), repr=False)  # empty for a generator

    def __iter__(self) -> Iterator[AnnotatedText]:
        return self.source()

    @property
    def title(self) -> str:
        """The corpus's name in a sentence."""
        return f"generated {self.kind} ({self.name})" if self.kind in GENERATORS else self.name

    def head(self, n: int) -> "Corpus":
        """The first `n` texts, at least one.

        As with `map` and `filter`, name and digest record the change, and the first text is read immediately.
        """
        if n < 1:
            raise InputError(f"head({n}): expected at least one text")
        return self._changed(f"first {n}", lambda: islice(self, n))

    def filter(self, keep: Callable[[AnnotatedText], bool], *, name: str | None = None) -> "Corpus":
        """The texts for which `keep` is true; at least one must remain.

        `name` is required: it stands for `keep` in the corpus's name and digest, so it must change with what `keep`
        does, like f"longer than {n}".
        """
        change = f"filter {_named(name, 'filter')}"
        return self._changed(change, lambda: (text for text in self if keep(text)))

    def map(self, change: Callable[[AnnotatedText], AnnotatedText], *, name: str | None = None) -> "Corpus":
        """Each text as `change` returns it; texts stay in one document as long as `change` keeps its name.

        `name` is required, as in `filter`.
        """
        title = f"map {_named(name, 'map')}"

        def changed() -> Iterator[AnnotatedText]:
            for text in map(change, self):
                if not isinstance(text, AnnotatedText):
                    raise InputError(f"{title}: expected an AnnotatedText back, got {type(text).__name__}")
                yield text

        return self._changed(title, changed)

    def _changed(self, change: str, source: Callable[[], Iterator[AnnotatedText]]) -> "Corpus":
        name, first = f"{self.name}, {change}", next(source(), None)
        if first is None:
            raise InputError(f"{name}: no text is left; expected at least one")
        digest = hashlib.sha256(f"{self.digest}\n{change}".encode()).hexdigest()
        return replace(self, name=name, annotates=annotations(first), digest=digest, source=source)


def read(spec: str | Path, limit: int | None = None) -> Corpus:
    """Open a corpus. Its first text is read immediately, so most mistakes show here.

    Args:
        spec: a file or a directory, whose format is recognised by content or forced as `gum:PATH` (any of `FORMATS`;
            required for plain text: `text:PATH` is one text per paragraph, `lines:PATH` one text per line);
            or `datasets:NAME:CONFIG:SPLIT`, streamed from the hub or a folder (`text_rows.stream`);
            or generated `stories`, `stories:COUNT`, `stories:COUNT:SEED` (by default 300 and seed 1), and likewise
            `tales`, `portraits`, `sentences` and `new-sentences`. From a directory, files named like the format are
            read, sorted by name.
        limit: read at most this many texts. The digest is still that of the whole.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit}: expected at least one text, or None for all")
    path = Path(spec)
    if spec != "" and is_file(path):  # Path("") is the current directory
        return _from_files(str(spec), None, path, limit)
    kind, colon, rest = str(spec).partition(":")
    if kind == "datasets":
        name, digest, texts = rows.stream(rest)
        if (first := next(texts(), None)) is None:
            raise InputError(f"{name} is empty: expected at least one text in it")
        return Corpus(name, kind, annotations(first), digest, lambda: islice(texts(), limit))
    if kind in GENERATORS:
        return _generated(kind, rest, limit)
    if not colon:
        raise InputError(f'no file or directory "{spec}": name an existing one, or "tales" for generated text')
    if kind not in FORMATS:
        forms = [*(f"{name}:PATH" for name in FORMATS), "datasets:NAME", *(f"{name}:COUNT:SEED" for name in GENERATORS)]
        raise InputError(f'"{spec}": no such file, and no kind of corpus "{kind}"; kinds are {", ".join(forms)}')
    if not rest or not is_file(Path(rest)):
        raise InputError(f'no file or directory "{rest}": name an existing one after {kind}:')
    return _from_files(str(spec), kind, Path(rest), limit)


def _from_files(name: str, kind: str | None, path: Path, limit: int | None) -> Corpus:
    files = _files_in(path, kind) if path.is_dir() else [path]
    for file in files:
        check_name(file)
    form = FORMATS[kind or _kind_of(files, path)]
    one_document = form.whole_files and len(files) > 1

    def texts_of(file: Path) -> Iterator[AnnotatedText]:
        texts = form.texts(form.records(file), str(file))
        return (replace(text, document=str(file)) for text in texts) if one_document else texts

    def source() -> Iterator[AnnotatedText]:
        return islice(chain.from_iterable(map(texts_of, files)), limit)

    first = next(source(), None)
    if first is None:
        raise InputError(f"{path} is empty: expected {form.title} with at least one text in it")
    if form.whole_files and not one_document and next(islice(texts_of(files[0]), 1, 2), None) is None:
        advice = f"; lines:{path} makes a text of each line" if form.kind == "text" else ""
        warning = f"{path} is one text, so one document, of which there are no intervals{advice}"
        warn(warning, InputWarning, stacklevel=3)
    return Corpus(name, form.kind, annotations(first), files_digest(files), source, tuple(files))


def _generated(kind: str, parameters: str, limit: int | None) -> Corpus:
    match = _PARAMETERS.fullmatch(parameters)
    if not match:
        expected = f"expected {kind}, {kind}:COUNT or {kind}:COUNT:SEED"
        raise InputError(f'"{kind}:{parameters}": {expected}; COUNT is 1 to 9999999, SEED has at most 18 digits')
    count, seed = int(match[1] or _COUNT), int(match[2] or _SEED)
    name, generate = f"{kind}:{count}:{seed}", GENERATORS[kind]
    first = list(generate(min(count, _HASHED), seed))
    digest = hashlib.sha256("\n".join([name, *map(repr, first)]).encode()).hexdigest()
    length = count if limit is None else min(count, limit)
    return Corpus(name, kind, annotations(first[0]), digest, lambda: generate(length, seed))


def _files_in(directory: Path, kind: str | None) -> list[Path]:
    """The files directly inside, sorted, that are named like one format, or like any."""
    formats = [FORMATS[kind]] if kind else _RECOGNISED
    files = sorted(f for f in directory.iterdir() if f.is_file() and any(each.matches(f) for each in formats))
    if not files:
        patterns, advice = ", ".join(dict.fromkeys(each.names for each in formats)), "" if kind else f"; {_PLAIN}"
        expected = f"expected {patterns} directly inside, plain or with .gz or .zst after it"
        raise InputError(f"{directory} holds no corpus: {expected}{advice}")
    return files


def _kind_of(files: Sequence[Path], path: Path) -> str:
    """The common format of all nonempty files."""
    kinds = list(dict.fromkeys(kind for file in files if (kind := _recognised(file))))
    if not kinds:
        raise InputError(f"{path} is empty: expected a corpus with at least one text in it")
    if len(kinds) > 1:
        forced = " or ".join(f"{kind}:{path}" for kind in kinds)
        raise InputError(f"{path} holds files of several formats: choose with {forced}")
    return kinds[0]


def _recognised(file: Path) -> str | None:
    """A file's format by its first lines; None if it only has comments."""
    with opened(file) as start:
        if start.read(len(rows.MAGIC)) == rows.MAGIC.encode():
            return "parquet"
    is_conllu = FORMATS["conllu"].matches(file)
    for line in filter(str.strip, lines(file)):
        for form in _RECOGNISED:
            if form.recognises and form.recognises(line) and not (is_conllu and form.kind == "paired"):
                return form.kind
        if line.startswith("#"):
            continue
        if is_conllu:
            return "conllu"  # its reader names the faulty line
        kinds = ", ".join(each.kind for each in _RECOGNISED)
        raise InputError(f'{file} begins "{line[:40].strip()}": {_PLAIN}; for annotation, KIND:PATH takes {kinds}')
    return None


def join(corpora: Sequence[Corpus], *, name: str | None = None) -> Corpus:
    """The texts of several different corpora, in order.

    The result has the annotation that all of them have; a warning names the rest. Documents with the same name are one
    document. The digest, and by default the `name`, combine theirs in order.
    """
    if not corpora:
        raise InputError("join: expected at least one corpus, got none")
    digests: list[str] = []
    for corpus in corpora:
        if not isinstance(corpus, Corpus):
            kind = type(corpus).__name__
            raise InputError(f"join: expected corpora, got {kind}: corpora.read or corpora.from_rows makes one")
        if corpus.digest in digests:
            raise InputError(f"join: {corpus.name} comes twice, so its texts would count twice: leave one out")
        digests.append(corpus.digest)
    shared = frozenset.intersection(*(corpus.annotates for corpus in corpora))
    name = name or " + ".join(corpus.name for corpus in corpora)
    if partial := sorted(frozenset.union(*(corpus.annotates for corpus in corpora)) - shared):
        lacking = [corpus.name for corpus in corpora if not corpus.annotates >= {*partial}]
        warn(
            f"{name}: {', '.join(lacking)} has no {' and no '.join(partial)}, so what needs them is not measured on "
            "it; give corpora one by one to have each behaviour measured on the first that serves",
            InputWarning,
            stacklevel=2,
        )
    digest = hashlib.sha256("\n".join(["join", *digests]).encode()).hexdigest()
    kind = corpora[0].kind if len({corpus.kind for corpus in corpora}) == 1 else "joined"
    files = tuple(chain.from_iterable(corpus.files for corpus in corpora))
    return Corpus(name, kind, shared, digest, lambda: chain.from_iterable(corpora), files)


def annotations(text: AnnotatedText) -> frozenset[str]:
    """The annotation of a text, as in `Corpus.annotates`."""
    present = {"tags": text.tags, "relations": text.relations, "chains": text.mentions, "targets": text.target}
    return frozenset(name for name, values in present.items() if values is not None)


def _named(name: str | None, method: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise InputError(
            f'{method}: expected a name="..." that changes with what the function does, as f"over {{n}} words": '
            f"it goes into the corpus's name and hash, because functions have no hash; got {name!r}"
        )
    return name


@dataclass(frozen=True)
class Serving:
    """A corpus and the questions that one pass over it answers."""

    corpus: Corpus
    questions: Sequence[str]
    stands_in: bool  # whether it is generated, for lack of a given corpus with the annotation


def serving(needs: Mapping[str, frozenset[str]], corpora: Sequence[Corpus]) -> list[Serving]:
    """Pair every question with the first corpus that has its annotation, or with generated tales if none has.

    `unserved` questions are left out. `needs` has the annotation of each question, as in `Corpus.annotates`. Different
    corpora with the same name are an `InputError`, because tables and pages tell them apart by name.
    """
    by_name: dict[str, Corpus] = {}
    for corpus in corpora:
        if by_name.setdefault(corpus.name, corpus).digest != corpus.digest:
            raise InputError(f"two corpora are called {corpus.name}: give each a name, as in from_rows(name=...)")
    skipped = unserved(needs, corpora)
    first = {
        question: next((corpus for corpus in corpora if need <= corpus.annotates), None)
        for question, need in needs.items()
        if question not in skipped
    }
    return [Serving(corpus or read(GENERATED), names, corpus is None) for corpus, names in sharing(first)]


def unserved(needs: Mapping[str, frozenset[str]], corpora: Sequence[Corpus]) -> dict[str, str]:
    """The questions left out, with the reason: they need annotation, and all given texts are plain.

    Tales do not replace plain texts; they only supply annotation that annotated corpora lack.
    """
    if strange := [each for each in corpora if not isinstance(each, Corpus)]:
        raise InputError(f'expected a list of corpora, as corpora.read("tales") gives each; got {strange[0]!r}')
    if not corpora or any(each.annotates for each in corpora):
        return {}
    plain, have = ", ".join(each.name for each in corpora), "has" if len(corpora) == 1 else "have"
    return {
        name: f"it needs {' and '.join(_CALLED[each] for each in sorted(need))}, and {plain} {have} no annotation; "
        'add --corpus tales (in Python corpora.read("tales")) to measure it on generated text'
        for name, need in needs.items()
        if need
    }


def sharing(texts: Mapping[str, Text]) -> list[tuple[Text, list[str]]]:
    """Each text once, with all its questions; `texts` maps questions to texts."""
    served: dict[int, tuple[Text, list[str]]] = {}
    for name, text in texts.items():
        served.setdefault(id(text), (text, []))[1].append(name)
    return list(served.values())
