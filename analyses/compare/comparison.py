"""How good are several models' heads at the same things? Each reads the same text; their best heads are compared."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.behaviours import OURS
from analyses.compare.best_heads import Best, best_heads, depth, difference_columns, gain_columns
from analyses.corpora import Corpus
from analyses.corpora.in_memory import of_ids, random_ids
from analyses.corpora.serving import Serving, serving, unserved
from analyses.measures.definitions import RANKED
from analyses.measures.findings import notable
from analyses.measures.head_tables import HEAD_COLUMNS, Collected, with_q
from analyses.reading.token_ids import by_ids
from analyses.reading.windows import Reading
from analyses.scoring.collectors import collect, refuse_unread
from interp import InputError, Model
from interp.display import listed
from interp.errors import whole_number
from interp.patterns import group_of
from interp.statistics import benjamini_hochberg

COMPARE_COLUMNS = [
    *("behaviour", "measure", "corpus", "model", "stack", "attention", "layer", "head", "depth"),
    *("value", "baseline", "baseline_name", "gain", "ci_low", "ci_high", "n", "n_heads", "mean_depth", "reference"),
    *("difference", "difference_low", "difference_high", "p", "q"),
    *("value_difference", "value_difference_low", "value_difference_high", "value_p", "value_q"),
    "unit",
]
HEADLINE: dict[str, list[str]] = {
    name: [measure for measure in each.headline if each[measure].unit in RANKED] for name, each in OURS.items()
}
_WITHOUT_WORDS = "position"
_NO_HEAD = {"n_heads": 0, "mean_depth": float("nan")}
Say = Callable[[str, int], object]


@dataclass(frozen=True)
class Read:
    """What one model's heads did on the corpora, and what could not be measured in it, with the reason."""

    name: str
    collected: Mapping[str, Collected]
    left_out: Mapping[str, str]
    heads: pd.DataFrame  # rows of `tables/heads`, with `model`, `depth` and `shows`

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """By behaviour, what was read and what was left out."""
        return {behaviour: dict(each.counts) for behaviour, each in self.collected.items()}


@dataclass(frozen=True)
class Used(Serving):
    """A corpus, the behaviours that were measured on it, and its documents: all, and those that report."""

    documents: set[str] = field(default_factory=set)

    @property
    def reporting(self) -> int:
        """How many documents the intervals of best heads rest on."""
        return sum(group_of(document) % 2 for document in self.documents)


@dataclass(frozen=True)
class Comparison:
    """The best heads side by side (`tables/compare`), all heads (`tables/heads`), and what they were read on."""

    table: pd.DataFrame
    heads: pd.DataFrame
    reads: Sequence[Read]
    used: Sequence[Used]
    unused: Sequence[Corpus] = ()  # those that an earlier corpus left nothing to
    unserved: Mapping[str, str] = field(default_factory=dict)  # behaviours that no text was read for, and why
    by_ids: bool = False  # whether all models read token ids, whatever their tokenizers


def names(arguments: Sequence[str]) -> list[str]:
    """What to call models that were named so on the command line: a directory by its last part, duplicates numbered.

    Raises:
        InputError: fewer than two.
    """
    if len(arguments) < 2:
        raise InputError(
            f"expected at least two models to compare, got {len(arguments)}: {' '.join(arguments) or 'none'}; "
            "give directories, `default`, `minilm` or hub names, the reference first"
        )
    known: list[str] = []
    for argument in arguments:
        name = (Path(argument).resolve().name if Path(argument).is_dir() else "") or argument
        numbered = (f"{name} ({number})" for number in count(2))
        known.append(next(each for each in chain([name], numbered) if each not in known))
    return known


def compare(
    models: Mapping[str, Model],
    corpora: Sequence[Corpus],
    *,
    behaviours: Collection[str] | None = None,
    seed: int = 0,
    progress: Say | None = None,
) -> Comparison:
    """Measure every head of every model on the same text, and set the best heads of each measure side by side.

    In `table`, one row a measure and model: the head with the largest gain on one half of the documents, and its gain
    on the other; `n_heads` and `mean_depth`: how many of the model's heads show the measure on the whole text
    (`analyses.measures.findings`), and their mean relative depth; `difference`: its gain less that of the first model,
    the reference, with a paired 95% interval over documents and a two-sided p. `value_difference` is the same without
    baselines. `q` and `value_q` are over all p of the table together.

    In `heads`, `q` is over all that is tested of one model, as its own report gives it.

    Args:
        models: by name, transformers; the first is the reference. Where one has no tokenizer, position alone is
            compared, and all read the same token ids: corpora of ids, else random ones.
        corpora: annotated texts; a behaviour is measured on the first that annotates it, else on generated tales.
        behaviours: some of `position`, `part-of-speech`, `coreference`; all by default.
        seed: of everything random.
        progress: called with what is being done and the number of texts read.

    Raises:
        InputError: fewer than two models, one of two stacks, one without a tokenizer where behaviours are about words,
            an unknown behaviour, an empty or damaged corpus, or none that could be measured in two of the models.
    """
    _refuse(models, behaviours)
    whole_number("seed", seed)
    say = progress or (lambda stage, texts: None)
    mute = [name for name, model in models.items() if model.tokenizer is None]
    if mute:  # then all read the same ids
        behaviours, fewest = {_WITHOUT_WORDS}, min(models.values(), key=lambda model: model.config.d_vocab)
        corpora = [each for each in corpora if of_ids(fewest, each)] or [random_ids(fewest, seed)]
        models = {name: by_ids(model) for name, model in models.items()}
    needs = {name: each.needs for name, each in OURS.items() if behaviours is None or name in behaviours}
    used = [Used(each.corpus, each.asked, each.stands_in) for each in serving(needs, corpora)]
    left_out = dict(unserved(needs, corpora))
    if mute:
        why = f"{listed(mute)} {'has' if len(mute) == 1 else 'have'} no tokenizer, so all models read token ids"
        left_out |= {name: why for name in OURS if name != _WITHOUT_WORDS}
    reads = [_read(name, model, used, left_out, seed, say) for name, model in models.items()]
    measured = [{*read.collected} for read in reads]
    if not any(one & other for at, one in enumerate(measured) for other in measured[:at]):
        why = dict.fromkeys(f"{read.name}: {reason}" for read in reads for reason in read.left_out.values())
        raise InputError(f"no behaviour could be measured in two of the models. {'; '.join(why)}")
    say("comparing", 0)
    heads = pd.concat([read.heads for read in reads], ignore_index=True)
    unused = [corpus for corpus in corpora if corpus.name not in {each.corpus.name for each in used}]
    return Comparison(_table(reads, seed), heads, reads, used, unused, left_out, bool(mute))


