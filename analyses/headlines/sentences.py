"""How is a finding worded? One template per kind of finding, shared by headline, card, terminal and report.

Rows of tables fill the templates of `words.toml`. Percentages have two digits; intervals stand beside the sentence.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from analyses.behaviours import vocabulary
from analyses.headlines.facts import Cells, Fact, Size, Tables, flips, rank, strongest
from analyses.headlines.flip_panel import has_two_people
from analyses.measures.definitions import DECLARED, Behaviour, Measure
from analyses.measures.findings import FEW_ITEMS, NOTABLE
from analyses.position import REPEATS
from analyses.wording.formats import false_discovery_rate, number, percent
from analyses.wording.head_names import HEAD, Place, head_name, kinds
from analyses.wording.plain_words import WORDS, Words, answer, listed, readout, rule, taking, worded

UNSURE = 0.8  # a sentence mentions the model's accuracy on the prompts if it is lower
_FULL_VIEW = 0.5  # a sentence mentions the share of a relation's items that the model sees if it is smaller
_RIGHT_OR_WRONG = Measure("", binary=True).fewest  # documents that a measure of right or wrong needs
TEMPLATES: Mapping[str, str] = WORDS["sentences"]
_COUNTS = ("No", "One", "Two", "Three", "Four", "Five", "Six")
Verdict = Literal["found", "part", "attention", "effect", "rules", "none", "untested"]


def say(kind: str, **values: Any) -> str:
    """A sentence of one kind, without its full stop."""
    return TEMPLATES[kind].format(**values)


def attention_clause(cell: Cells, head: str, words: Words) -> str:
    """From a row of `heads`: how much of it a head does, and what the strictest baseline reaches."""
    values = {"head": head, "said": words.said}
    if cell["unit"] in {"lift", "correlation"}:
        return say(cell["unit"], **values, value=cell["value"])
    cases = cell["fewest"] == _RIGHT_OR_WRONG
    share = (words.share or ("in {} of cases" if cases else "with {} of its attention")).format(percent(cell["value"]))
    rival = rule(str(cell["baseline_name"]), "word" if cases else "token")
    suffix = f" on {cell['corpus']}" if cell["corpus"] == REPEATS else ""
    return say("share", **values, share=share, where=suffix, rival=rival, baseline=percent(cell["baseline"]))


def choice_clause(rules: Cells, head: str, words: Words, *, follows: bool = False) -> str:
    """From a row of `rules`: how often the head and the rule are right, or that the head `follows` a rule."""
    values = {"head": head, "said": words.said, "cases": _cases(rules)}
    if follows:
        return say("follows", **values, predicts=percent(rules["predicts"]))
    return say("chooses", **values, **_shares(rules))


def closest_clause(cell: Cells, head: str, words: Words, bar: float) -> str:
    """From a row of `heads` without a finding, or of `rules` on the half that did not choose heads.

    Untrained heads stay below `bar`.
    """
    few = f" of only {cell['n']:.0f}" if cell["n"] < FEW_ITEMS else ""
    if "rival" in cell:
        few += " (held-out)" if (cases := _cases(cell)) == "cases" else f" of {cases} (held-out)"
    null = say("null", bar=percent(bar)) if bar >= NOTABLE else ""
    if (strength := cell.get("detectable")) is not None and math.isnan(strength):
        null += say("would not be seen")
    elif strength is not None:
        null += say("would be seen", strength="nearly all" if strength > 0.9 else f"{math.ceil(10 * strength)} of 10")
    return say("closest", head=head, said=words.said, of=few, **_shares(cell)) + null


def _shares(cell: Cells) -> dict[str, str]:
    rival, baseline = ("rival", "rival_value") if "rival" in cell else ("baseline_name", "baseline")
    shares = {"value": percent(cell["value"]), "baseline": percent(cell[baseline])}
    return shares | {"taking": taking(str(cell[rival]))}


def _cases(rules: Cells) -> str:
    return f"the {percent(rules['asked'])} of cases that it sees" if rules["asked"] < _FULL_VIEW else "cases"


def effect_clause(effect: Cells, task: Cells, head: str) -> str:
    """From rows of `effects` and `tasks`: how much of an answer is lost without a head."""
    whole = answer(task.get("carried") or str(effect["task"]))
    clause = say("carries", head=head, effect=percent(effect["effect"]), answer=whole, flips=flips(effect))
    return clause + _accuracy(task)


def claim(fact: Fact, head: str, vocabulary: Mapping[str, Words]) -> str:
    """The first words of a card, without full stop: the fact or, for a task's answer, only how far it moves."""
    effect, pairs = fact.row("effects"), fact.row("tasks")
    if effect is None:
        return fact_clause(fact, head, vocabulary)
    task: Cells = pairs.cells if pairs else {}
    whole = answer(task.get("carried") or str(effect["task"]))
    return say("moves", answer=whole, effect=percent(effect["effect"])) + _accuracy(task)


