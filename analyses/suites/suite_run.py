"""What does a model know of a suite, and which heads carry it? We exchange heads for the paradigms that it passes.

Half of a paradigm's groups of contrasts chooses heads, sets of heads and rules; the other half reports on them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd
from scipy.cluster.hierarchy import leaves_list, linkage

from analyses.execution import lots
from analyses.execution.progress import Say, Stages
from analyses.measures.findings import DISCOVERY
from analyses.reading.inputs import Heads
from analyses.suites import cause, knowledge
from analyses.suites.contrasts import Contrast, aligns, contrasts
from analyses.suites.items import Paradigm, Suite
from analyses.suites.named_words import attention_shares
from interp import AnnotatedText, Model, Transformer
from interp.errors import whole_number
from interp.statistics import benjamini_hochberg

STAGES = "scoring sentences", "exchanging heads", "sets of heads"
_LOOKS = 0.5  # the least share of contrasts in which a head that "looks there" does so


@dataclass(frozen=True)
class Found:
    """A suite's tables (`suite_accuracy`, `suite_heads`, ...), one example per paradigm, and what was not tested."""

    suite: Suite
    tables: Mapping[str, pd.DataFrame]
    examples: Mapping[str, Contrast]  # for paradigms whose heads were exchanged
    untested: Mapping[str, str]  # for the other passed paradigms, the reason
    left_out: Mapping[str, Counter[str]]  # preferences without a contrast, contrasts that align in part

    @cached_property
    def accuracy(self) -> pd.DataFrame:
        """One row per paradigm."""
        return self.tables["suite_accuracy"].loc[lambda rows: rows["level"] == "paradigm"]

    @cached_property
    def named(self) -> pd.DataFrame:
        """One row per paradigm and head that carries part of it, strongest first."""
        return cause.named_heads(self.tables.get("suite_heads", pd.DataFrame()))

    @property
    def others(self) -> list[str]:
        """One line per paradigm that is not passed, or whose heads were not tested."""
        rows = self.accuracy.loc[self.accuracy["verdict"] != knowledge.PASSED].to_dict("records")
        lines = [f"{row['name']}: {row['verdict']} ({row['why']})." for row in rows]
        lines += [f"{name}: passed, but its heads are not testable ({why})." for name, why in self.untested.items()]
        return lines


def find(
    model: Model,
    suite: Suite,
    text: Iterable[str | AnnotatedText] | None = None,
    *,
    limit: int | None = None,
    seed: int = 0,
    progress: Say | None = None,
) -> Found:
    """Measure what the model knows of a suite, and which heads carry its preference in each paradigm that it passes.

    Args:
        model: causal or masked; heads are exchanged only in models that interp itself runs.
        suite: from `read` or `builtin`.
        text: source of the n-gram rivals; without it, they are missing.
        limit: the most items per paradigm, drawn with their neighbours (twins); by default all.
        seed: draws items, halves, random sets and intervals.
        progress: called with the stage, and the number of lots done.
    """
    say, rng = Stages.to(progress), np.random.default_rng(whole_number("seed", seed))
    say.plan(STAGES)
    if limit is not None:
        whole_number("limit", limit, least=1)
        suite = replace(suite, paradigms=tuple(_drawn(each, limit, rng) for each in suite.paradigms))
    accuracy = knowledge.by_paradigm(knowledge.measure(model, suite, text, progress=partial(say, STAGES[0])))
    passed = {*accuracy.loc[accuracy["verdict"] == knowledge.PASSED, "name"]}
    studied, untested, left_out = list[cause.Study](), dict[str, str](), dict[str, Counter[str]]()
    for name, paradigm in ((each.name, each) for each in suite.paradigms if each.name in passed):
        every, left_out[name] = contrasts(model, paradigm)
        result: cause.Study | str = max(left_out[name], key=left_out[name].__getitem__, default="")
        if not isinstance(model, Transformer):
            result = "another library runs this model as a whole"
        elif every:
            result = cause.study(model, name, every, seed, partial(say, STAGES[1]))
        if isinstance(result, str):  # why there is none
            untested[name] = result
        else:
            studied.append(result)
            left_out[name]["only some tokens align"] = sum(not aligns(contrast) for contrast in result.contrasts)
    tables = {"accuracy": accuracy}
    if studied:
        assert isinstance(model, Transformer)
        tables |= _tables(model, studied, seed, say)
    tables = {f"suite_{name}": table for name, table in tables.items() if len(table)}
    return Found(suite, tables, {each.name: each.contrasts[0] for each in studied}, untested, left_out)