def _refuse(models: Mapping[str, Model], behaviours: Collection[str] | None) -> None:
    if len(models) < 2:
        raise InputError(f"expected at least two models to compare, got {len(models)}: {', '.join(models) or 'none'}")
    if unknown := set(behaviours or ()) - set(OURS):
        raise InputError(f"no behaviour {', '.join(sorted(unknown))}: expected some of {', '.join(OURS)}")
    for name, model in models.items():
        if len(model.config.stacks) > 1:
            raise InputError(
                f"expected models of one stack to compare, but {name} has an encoder and a decoder, whose heads are of "
                "three kinds: leave it out, and run `interp report` on it, which measures each kind"
            )
        if model.tokenizer is None and (words := [each for each in behaviours or () if each != _WITHOUT_WORDS]):
            raise InputError(
                f"{name} has no tokenizer, and {', '.join(words)} is about words: leave it out, give its directory a "
                f"tokenizer.json, or compare {_WITHOUT_WORDS} alone, which is read by token ids"
            )


def _read(name: str, model: Model, used: Sequence[Used], unserved: Mapping[str, str], seed: int, say: Say) -> Read:
    """One reading of each corpus for all the behaviours that it serves."""
    collected: dict[str, Collected] = {}
    left_out = dict(unserved)
    for source in used:
        corpus = source.corpus
        reading = Reading(model, corpus, lambda texts, corpus=corpus: say(f"{name}: reading {corpus.name}", texts))
        collectors = [OURS[behaviour].collector(model, seed=seed) for behaviour in source.asked]
        try:
            totals = collect(reading, collectors)
            refuse_unread(reading.counts, corpus.name)
        except InputError as error:
            for _ in corpus:  # raises where the text is at fault, and not what this model can see of it
                pass
            totals = [error] * len(collectors)
        source.documents.update(reading.documents)
        for behaviour, total in zip(source.asked, totals, strict=True):
            if isinstance(total, InputError):
                left_out[behaviour] = str(total)
            else:
                collected[behaviour] = total
    return Read(name, collected, left_out, _heads(name, collected, seed))


def _heads(name: str, collected: Mapping[str, Collected], seed: int) -> pd.DataFrame:
    """All heads of one model; `shows` says which rows are findings on the whole text."""
    if not collected:
        return pd.DataFrame(columns=["model", *HEAD_COLUMNS, "depth", "shows"])
    tested = with_q([totals.table(seed=seed) for totals in collected.values()])
    tables = [
        table.assign(depth=depth(table["layer"], totals.heads.n_layers), shows=table.index.isin(notable(table).index))
        for totals, table in zip(collected.values(), tested, strict=True)
    ]
    whole = pd.concat(tables, ignore_index=True)
    whole.insert(0, "model", name)
    return whole


def _table(reads: Sequence[Read], seed: int) -> pd.DataFrame:
    rows = []
    for behaviour in OURS:
        bests = [best_heads(read.collected[behaviour]) if behaviour in read.collected else {} for read in reads]
        rows += _rows(behaviour, reads, bests, seed)
    table = pd.DataFrame(rows).reindex(columns=COMPARE_COLUMNS)
    tested = table[["p", "value_p"]].to_numpy(dtype=float)
    table[["q", "value_q"]] = benjamini_hochberg(tested.reshape(-1)).reshape(tested.shape)
    return table


def _rows(behaviour: str, reads: Sequence[Read], bests: Sequence[Mapping[str, Best]], seed: int) -> list[dict]:
    """A row a measure that any model has and model that has it, measure by measure."""
    measures = dict.fromkeys(measure for each in bests for measure in each)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for read, best in zip(reads, bests, strict=True):
        shows = read.heads.loc[read.heads["shows"].astype(bool)].groupby("measure")["depth"]
        showing = {str(name): {"n_heads": len(depths), "mean_depth": float(depths.mean())} for name, depths in shows}
        for corpus in dict.fromkeys(head.corpus for head in best.values()):  # whose groups are the same
            names = [measure for measure, head in best.items() if head.corpus == corpus]
            gains = gain_columns([best[name] for name in names], seed=seed)
            common = [name for name in names if name in bests[0] and read is not reads[0]]
            differences = difference_columns([(best[name], bests[0][name]) for name in common], seed=seed)
            for name, gain in zip(names, gains, strict=True):
                about = {"behaviour": behaviour, "measure": name, "corpus": corpus, "model": read.name}
                rows[name, read.name] = {**about, **best[name].columns, **gain, **showing.get(name, _NO_HEAD)}
                rows[name, read.name]["reference"] = reads[0].name
            for name, difference in zip(common, differences, strict=True):
                rows[name, read.name] |= difference
    return [rows[name, read.name] for name in measures for read in reads if (name, read.name) in rows]
