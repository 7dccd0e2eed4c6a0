"""What do attention and patches show about every behaviour, and what does a page say about it?

Patching reads no corpus and reading patches nothing, so other processes patch while this one reads.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from analyses.behaviours import behaviours_for, vocabulary
from analyses.corpora import Corpus
from analyses.corpora.corpus import Serving, serving, unserved
from analyses.execution import lots
from analyses.execution.processes import all_of
from analyses.figures import head_grid, measure_name
from analyses.headlines.sentences import attention_clause, choice_clause, task_sentence
from analyses.measures.definitions import RANKED, UNITS, Behaviour
from analyses.measures.findings import FEW_DOCUMENTS, FEW_ITEMS, NOTABLE, UNKNOWN, best, causes, notable
from analyses.measures.head_tables import EFFECT_COLUMNS, HEAD_COLUMNS, Collected, Heads, Measured, beside_norms, with_q
from analyses.page import sections as doc
from analyses.page.sections import SCHEMAS, WAYS, Part, Text
from analyses.reading.windows import Reading
from analyses.report.scaffold import Run
from analyses.scoring.collectors import collect_in_lots, refuse_unread
from analyses.scoring.rules import OTHERS, RULE_COLUMNS
from analyses.tasks.causal_tests import Effects, Patched, joined, no_effects, patch_task
from analyses.wording.formats import counted, number, percent
from analyses.wording.head_names import HEAD, head_name
from analyses.wording.plain_words import TEXTS, WORDS, listed, worded
from interp import InputError, Model, Transformer

_TWO_STACKS = (
    "its minimal pairs are prompts for models of one stack; interp patch with --target patches an encoder-decoder"
)
_ROWS = 10  # heads in a table
_CELL = [*HEAD, "measure"]
_COLUMNS = "head measure value baseline baseline_name gain interval n q without norm_value"


@dataclass(frozen=True)
class Result:
    """One behaviour in one kind of attention, measured and tested, or the reason it was not measured (`left_out`)."""

    behaviour: Behaviour
    kind: Heads
    corpus: Corpus
    generated: bool  # the user's corpora do not annotate it, so we measured it on generated tales
    measured: Measured
    tested: Effects
    left_out: str | None = None
    collected: Collected | None = None

    @property
    def counts(self) -> dict[str, int]:
        """What measuring and the causal test read and left out."""
        left_out = {f"pairs left out of {task['task']}": task.get("left_out") for task in self.tested.tasks}
        return {**self.measured.counts, **{name: count for name, count in left_out.items() if count}}

    @property
    def readable(self) -> bool:
        """Whether its corpus has the annotations it needs."""
        return self.behaviour.needs <= self.corpus.annotates

    @cached_property
    def figures(self) -> list[doc.Figure]:
        """Grids of the behaviour's leading measures, if any head shows them."""
        measures = leading(self.behaviour, set(notable(self.measured.heads)["measure"]))
        grids = head_grids(self.behaviour.name, self.measured.heads, measures, self.behaviour)
        return [doc.drawing(name, draw()) for name, draw in grids]

    def name(self, by_kind: bool) -> str:
        """The heading, which names the kind of attention if the model has several."""
        return self.behaviour.title + (f" in {self.kind.title}" if by_kind else "")


class _Sums(NamedTuple):
    """The totals of a behaviour's measures, or why there are none; also the totals by norm, if known."""

    behaviour: Behaviour
    kind: Heads
    serving: Serving
    totals: Collected | InputError
    by_norm: Collected | InputError | None = None


