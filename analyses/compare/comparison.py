"""How good are several models' heads at the same things? Each reads the same text; their best heads are compared.

One half of the documents chooses a head and the other reports it, so that the best of many heads does not look better
than it is. Differences are paired: both models' totals are of the same groups of documents.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, combinations, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analyses.behaviours import OURS
from analyses.corpora import Corpus
from analyses.corpora.corpus import Serving, serving, unserved
from analyses.corpora.in_memory import of_ids, random_ids
from analyses.execution.progress import WRITING, Say, Stages
from analyses.measures.definitions import DECLARED, RANKED, UNITS
from analyses.measures.findings import notable
from analyses.measures.head_tables import HEAD_COLUMNS, Collected, Scored, strictest, values, with_q
from analyses.reading.inputs import by_ids
from analyses.reading.windows import Reading
from analyses.scoring.collectors import collect_in_lots, refuse_unread
from analyses.wording.head_names import Place
from interp import InputError, Model
from interp.display import listed
from interp.errors import whole_number
from interp.patterns import group_of
from interp.statistics import benjamini_hochberg, contrast, estimate

COMPARE_COLUMNS: list[str] = DECLARED["tables"]["compare"].split()
HEADLINE: dict[str, list[str]] = {
    name: [measure for measure in each.headline if each[measure].unit in RANKED] for name, each in OURS.items()
}
_WITHOUT_WORDS = "position"


@dataclass(frozen=True)
class Result:
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
class Usage(Serving):
    """A corpus, the behaviours measured on it, and its documents: all of them, and the reporting half."""

    documents: set[str] = field(default_factory=set)

    @property
    def reporting(self) -> int:
        """How many documents the intervals of best heads rest on."""
        return sum(group_of(document) % 2 for document in self.documents)


@dataclass(frozen=True)
class Comparison:
    """The best heads side by side (`tables/compare`), all heads (`tables/heads`), and the corpora they were read on."""

    table: pd.DataFrame
    heads: pd.DataFrame
    reads: Sequence[Result]
    used: Sequence[Usage]
    unused: Sequence[Corpus] = ()  # earlier corpora annotated everything these do
    unserved: Mapping[str, str] = field(default_factory=dict)  # behaviours without a text, and why
    by_ids: bool = False  # whether all models read token ids, whatever their tokenizers


def names(arguments: Sequence[str]) -> list[str]:
    """Names for models given on the command line: a directory's last part, with duplicates numbered."""
    names: list[str] = []
    for argument in arguments:
        name = (Path(argument).resolve().name if Path(argument).is_dir() else "") or argument
        numbered = (f"{name} ({number})" for number in count(2))
        names.append(next(each for each in chain([name], numbered) if each not in names))
    return names


def compare(
    models: Mapping[str, Model],
    corpora: Sequence[Corpus],
    *,
    behaviours: Collection[str] | None = None,
    seed: int = 0,
    progress: Say | None = None,
) -> Comparison:
    """Measure every head of every model on the same text, and compare the best heads of each measure.

    `table` has one row per measure and model: the head with the largest gain on one half of the documents, and its gain
    on the other. `n_heads` and `mean_depth` are of the model's heads that show the measure on the whole text
    (`analyses.measures.findings`). `difference` is the gain less that of the first model, the reference, with a paired
    95% interval over documents and a two-sided p; `value_difference` is the same without baselines. `q` and `value_q`
    are over all p of the table together. In `heads`, `q` is over all tests of one model, as in its own report.

    A behaviour is measured on the first corpus that annotates it, else on generated tales. If a model has no tokenizer,
    only position is compared, and all models read the same token ids: corpora of ids, else random ones. Raises an
    `InputError` for fewer than two models, a model of two stacks, a damaged corpus, or if nothing can be measured in
    two of the models.
    """
    _refuse(models, behaviours)
    whole_number("seed", seed)
    say = Stages.to(progress)
    mute = [name for name, model in models.items() if model.tokenizer is None]
    if mute:  # then all read the same ids
        behaviours, fewest = {_WITHOUT_WORDS}, min(models.values(), key=lambda model: model.config.d_vocab)
        corpora = [each for each in corpora if of_ids(fewest, each)] or [random_ids(fewest, seed)]
        models = {name: by_ids(model) for name, model in models.items()}
    needs = {name: each.needs for name, each in OURS.items() if behaviours is None or name in behaviours}
    usages = [Usage(each.corpus, each.questions, each.stands_in) for each in serving(needs, corpora)]
    left_out = dict(unserved(needs, corpora))
    if mute:
        why = f"{listed(mute)} {'has' if len(mute) == 1 else 'have'} no tokenizer, so all models read token ids"
        left_out |= {name: why for name in OURS if name != _WITHOUT_WORDS}
    readings = [f"{name}: reading {each.corpus.name}" for name in models for each in usages]
    say.plan([*readings, "comparing", WRITING])
    reads = [_score(name, model, usages, left_out, seed, say) for name, model in models.items()]
    if not any(one.collected.keys() & other.collected.keys() for one, other in combinations(reads, 2)):
        why = dict.fromkeys(f"{read.name}: {reason}" for read in reads for reason in read.left_out.values())
        raise InputError(f"no behaviour could be measured in two of the models. {'; '.join(why)}")
    say("comparing", 0)
    rows = [row for behaviour in OURS for row in _rows(behaviour, reads, seed)]
    table = pd.DataFrame(rows).reindex(columns=COMPARE_COLUMNS)
    tested = table[["p", "value_p"]].to_numpy(dtype=float)
    table[["q", "value_q"]] = benjamini_hochberg(tested.reshape(-1)).reshape(tested.shape)
    heads = pd.concat([read.heads for read in reads], ignore_index=True)
    unused = [corpus for corpus in corpora if corpus.name not in {each.corpus.name for each in usages}]
    return Comparison(table, heads, reads, usages, unused, left_out, bool(mute))