def _accuracy(task: Cells) -> str:
    share = task.get("accuracy", 1.0)
    return say("unsure", accuracy=percent(share)) if share < UNSURE else ""


def hiding_clause(label: Cells, head: str, words: Words) -> str:
    """From a row of `labels`: what the model loses without what a head looks at."""
    reader = readout(label["readout"]) if str(label["readout"]).endswith("probe") else "the model"
    return say("hidden", head=head, short=words.short, reader=reader, effect=label["effect"])


def set_clause(row: Cells, words: Words) -> str:
    """From a row of `sets`: the model's loss without what several heads look at, and the loss from other heads."""
    heads = listed(row["heads"].split("+"))
    costs = {name: max(row[name], 0.0) for name in ("effect", "others_best", "singles")}
    return say("together", heads=heads, look=words.infinitive, size=row["size"], **costs)


def writers_clause(row: Cells, vocabulary: Mapping[str, Words]) -> str:
    """From a family's row of `writers`: who wrote the keys that a head finds, and where it looks without them."""
    n, members, name = int(row["others_size"]), str(row["members"]).split("+"), str(row["writer"])
    count, (head, *more) = "another head" if n == 1 else f"{n} other heads" if n else "other writers", members
    if name in members:
        writers = part_words(name)
    elif more:
        writers = say("family of heads", count=len(members), infinitive=worded(name, vocabulary).infinitive)
    else:
        writers = say("head of a label", head=part_words(head), said=worded(name, vocabulary).said)
    if not row["others"]:
        return say("only writer", writers=writers)
    others = say("other writers", count=count, value=percent(row["others_without"]))
    attention = {name: percent(row[name]) for name in ("before", "without")}
    goes = "falls" if row["without"] <= row["before"] else "rises"
    return say("writers" if row["explains"] else "no writers", writers=writers, goes=goes, others=others, **attention)


def readers_clause(rows: Sequence[Cells]) -> str:
    """From rows of `readers`: who reads a head, and how much of the answer goes if that is cut."""
    signs = ["+" if row["effect"] < 0 else "" for row in rows]
    shares = [sign + percent(-row["effect"]) for sign, row in zip(signs, rows, strict=True)]
    (first, share), *rest = zip((part_words(row["reader"]) for row in rows), shares, strict=True)
    return say("readers", first=first, share=share, rest="".join(f", {words} ({share})" for words, share in rest))


def part_words(name: str) -> str:
    """A writer or a reader in words: `decoder.0.head.3`, `decoder.1.mlp`, `mlp.1`, `2.4.k`, `logits`."""
    parts, numbers = name.split("."), [int(part) for part in name.split(".") if part.isdigit()]
    kind = next(kind for kind in (*WORDS["writers"], "") if kind in {name, *parts, ""})
    head = head_name(*numbers) if len(numbers) == 2 else ""
    return WORDS["writers"][kind].format(head=head, layer=numbers[-1] if numbers else "") if kind else head


def task_sentence(task: Cells, carriers: Sequence[Cells]) -> str:
    """How much of a task's answer replacing heads removes, and how much each restores alone; or why none was tested."""
    whole = answer(task.get("carried") or task["task"])
    if why := (task.get("refused") or "").rstrip("."):
        return say("refused", answer=whole, why=why)
    sentences = [say("no carrier", least=percent(NOTABLE), answer=whole)]
    for index, row in enumerate(carriers):
        ways = [way for way in ("noise", "denoise") if way in row]
        shares = {way: percent(row[way]) for way in ways}
        changed = " and ".join(f"{row[f'{way}_flips']:.0f}" for way in ways) + f" of {row['n']:.0f}"
        head = Place.from_row(row).named(prefix=False)
        if index:
            sentences[0] += f"; {head} {' and '.join(shares.values())} ({changed})"
        else:
            sentences = [say(", ".join(ways), head=head, answer=whole, **shares) + f" ({changed} answers change)"]
    if task.get("accuracy", 1.0) < UNSURE:  # undefined accuracy: no remark
        decides = ", so what these heads carry often does not decide the answer" if carriers else ""
        sentences.append(say("rarely right", accuracy=percent(task["accuracy"]), decides=decides))
    return ". ".join(sentences) + "."