def measure(
    run: Run, model: Model, behaviours: Mapping[str, Behaviour], corpora: Sequence[Corpus], pairs: int | None
) -> list[Result]:
    """Measure every behaviour on its corpus, reading each corpus once for each kind of attention."""
    kinds, needs = Heads.kinds_of(model), {name: behaviour.needs for name, behaviour in behaviours.items()}
    results: dict[tuple[str, Heads], Result] = {}
    left_out = unserved(needs, corpora)
    for name, why in left_out.items():
        if len(left_out) < len(needs):  # otherwise the command itself fails with these reasons
            run.say(f"{name} is left out: {why}\n", 0)
        for kind in (kind for kind in kinds if name in behaviours_for(kind, behaviours)):
            results[name, kind] = _not_measured(behaviours[name], kind, corpora[0], why=why)
    readings = [
        (
            each,
            kind,
            [behaviour for name, behaviour in behaviours_for(kind, behaviours).items() if name in each.questions],
        )
        for each in serving(needs, corpora)
        for kind in kinds
    ]
    names = list(dict.fromkeys(each.name for *_, group in readings for each in group))
    groups = [", ".join(each.name for each in group) for *_, group in readings if group]
    run.say.plan([*(f"{group}: reading" for group in groups), "minimal pairs", "intervals"])
    tasks = [(name, *task) for name in names for task in behaviours[name].tasks.items() if _can_be_patched(model)]
    with lots.begun(partial(patch_task, model, pairs, run.seed), [task for _, *task in tasks]) as patched:
        sums = [each for reading in readings if reading[-1] for each in _gather(run, model, *reading)]
        run.say("minimal pairs", 0)
        of_tasks = [(name, part) for (name, *_), part in zip(tasks, [part() for part in patched], strict=True)]
    effects = {
        name: _effects(model, behaviours[name], [p for n, p in of_tasks if n == name], pairs, run.seed)
        for name in names
    }
    run.say("intervals", 0)
    tables = all_of([partial(table, each, run.seed) for each in sums for table in (_table, _table_by_norm)])
    for item, table, by_norm in zip(sums, tables[::2], tables[1::2], strict=True):
        name, source = item.behaviour.name, (item.behaviour, item.kind, item.serving.corpus, item.serving.stands_in)
        if isinstance(table, Measured) and isinstance(item.totals, Collected):
            heads = beside_norms(table.heads, by_norm) if isinstance(by_norm, pd.DataFrame) else table.heads
            followed = partial(item.totals.rules, seed=run.seed) if item.totals.rules else pd.DataFrame
            measured = replace(table, heads=heads, followed=followed)
            results[name, item.kind] = Result(*source, measured, effects[name], collected=item.totals)
        else:
            results[name, item.kind] = _not_measured(*source, why=str(table))
    return [results[name, kind] for name in behaviours for kind in kinds if (name, kind) in results]


def corrected(results: Sequence[Result]) -> list[Result]:
    """The results with `q` corrected over all tests in the tables of heads and of effects, across behaviours."""
    heads = with_q([result.measured.heads for result in results])
    effects = with_q([result.tested.table for result in results])
    return [
        replace(result, measured=replace(result.measured, heads=rows), tested=replace(result.tested, table=causal))
        for result, rows, causal in zip(results, heads, effects, strict=True)
    ]


def tables(results: Sequence[Result]) -> dict[str, pd.DataFrame]:
    """The measurements and tests of all results, keyed by a report's table names."""
    measured, tested = [result.measured for result in results], [result.tested.table for result in results]
    tasks = [task for result in results for task in result.tested.tasks]
    rows = {"heads": [each.heads for each in measured], "effects": tested}
    rows |= {"baselines": [each.baselines for each in measured], "rules": [each.rules for each in measured]}
    parts = {name: [each for each in group if len(each)] for name, group in rows.items()}
    parts["effects"] = parts["effects"] or tested[:1]
    for name in dict.fromkeys(name for result in results for name in result.tested.prompts):
        parts[name] = [result.tested.prompts[name] for result in results if name in result.tested.prompts]
    joined = {name: pd.concat(group, ignore_index=True) for name, group in parts.items() if group}
    return joined | {"tasks": pd.DataFrame(tasks, columns=None if tasks else ["task", "behaviour", "n", "refused"])}


def with_rules(results: Sequence[Result]) -> list[Result]:
    """The results, with the rows of `tables/rules` computed for those that are compared with rules."""
    compared = [each for each in results if each.collected and each.collected.rules]
    rules = zip(map(id, compared), all_of([each.measured.followed for each in compared]), strict=True)
    followed = {of: partial(_rules_table, rows) for of, rows in rules}
    complete = []
    for each in results:
        if (rows := followed.get(id(each))) and each.collected:
            totals = replace(each.collected, rules=rows)
            each = replace(each, measured=replace(each.measured, followed=rows), collected=totals)  # noqa: PLW2901
        complete.append(each)
    return complete