def _drawn(paradigm: Paradigm, limit: int, rng: np.random.Generator) -> Paradigm:
    """At most `limit` items of a paradigm, drawn two neighbours at a time."""
    pairs = rng.permutation(-(-len(paradigm.items) // 2))
    rows = [row for pair in pairs for row in (2 * pair, 2 * pair + 1) if row < len(paradigm.items)]
    return replace(paradigm, items=tuple(paradigm.items[row] for row in sorted(rows[:limit])))


def _tables(model: Transformer, studied: Sequence[cause.Study], seed: int, say: Stages) -> dict[str, pd.DataFrame]:
    """Tables of heads, transfer of sets, parts of the prompt, and attention; similar paradigms are neighbours."""
    rows = [cause.head_rows(model, each, seed, partial(say, STAGES[1])) for each in studied]
    order = _clustered(rows)
    heads, studied = _with_q([rows[n] for n in order]), [studied[n] for n in order]
    named = cause.named_heads(heads)
    chosen = {e.name: cause.smallest_set(model, e, heads) for e in studied if e.name in {*named["paradigm"]}}
    chosen = {name: members for name, members in chosen.items() if members}
    sets = [cause.set_rows(model, each, chosen, seed, partial(say, STAGES[2])) for each in studied if chosen]
    transfer, parts = (_joined([pair[n] for pair in sets]) for n in range(2))
    attention = _attention(model, studied, named, seed, partial(say, STAGES[1]))
    return {"heads": heads, "transfer": transfer, "parts": parts, "attention": attention}


def _attention(
    model: Transformer, studied: Sequence[cause.Study], named: pd.DataFrame, seed: int, progress: lots.Progress
) -> pd.DataFrame:
    """Whether the named heads look at the named word, and more often than the best rule does."""
    tables = []
    for each in studied:
        rows = attention_shares(model, each.contrasts, each.groups, each.chooses, seed, progress)
        if len(rows):
            rows = rows.assign(paradigm=each.name, **Heads.from_model(model).columns(1)[0])
            tables.append(rows.merge(named[["paradigm", "layer", "head"]]))
    table = _with_q(tables)
    if table.empty:
        return table
    beats = (table["ci_low"] > 0) & (table["q"] < DISCOVERY)
    verdict = np.where(beats, "looks there, beyond rules", "looks there, not clearly beyond rules")
    return table.assign(verdict=np.where(table["value"] >= _LOOKS, verdict, "looks elsewhere"))


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    full = [table for table in tables if len(table)]
    return pd.concat(full, ignore_index=True) if full else pd.DataFrame()


def _with_q(tables: list[pd.DataFrame]) -> pd.DataFrame:
    table = _joined(tables)
    return table.assign(q=benjamini_hochberg(table["p"].to_numpy(float))) if len(table) else table


def _clustered(tables: list[pd.DataFrame]) -> list[int]:
    """Order paradigms so that those that need the same heads are neighbours: average linkage of noised shares."""
    shares = [rows.loc[rows["intervention"] == "noise", "effect"].to_numpy(float) for rows in tables]
    if len(shares) < 3:
        return [*range(len(shares))]
    return leaves_list(linkage(np.stack(shares), "average", optimal_ordering=True)).tolist()