def fact_clause(fact: Fact, head: str, vocabulary: Mapping[str, Words]) -> str:
    """A fact's sentence, without full stop: where a head looks and what a rule reaches, or what the model needs."""
    effect, pairs, rules, label, cell = map(fact.row, ("effects", "tasks", "rules", "labels", "heads"))
    words = worded(fact.name, vocabulary)
    if (heads := fact.row("sets")) is not None:
        return set_clause(heads.cells, words)
    if effect is not None:
        return effect_clause(effect.cells, pairs.cells if pairs else {}, head)
    if fact.kind == "needed" and label is not None:
        return hiding_clause(label.cells, head, words) + TEMPLATES["alone"]
    if rules is not None and fact.label.kind != "any":
        return choice_clause(rules.cells, head, words, follows=fact.label.kind == "rule")
    assert cell is not None
    return attention_clause(cell.cells, head, words)


def size_text(size: Size) -> str:
    """A number in words, with its interval."""
    numbers = {"value": size.value, "low": size.low, "high": size.high}
    if size.unit == "lift":
        return say("size of lift", **{name: f"{1 + value:.1f}" for name, value in numbers.items()})
    if size.unit == "share" and size.what != "gain":
        q = f", {_rate(size.q)}" if np.isfinite(size.q) else ""
        shares = {name: percent(value) for name, value in numbers.items()}
        return say("size of share", what=size.what, **shares, over=size.over, q=q)
    kind, over = ("size of nats", readout(size.over)) if size.unit == "nats" else ("size of gain", baseline_text(size))
    return say(kind, what=size.what, **{name: number(value) for name, value in numbers.items()}, over=over)


def baseline_text(size: Size) -> str:
    """The baseline of a gain."""
    return rule(size.over, "token") if size.over else "its baseline"


def rates(fact: Fact) -> str:
    """A fact's false discovery rates, unless they are given with its sizes."""
    if np.isfinite(fact.q_effect):
        effect = false_discovery_rate(fact.q_effect).replace("< ", "<\u00a0")
        return f"{_rate(fact.q)} for attention, {effect} for effect"
    return "" if np.isfinite(fact.sizes[0].q) else _rate(fact.q)


def _rate(q: float) -> str:
    return f"false discovery rate {false_discovery_rate(q)}".replace("< ", "<\u00a0")


def numbers(fact: Fact) -> list[str]:
    """All numbers of a fact: its sizes with their intervals, and its false discovery rates."""
    return [*map(size_text, fact.sizes), *filter(None, [rates(fact)])]


@dataclass(frozen=True)
class Sentence:
    """What we say of one behaviour: a verdict of a word or two, and sentences.

    `first` says where a head looks and what a rule reaches or, if only effects were found, what is needed. `rest` says
    what that leaves open: whether the head is right where its rule errs, and what the model needs.
    """

    behaviour: str
    title: str
    verdict: Verdict
    first: str
    rest: str

    @property
    def text(self) -> str:
        """All sentences, in order."""
        return " ".join(filter(None, [self.first, self.rest]))


def sentences(
    tables: Tables, facts: Mapping[Place, Sequence[Fact]], behaviours: Mapping[str, Behaviour]
) -> list[Sentence]:
    """One for each measured behaviour, in the order of `behaviours`."""
    measured, words = set(tables["heads"]["behaviour"]), vocabulary(behaviours)
    return [_sentence(tables, facts, each, words) for name, each in behaviours.items() if name in measured]


def verdicts(sentences: Sequence[Sentence]) -> str:
    """How every behaviour stands, in one line; behaviours with the same verdict share a clause."""
    titles: dict[Verdict, list[str]] = {}
    for each in sentences:
        titles.setdefault(each.verdict, []).append(each.title)
    line = "; ".join(WORDS["verdicts"][verdict].format(names=listed(names)) for verdict, names in titles.items())
    return line[:1].upper() + line[1:]