def _rules_table(table: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:  # seed unused: a report has one
    return table


def _can_be_patched(model: Model) -> bool:
    return len(model.config.stacks) == 1 and model.config.output != "none"


def _effects(model: Model, behaviour: Behaviour, patched: Sequence[Patched], pairs: int | None, seed: int) -> Effects:
    """The effects of patching: our tasks' if they were patched, else those of the user's own behaviour."""
    if len(model.config.stacks) > 1:
        return no_effects(behaviour.name, _TWO_STACKS)
    if behaviour.effects is None:
        return no_effects(behaviour.name, "there are no minimal pairs for it")
    if patched:
        return joined(behaviour.name, patched)
    return behaviour.effects(model, **({} if pairs is None else {"pairs": pairs}), seed=seed)


def _gather(run: Run, model: Model, source: Serving, kind: Heads, behaviours: Sequence[Behaviour]) -> list[_Sums]:
    makers = [partial(each.collector, seed=run.seed, heads=kind) for each in behaviours]
    by_norm = [partial(each.collector, seed=run.seed, heads=kind, **each.bare) for each in behaviours]
    say = partial(run.say, f"{', '.join(each.name for each in behaviours)}: reading")
    reading = Reading(model, source.corpus, say, heads=kind)
    totals = collect_in_lots(reading, makers, by_norm if isinstance(model, Transformer) else ())
    pairs = zip_longest(totals[: len(behaviours)], totals[len(behaviours) :])
    return [_Sums(behaviour, kind, source, *pair) for behaviour, pair in zip(behaviours, pairs, strict=True)]


def _table(sums: _Sums, seed: int) -> Measured | str:
    """What the totals say of every head, or why nothing; without `rules`, which cannot be sent between processes."""
    try:
        if isinstance(sums.totals, InputError):
            raise sums.totals
        measured = replace(sums.totals, rules=None).measured(seed=seed)
        refuse_unread(measured.counts, sums.serving.corpus.name)
    except InputError as error:
        return str(error)
    return measured


def _table_by_norm(sums: _Sums, seed: int) -> pd.DataFrame | None:
    if isinstance(sums.totals, Collected) and isinstance(sums.by_norm, Collected):
        return sums.by_norm.table(seed=seed)
    return None


def _not_measured(behaviour: Behaviour, kind: Heads, corpus: Corpus, stands_in: bool = False, *, why: str) -> Result:
    nothing = Measured(pd.DataFrame(columns=HEAD_COLUMNS)), Effects(pd.DataFrame(columns=EFFECT_COLUMNS))
    return Result(behaviour, kind, corpus, stands_in, *nothing, left_out=why)


def section(result: Result, by_kind: bool, evidence: pd.DataFrame | None = None) -> Part:
    """A summary line and a section; both name the kind of attention if a model has several (`by_kind`).

    `evidence` holds the rows of `tables/evidence` if labels were requested.
    """
    name, described, measured, tested = result.name(by_kind), result.behaviour.described, result.measured, result.tested
    id = "-".join([result.behaviour.name, *([result.kind.stack, result.kind.attention] if by_kind else [])])
    caveats = [*map(doc.caveat, _caveats(result, by_kind=by_kind))]
    if result.left_out:
        why = f"Not measured: {result.left_out}."
        paragraph = f"{described} It was to be measured on {result.corpus.title}." if result.readable else described
        section = doc.Section(name, [paragraph, doc.caveat(why), *caveats], id)
        return Part([section], short=[(doc.link(name, id), why)])
    kind = {"stack": result.kind.stack, "attention": result.kind.attention, "behaviour": result.behaviour.name}
    rows = pd.DataFrame() if evidence is None else evidence.loc[(evidence[[*kind]] == [*kind.values()]).all(axis=1)]
    bars = dict(zip(rows["measure"], rows["bar"], strict=True)) if len(rows) else None
    lines, causal = attention(result.behaviour, measured, bars), cause(tested)
    tasks = [*zip(tested.tasks, causal, strict=False)]
    asked = [[doc.emphasis(task.get("question", task["task"])), " ", text] for task, text in tasks]
    documents = f", {counted(measured.documents, 'document')}" if measured.documents else ""
    prefix = f"{result.kind.called}-" if by_kind else ""
    blocks = [
        f"{described} Measured on {result.corpus.title}{documents}.",
        *caveats,
        doc.Bullets(lines),
        *(replace(figure, name=prefix + figure.name) for figure in result.figures),
        doc.Section("What happens when a head is replaced?", [doc.Bullets(asked)] if asked else causal),
        doc.Details("The numbers", _numbers(result)),
    ]
    first = next(([text] for task, text in tasks if _carriers(task, tested)), [])
    return Part([doc.Section(name, blocks, id)], short=[(doc.link(name, id), doc.Bullets([lines[0], *first]))])


def leading(behaviour: Behaviour, shown: Collection[str]) -> list[str]:
    """The `shown` headline measures, without those that only narrow another one, such as `antecedent:named`."""
    return [name for name in behaviour.headline if name in shown and name.rpartition(":")[0] not in shown]


def head_grids(
    name: str, heads: pd.DataFrame, measures: Sequence[str], behaviour: Behaviour | None = None
) -> Iterator[tuple[str, Callable[..., Figure]]]:
    """Functions that draw a grid of all heads, by name: one for each ranked unit, so that each grid has one scale.

    The `behaviour` supplies the words of panel titles and the questions in figure titles.
    """
    units = dict(zip(heads["measure"], heads["unit"], strict=True))
    present = [measure for measure in measures if measure in units and UNITS[units[measure]].ranked]
    vocabularies = vocabulary({name: behaviour}) if behaviour else {}
    words = {measure: worded(measure, vocabularies).short for measure in present}
    for unit in dict.fromkeys(units[measure] for measure in present):
        group = [measure for measure in present if units[measure] == unit]
        rows = heads.replace({"measure": words})  # all rows: whether a head shows one measure may depend on another
        title = behaviour.grids.get(unit, "?") if behaviour else "?"
        draw = partial(head_grid, rows, [words[each] for each in group], title=title, quantity=UNITS[unit].drawn)
        yield f"{name.replace(' ', '-')}-heads" + f"-{unit}" * (unit != "share"), draw


def _caveats(result: Result, *, by_kind: bool) -> list[str]:
    headline, tokens = result.behaviour.headline, result.counts.get("tokens", 0)
    unknown = result.counts.get("unknown tokens", 0)
    absent = ", ".join(measure_name(name) for name in headline if name in result.measured.absent)
    groups = _headline(result.measured.heads, headline).groupby("measure", sort=False)
    items = {str(name): max(rows["n"].tolist()) for name, rows in groups}
    few = ", ".join(f"{measure_name(name)} {n}" for name, n in items.items() if n < FEW_ITEMS)
    untold = by_kind and result.kind.stack == "decoder" and "targets" not in result.corpus.annotates
    caveats: dict[str, object] = {"no targets": untold, "on generated": result.generated}
    if not result.left_out:
        caveats["few documents"] = (result.measured.documents or FEW_DOCUMENTS) < FEW_DOCUMENTS
        caveats |= {"unknown tokens": unknown > UNKNOWN * tokens, "no item": absent, "few items": few}
    share = f"{unknown / tokens:.0%}" if tokens else ""
    return [TEXTS[name].format(share=share, absent=absent, few=few) for name, holds in caveats.items() if holds]


def _headline(rows: pd.DataFrame, headline: Sequence[str]) -> pd.DataFrame:
    return rows.loc[rows["measure"].isin(list(headline)) & (rows["sink"] == "kept")]


def attention(behaviour: Behaviour, measured: Measured, bars: Mapping[str, float] | None = None) -> list[Text]:
    """For each headline measure that any head shows, the best head and how many others show it.

    `bars` gives, by measure, the gain that no untrained head exceeds; None if there are no labels.
    """
    heads, rows, words = measured.heads, notable(measured.heads), vocabulary({behaviour.name: behaviour})
    n_heads, compared = len(heads[HEAD].drop_duplicates()), beside_rules(measured)
    rules = {tuple(row[column] for column in _CELL): row for row in compared.to_dict("records")}

    def clause(row: Mapping[str, Any]) -> str:
        head, said = head_name(row["layer"], row["head"]), worded(str(row["measure"]), words)
        rule = rules.get(tuple(row[column] for column in _CELL), {"rival": OTHERS})  # as on the head's card
        return attention_clause(row, head, said) if rule["rival"] == OTHERS else choice_clause(rule, head, said)

    lines: list[Text] = []
    for measure in leading(behaviour, set(rows["measure"])):
        for first, *rest in filter(None, [best(rows, [measure], len(rows)).to_dict("records")]):
            names = ", ".join(head_name(row["layer"], row["head"]) for row in rest[:3])
            line = f"{clause(first)}."
            line += f" {len(rest) + 1} of {n_heads} heads gain over the baseline; next: {names}." if names else ""
            if (bar := (bars or {}).get(measure, 0.0)) >= NOTABLE:
                gain = percent(bar) if first["unit"] == "share" else number(bar)
                reach = "gain as much" if first["gain"] <= bar else f"gain less than {gain}"
                line += f" Untrained heads {reach}."
            if rule := rules.get(tuple(first[column] for column in _CELL)):
                line += f" {WORDS['tag_verdicts' if rule['rival'] == OTHERS else 'rule_verdicts'][rule['verdict']]}"
            lines.append(line)
    if not lines:
        closest = best(heads.loc[heads["unit"] == "share"], behaviour.headline, 1).to_dict("records")
        return [" The closest: ".join(["No head stands out.", *(f"{clause(row)}." for row in closest)])]
    for of_tags, group in compared.groupby(compared["rival"] == OTHERS):  # tags and rules are counted apart
        kind, verdicts = ("tag" if of_tags else "rule"), [*group["verdict"]]
        counts = {says: verdicts.count(verdict) for verdict, says in WORDS[f"{kind}_counts"].items()}
        parts = [f"{says} in {number(count)}" for says, count in counts.items() if count]
        lines.append(TEXTS[f"against {kind}s"].format(number(len(group)), listed(parts)))
    return [*lines, *([TEXTS["no bars"]] if bars is None else [])]


def beside_rules(measured: Measured) -> pd.DataFrame:
    """Rows of `tables/rules` for heads that beat every fixed offset, best on the choosing half first."""
    rules = measured.rules
    if rules.empty:
        return rules.reindex(columns=RULE_COLUMNS)
    rows = rules.merge(notable(measured.heads)[_CELL], on=_CELL)
    return rows.sort_values("choosing_margin", ascending=False, kind="stable")


def cause(tested: Effects) -> list[Text]:
    """What the causal tests showed, in a sentence or two for each task."""
    if tested.left_out:
        return [tested.left_out]
    return [task_sentence(task, _carriers(task, tested)) for task in tested.tasks] or ["No task was run."]


def _carriers(task: Mapping[str, Any], tested: Effects) -> list[dict[Any, Any]]:
    return [] if task.get("refused") else causes(tested.table, task["task"]).to_dict("records")


def strongest(heads: pd.DataFrame, headline: Sequence[str]) -> list[doc.Table]:
    """For each unit, the heads with the largest gains in the headline measures, whether or not they are findings."""
    no_sink = heads.loc[heads["sink"] == "removed", [*_CELL, "value"]].rename(columns={"value": "without"})
    rows = _headline(heads, headline).merge(no_sink, on=_CELL, how="left")
    tops = [(UNITS[unit].title, rows.loc[rows["unit"] == unit].nlargest(_ROWS, "gain")) for unit in RANKED]
    caption = "{}. The {} largest gains, findings or not."
    return [
        SCHEMAS["heads"].page(top.to_dict("records"), _COLUMNS, caption.format(title, len(top)))
        for title, top in tops
        if len(top)
    ]


def _numbers(result: Result) -> list[doc.Table]:
    """Tables of the largest gains, the baselines, heads beside rules, and the heads that answers need."""
    headline, baselines = result.behaviour.headline, result.measured.baselines
    tables = strongest(result.measured.heads, headline)
    if len(baselines) and len(baselines := _headline(baselines, headline)):
        measures = [measure for measure in headline if measure in set(baselines["measure"])]
        table = baselines.pivot_table(index="baseline_name", columns="measure", values="value", sort=False)[measures]
        table = table.loc[(table.round(3) != 0).any(axis=1)]
        cells = [[measure_name(str(name)), *map(number, row)] for name, row in table.iterrows()]
        columns = ["rule", *map(measure_name, measures)]
        tables.append(doc.Table(columns, cells, "l" + "r" * len(measures), TEXTS["baselines"]))
    compared = beside_rules(result.measured)
    if len(strict := compared.loc[compared["rival"] != OTHERS].drop_duplicates("measure")):
        columns = "head measure asked value best errs own detectable verdict follows"
        tables.append(SCHEMAS["rules"].page(strict.to_dict("records"), columns, TEXTS["followed"]))
    carriers = [row for task in result.tested.tasks for row in _carriers(task, result.tested)]
    if carriers:
        tables.append(SCHEMAS["both ways"].page(carriers, f"task head {WAYS}", TEXTS["both ways"]))
    return tables