def _refuse(models: Mapping[str, Model], behaviours: Collection[str] | None) -> None:
    if len(models) < 2:
        got = f"{len(models)}: {', '.join(models) or 'none'}"
        raise InputError(f"expected at least two models to compare, the reference first; got {got}")
    if unknown := set(behaviours or ()) - set(OURS):
        raise InputError(f"no behaviour {', '.join(sorted(unknown))}: expected some of {', '.join(OURS)}")
    for name, model in models.items():
        if len(model.config.stacks) > 1:
            raise InputError(
                f"expected models of one stack, but {name} has an encoder and a decoder with three kinds of heads: "
                "leave it out, or run `interp report` on it, which measures each kind"
            )
        if model.tokenizer is None and (words := [each for each in behaviours or () if each != _WITHOUT_WORDS]):
            raise InputError(
                f"{name} has no tokenizer, and {', '.join(words)} is about words: leave it out, give its directory a "
                f"tokenizer.json, or compare {_WITHOUT_WORDS} alone, which needs only token ids"
            )


def _score(name: str, model: Model, usage: Sequence[Usage], unserved: Mapping[str, str], seed: int, say: Say) -> Result:
    collected: dict[str, Collected] = {}
    left_out = dict(unserved)
    for source in usage:
        corpus = source.corpus
        reading = Reading(model, corpus, partial(say, f"{name}: reading {corpus.name}"))
        makers = [partial(OURS[behaviour].collector, seed=seed) for behaviour in source.questions]
        try:
            totals = collect_in_lots(reading, makers)
            refuse_unread(reading.counts, corpus.name)
        except InputError as error:
            for _ in corpus:  # raises if the text itself is at fault, rather than what this model sees of it
                pass
            totals = [error] * len(makers)
        source.documents.update(reading.documents)
        for behaviour, total in zip(source.questions, totals, strict=True):
            if isinstance(total, InputError):
                left_out[behaviour] = str(total)
            else:
                collected[behaviour] = total
    if not collected:
        return Result(name, collected, left_out, pd.DataFrame(columns=["model", *HEAD_COLUMNS, "depth", "shows"]))
    tested = with_q([totals.table(seed=seed) for totals in collected.values()])
    tables = [
        table.assign(depth=depth(table["layer"], totals.heads.n_layers), shows=table.index.isin(notable(table).index))
        for totals, table in zip(collected.values(), tested, strict=True)
    ]
    heads = pd.concat(tables, ignore_index=True)
    heads.insert(0, "model", name)
    return Result(name, collected, left_out, heads)


def depth(layer: Any, n_layers: int) -> Any:
    """Relative depth: 1 is the last layer, whatever their number."""
    return (layer + 1) / n_layers


class Best(NamedTuple):
    """The head of one model with the largest gain in a measure on the choosing half, as the reporting half shows it.

    `columns` are table cells: its place and what it was read on. `value` and `baseline` are totals and weights by group
    of documents (totals|weights group).
    """

    corpus: str
    columns: Mapping[str, Any]
    value: np.ndarray
    baseline: np.ndarray