def headline(
    tables: Tables, facts: Mapping[Place, Sequence[Fact]], sentences: Sequence[Sentence], words: Mapping[str, Words]
) -> tuple[str, str]:
    """The strongest causal finding in one line, and a sentence with its counts; else the strongest by attention.

    Of answers that heads carry, those to prompts with two people come first. Without any finding, the closest head.
    """
    strongest_heads, by_kind = strongest(facts), kinds(tables["heads"]) > 1
    tasks: dict[str, list[tuple[Place, Fact]]] = {}
    for carrier, fact in ((head, fact) for head in strongest_heads for fact in facts[head] if fact.row("effects")):
        tasks.setdefault(fact.name, []).append((carrier, fact))
    if tasks:
        task = min(tasks, key=lambda task: (not has_two_people(task), -max(fact.strength for _, fact in tasks[task])))
        carriers = sorted(tasks[task], key=lambda pair: -pair[1].strength)
        count, declared = len(carriers), DECLARED["tasks"].get(task, {})
        many = _COUNTS[count] if count < len(_COUNTS) else str(count)
        values = {"heads": "head carries" if count == 1 else "heads carry", "many": many}
        line = say("headline", **values, answer=declared.get("headline", answer(carriers[0][1].words.short)))
        return line, _flips_clause(tables, carriers, declared.get("source", "for the other prompt"), by_kind)
    if not strongest_heads:
        return say("nothing"), next((each.first for each in sentences), "")
    place = strongest_heads[0]
    fact, head = facts[place][0], place.named(prefix=by_kind)
    needed = say("and needed") if fact.is_needed and fact.kind != "needed" else ""
    if fact.row("sets") or fact.kind == "needed":
        return fact_clause(fact, head, words), ""
    label = fact.row("labels") if fact.is_needed else None
    loss = f"{hiding_clause(label.cells, head, fact.words)}." if label else ""  # else the card's claim has it all
    return f"{head} {fact.words.said}{needed}", loss


def _flips_clause(tables: Tables, carriers: Sequence[tuple[Place, Fact]], source: str, by_kind: bool) -> str:
    """How many answers flip with the first head, and with the fewest heads that flip nearly all."""
    head, fact = carriers[0][0].named(prefix=by_kind), carriers[0][1]
    row, best = fact.row("effects"), best_set(tables, fact, head)
    assert row is not None
    clause = say("flips", head=head, source=source, flips=f"{row['flips']:.0f}", n=f"{row['n']:.0f}")
    if best is not None:
        flipped = "all" if best["flips"] == best["n"] else f"{best['flips']:.0f}"
        clause += say("flips together", heads=listed(best["heads"].split("+")[1:]), flips=flipped)
    accuracy = next((row["accuracy"] for _, each in carriers if (row := each.row("tasks"))), 1.0)
    return f"{clause}{say('unsure', accuracy=percent(accuracy)) if accuracy < UNSURE else ''}."


def best_set(tables: Tables, fact: Fact, head: str) -> Cells | None:
    """The row of `flips` with the fewest heads, `head` first, that flip at least 95% of what any such set does. None if
    no set flips notably more than the head alone."""
    sets, row = tables.get("flips", pd.DataFrame()), fact.row("effects")
    if row is None or sets.empty:
        return None
    more = sets.loc[(sets["task"] == fact.name) & sets["heads"].str.startswith(f"{head}+")]
    more = more.loc[more["flips"] - row["flips"] >= NOTABLE * row["n"]]
    near = more.loc[more["flips"] >= 0.95 * more["flips"].max()]
    return None if near.empty else near.iloc[int(near["heads"].str.count(r"\+").argmin())].to_dict()


def right_clause(fact: Fact, example: Cells) -> str:
    """In how many cases a head does what a fact says; `example` is one of its rows of examples."""
    rules, cell = fact.row("rules"), fact.row("heads")
    if fact.row("effects"):
        known = "hits" in example and math.isfinite(example["hits"])
        return say("hits", hits=f"{example['hits']:.0f}", asked=f"{example['asked']:.0f}") if known else ""
    if rules is not None and fact.label.kind != "any":
        share = rules["predicts" if fact.label.kind == "rule" else "value"]
        return say("right", hits=number(round(share * rules["n"])), n=number(int(rules["n"])))
    return say("amount", n=number(int(cell["n"]))) if cell is not None and example else ""


def loss_clause(fact: Fact, by_kind: bool) -> str:
    """What changes without the head, in numbers (of a probe if there is no output), or that it was not tested."""
    effect = fact.row("effects")
    if effect is not None:
        ends = {name: effect.cells.get(name) for name in ("n", "flips_low", "flips_high")}
        if None in ends.values():  # early runs have no interval
            return ""
        return say("answers flip", **{name: f"{end:.0f}" for name, end in ends.items()})
    nats = next((size for size in fact.sizes if size.unit == "nats"), None)
    if nats is None:
        return say("untested in two" if by_kind else "untested")
    kind = "not established" if fact.kind == "looks there" else "nats lost"
    clause = say(kind, **{name: number(getattr(nats, name)) for name in ("value", "low", "high")})
    return clause + (say("no output") if nats.over.endswith("probe") else "")


def _sentence(
    tables: Tables, facts: Mapping[Place, Sequence[Fact]], behaviour: Behaviour, words: Mapping[str, Words]
) -> Sentence:
    by_kind = kinds(tables["heads"]) > 1
    pairs = [(place, fact) for place, each in facts.items() for fact in each if fact.behaviour == behaviour.name]
    verdict = _verdict([fact for _, fact in pairs], tested=_is_tested(tables, behaviour.name))
    attending = [(place, fact) for place, fact in pairs if fact.kind != "needed"]
    best = _first([pair for pair in attending if _says_more_than_a_rule(pair[1])] or attending)
    carrier = _first(pair for pair in pairs if pair[1].row("effects"))
    together = _first(pair for pair in pairs if pair[1].row("sets"))
    single = [pair for pair in pairs if not pair[1].row("sets")]
    costly = _first(pair for pair in single if any(size.unit == "nats" for size in pair[1].sizes))
    attention = [] if best else _closest(tables, behaviour, words, by_kind=by_kind)
    if best:
        fact, head = best[1], best[0].named(prefix=by_kind)
        attention.append(fact_clause(fact, head, words))
        rules = fact.row("rules")
        if rules and fact.label.kind not in {"rule", "any"} and math.isfinite(rules["target_share"]):
            target = percent(rules["target_share"])
            attention.append(say("finds", head=head, taking=taking(str(rules["rival"])), target=target))
    effect = [fact_clause(carrier[1], carrier[0].named(prefix=by_kind), words)] if carrier else []
    if not carrier and costly and costly[1].is_needed and (row := costly[1].row("labels")):
        effect = [hiding_clause(row.cells, costly[0].named(prefix=by_kind), worded(costly[1].name, words))]
    effect += [fact_clause(together[1], "", words)] if together else []
    clauses = [f"{each}." for each in ([*effect, *attention] if verdict == "effect" else [*attention, *effect])]
    title = (behaviour.noun or behaviour.title).lower()
    return Sentence(behaviour.name, title, verdict, " ".join(clauses[:1]), " ".join(clauses[1:]))


def _first(pairs: Iterable[tuple[Place, Fact]]) -> tuple[Place, Fact] | None:
    return min(pairs, key=lambda pair: rank(pair[1]), default=None)


def _verdict(facts: Sequence[Fact], *, tested: bool) -> Verdict:
    kinds = {fact.kind for fact in facts if _says_more_than_a_rule(fact)}
    if "looks there and needed" in kinds:
        return "found"
    if "looks there" in kinds:
        return "part" if "needed" in kinds else "attention" if tested else "untested"
    return "effect" if "needed" in kinds else "rules" if facts else "none"


def _says_more_than_a_rule(fact: Fact) -> bool:
    """Whether a fact says more than that a head follows a simple rule, which is a finding only for position."""
    return fact.behaviour == "position" or fact.rung > 1


def _is_tested(tables: Tables, behaviour: str) -> bool:
    tested = [tables[name] for name in ("effects", "evidence") if name in tables and len(tables[name])]
    return any(bool(rows.loc[rows["behaviour"] == behaviour, "effect"].notna().any()) for rows in tested)


def _closest(tables: Tables, behaviour: Behaviour, words: Mapping[str, Words], *, by_kind: bool) -> list[str]:
    """For a behaviour without attention findings, the head closest to what it must beat. If it must beat rules, the
    choosing half picks that head."""
    labelling = [each.name for each in behaviour.measures if each.called and each.unit == "share"]
    labelling = [name for name in labelling if name in behaviour.headline] or labelling
    for table, column in (("rules", "choosing_margin"), ("heads", "gain")):
        rows = tables.get(table, pd.DataFrame(columns=["behaviour", "measure", column, "n"]))
        rows = rows.loc[(rows["behaviour"] == behaviour.name) & rows["measure"].isin(labelling)].dropna(subset=[column])
        rows = rows.loc[rows["sink"] == "kept"] if table == "heads" else rows
        many = rows["n"] >= FEW_ITEMS
        rows = rows.loc[many] if table == "rules" or many.any() else rows
        if len(rows):
            break
    else:
        return []
    row, bar = rows.sort_values(column, ascending=False, kind="stable").iloc[0].to_dict(), 0.0
    if table == "heads" and "bar" in (evidence := tables.get("evidence", pd.DataFrame())):
        key = [*HEAD, "behaviour", "measure"]
        bar = next(iter(evidence.loc[(evidence[key] == [row[name] for name in key]).all(axis=1), "bar"]), 0.0)
    head = Place.from_row(row).named(prefix=by_kind)
    return [closest_clause(row, head, worded(str(row["measure"]), words), bar)]