def best_heads(collected: Collected) -> dict[str, Best]:
    """A model's best head for each measure, read with the first position kept.

    Measures without a better direction (entropy, distance) have no best head; nor do those without a row that counts in
    either half.
    """
    halves = zip(collected.half(0).scored, collected.half(1).scored, strict=True)
    return dict(chain.from_iterable(_best(collected, *half) for half in halves if half[0].sink == "kept"))


def _best(collected: Collected, choosing: Scored, reporting: Scored) -> Iterator[tuple[str, Best]]:
    heads = collected.heads
    totals = reporting.totals.finish()
    scores, weights = totals.scores.numpy(), totals.weights.numpy()
    rivals, rival_weights, rules = strictest(reporting, scores, weights, heads.count)
    n = totals.rows.sum(0).round().long().tolist()
    choosing_gains = np.subtract(*values(choosing, heads.count))
    for column, measure in enumerate(choosing.measures):
        if not UNITS[measure.unit].ranked or np.isnan(choosing_gains[:, column]).all():
            continue
        index = int(np.nanargmax(choosing_gains[:, column]))
        if not n[index][column]:
            continue
        layer, head = divmod(index, heads.n_heads)
        columns = Place(heads.stack, heads.attention, layer, head)._asdict() | {"n": n[index][column]}
        columns |= {"depth": depth(layer, heads.n_layers), "baseline_name": rules[column], "unit": measure.unit}
        value = np.stack([scores[:, index, column], weights[:, index, column]])
        is_read = value[1] != 0  # a constant baseline also covers groups that were not read
        baseline = np.stack([rivals[:, column], rival_weights[:, column]]) * is_read
        yield measure.name, Best(reporting.corpus or collected.corpus, columns, value, baseline)


def gain_columns(bests: Sequence[Best], *, seed: int) -> list[dict[str, Any]]:
    """Value, baseline, and the gain with its 95% interval, for heads that read the same groups of documents."""
    value, baseline = (np.stack([getattr(best, name) for best in bests], -1) for name in ("value", "baseline"))
    result = estimate(*value, *baseline, seed=seed)
    columns = {"value": result.value, "baseline": result.baseline, "gain": result.gain}
    return pd.DataFrame({**columns, "ci_low": result.low, "ci_high": result.high}).to_dict("records")


def difference_columns(pairs: Sequence[tuple[Best, Best]], *, seed: int) -> list[dict[str, Any]]:
    """Differences within each pair, first less second, of gains and of values, with 95% intervals and p."""
    if not pairs:
        return []
    ratios = [[best.value, reference.value, best.baseline, reference.baseline] for best, reference in pairs]
    totals, weights = np.moveaxis(np.asarray(ratios), 0, -1).swapaxes(0, 1)  # ratio group pair, each
    gain = contrast(totals, weights, (1, -1, -1, 1), seed=seed)  # gain: value less baseline
    value = contrast(totals[:2], weights[:2], (1, -1), seed=seed)
    columns = {"difference": gain.value, "difference_low": gain.low, "difference_high": gain.high, "p": gain.p}
    columns |= {"value_difference": value.value, "value_difference_low": value.low, "value_difference_high": value.high}
    return pd.DataFrame(columns | {"value_p": value.p}).to_dict("records")


def _rows(behaviour: str, reads: Sequence[Result], seed: int) -> list[dict[str, Any]]:
    bests = [best_heads(read.collected[behaviour]) if behaviour in read.collected else {} for read in reads]
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for result, best in zip(reads, bests, strict=True):
        depths = result.heads.loc[result.heads["shows"].astype(bool)].groupby("measure")["depth"]
        counts = {str(name): {"n_heads": len(group), "mean_depth": float(group.mean())} for name, group in depths}
        no_head = {"n_heads": 0, "mean_depth": float("nan")}
        for corpus in dict.fromkeys(head.corpus for head in best.values()):  # heads of one corpus share its groups
            names = [measure for measure, head in best.items() if head.corpus == corpus]
            gains = gain_columns([best[name] for name in names], seed=seed)
            common = [name for name in names if name in bests[0] and result is not reads[0]]
            differences = difference_columns([(best[name], bests[0][name]) for name in common], seed=seed)
            for name, gain in zip(names, gains, strict=True):
                row = {"behaviour": behaviour, "measure": name, "corpus": corpus, "model": result.name}
                row |= {**best[name].columns, **gain, **counts.get(name, no_head), "reference": reads[0].name}
                rows[name, result.name] = row
            for name, difference in zip(common, differences, strict=True):
                rows[name, result.name] |= difference
    measures = dict.fromkeys(measure for best in bests for measure in best)
    return [rows[name, result.name] for name in measures for result in reads if (name, result.name) in rows]
