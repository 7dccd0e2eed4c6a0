"""How is a finding worded? One template a kind of finding; headline, card, terminal and report say it alike.

A template is filled from rows of tables. Percentages have two digits; intervals stand beside the sentence.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analyses.headlines.facts import Cells, Fact, Size, flips
from analyses.measures.definitions import Measure
from analyses.measures.findings import FEW_ITEMS, NOTABLE
from analyses.position import REPEATS
from analyses.scoring.rules import ANTECEDENT, NO_RULE, OTHERS, RELATION
from analyses.wording.formats import false_discovery_rate, number, percent
from analyses.wording.head_names import Place
from analyses.wording.plain_words import WORDS, Words, answer, plural, readout, rule, tag, taking, worded

UNSURE = 0.8  # of the prompts: a model that is right in fewer is said to be
_SEEN = 0.5  # of a relation's items: a model that sees fewer is said to
_EITHER_WAY = Measure("", binary=True).fewest  # documents that items take which are right or wrong
TEMPLATES: Mapping[str, str] = WORDS["sentences"]


def say(kind: str, **filled: Any) -> str:
    """A sentence of one kind, without its stop."""
    return TEMPLATES[kind].format(**filled)


# Where a head looks.


def looks(cell: Cells, head: str, words: Words) -> str:
    """What a head does, from its row of `heads`: how much of it, and what the strictest baseline gets."""
    filled = {"head": head, "said": words.said}
    if cell["unit"] in {"lift", "correlation"}:
        return say(cell["unit"], **filled, value=cell["value"])
    cases = cell["fewest"] == _EITHER_WAY
    share = (words.share or ("in {} of cases" if cases else "with {} of its attention")).format(percent(cell["value"]))
    rival = rule(str(cell["baseline_name"]), "word" if cases else "token")
    where = f" on {cell['corpus']}" if cell["corpus"] == REPEATS else ""
    return say("share", **filled, share=share, where=where, rival=rival, baseline=percent(cell["baseline"]))


def chooses(rules: Cells, head: str, words: Words, *, follows: bool) -> str:
    """From a row of `rules`: how often a head is right, and how often the rule; or that it `follows` one."""
    filled = {"head": head, "said": words.said, "cases": _cases(rules)}
    if follows:
        return say("follows", **filled, predicts=percent(rules["predicts"]))
    return say("chooses", **filled, **_against(rules))


def finds(rules: Cells, head: str) -> str:
    """From a row of `rules`: how often the head is right where the rule is not."""
    return say("finds", head=head, taking=taking(str(rules["rival"])), target=percent(rules["target_share"]))


def closest(cell: Cells, head: str, words: Words, bar: float) -> str:
    """From a row of `rules`, of the half that heads were not chosen on, or of `heads`, that shows nothing.

    `bar` is what heads that have learnt nothing stay below.
    """
    few = f" of only {cell['n']:.0f}" if cell["n"] < FEW_ITEMS else ""
    if "rival" in cell:
        few += " (held-out)" if (cases := _cases(cell)) == "cases" else f" of {cases} (held-out)"
    null = say("null", bar=percent(bar)) if bar >= NOTABLE else ""
    return say("closest", head=head, infinitive=words.infinitive, of=few, **_against(cell)) + null


def _against(cell: Cells) -> dict[str, str]:
    """How often a head is right, the strictest rule or baseline, and how often that is."""
    rival, baseline = ("rival", "rival_value") if "rival" in cell else ("baseline_name", "baseline")
    shares = {"value": percent(cell["value"]), "baseline": percent(cell[baseline])}
    return shares | {"taking": taking(str(cell[rival]))}


def _cases(rules: Cells) -> str:
    """Of which cases a row of rules is: a model that reads from left to right may see few of a relation."""
    return f"the {percent(rules['asked'])} of cases that it sees" if rules["asked"] < _SEEN else "cases"


def beside_rules(rules: Cells) -> str:
    """From a row of `rules`: which simple rule a head goes by, how often that is right, and whether it does more."""
    verdict, follows = rules["verdict"], rules["rule"]
    if rules["rival"] == OTHERS:
        these, those = (plural(tag(each)) for each in rules["measure"].removeprefix("tag:").split("->"))
        return say(f"tags: {verdict}", These=these.capitalize(), these=these, those=those)
    kind = {NO_RULE: "follows no rule", RELATION: "beyond rules", ANTECEDENT: "beyond rules"}.get(
        follows, "follows strictest" if follows == rules["rival"] else "follows another"
    )
    filled = {"taking": taking(str(rules["rival"])), "rival": percent(rules["rival_value"]), "rule": follows}
    goes = say(kind, **filled, follows=rule(str(follows)), predicts=percent(rules["predicts"]))
    return f"On the half that reports {goes}: {TEMPLATES[verdict]}."


# What the model needs.


def carries(effect: Cells, task: Cells, head: str) -> str:
    """From a row of `effects` and one of `tasks`: what of an answer is lost without a head."""
    whole = answer(task.get("carried") or str(effect["task"]))
    said = say("carries", head=head, effect=percent(effect["effect"]), answer=whole, flips=flips(effect))
    accuracy = task.get("accuracy", 1.0)
    return said + (say("unsure", accuracy=percent(accuracy)) if accuracy < UNSURE else "")


def hidden(label: Cells, head: str, words: Words) -> str:
    """From a row of `labels`: what the model loses without what a head looks at."""
    return say("hidden", head=head, short=words.short, effect=label["effect"])


def task(task: Cells, carriers: Sequence[Cells]) -> str:
    """What replacing heads removes of a task's answer, and what each restores by itself; or why none was tested.

    Args:
        task: as a row of `tasks`.
        carriers: heads that carry the answer, the first first (`analyses.measures.findings.causes`).
    """
    whole = answer(task.get("carried") or task["task"])
    if why := (task.get("refused") or "").rstrip("."):
        return say("refused", answer=whole, why=why)
    said = [say("no carrier", least=percent(NOTABLE), answer=whole)]
    for at, row in enumerate(carriers):
        ways = [way for way in ("noise", "denoise") if way in row]
        shares = {way: percent(row[way]) for way in ways}
        changed = " and ".join(f"{row[f'{way}_flips']:.0f}" for way in ways) + f" of {row['n']:.0f}"
        head = Place.of(row).named(several=False)
        if at:
            said[0] += f"; {head} {' and '.join(shares.values())} ({changed})"
        else:
            said = [say(", ".join(ways), head=head, answer=whole, **shares) + f" ({changed} answers change)"]
    if task.get("accuracy", 1.0) < UNSURE:  # undefined: nothing is said
        decides = "; what these heads carry often does not decide its answer" if carriers else ""
        said.append(say("rarely right", accuracy=percent(task["accuracy"]), decides=decides))
    return ". ".join(said) + "."


# One fact of a head.


def fact(fact: Fact, head: str, vocabulary: Mapping[str, Words]) -> str:
    """The sentence of a fact, without its stop: where a head looks, and what a rule gets; or what the model needs."""
    effect, pairs, rules, label, cell = map(fact.row, ("effects", "tasks", "rules", "labels", "heads"))
    words = worded(fact.name, vocabulary)
    if effect is not None:
        return carries(effect.cells, pairs.cells if pairs else {}, head)
    if fact.kind == "needed" and label is not None:
        return hidden(label.cells, head, words) + TEMPLATES["alone"]
    if rules is not None and fact.label.kind != "any":
        return chooses(rules.cells, head, words, follows=fact.label.kind == "rule")
    assert cell is not None
    return looks(cell.cells, head, words)


def size(size: Size) -> str:
    """A number in words, with its interval."""
    numbers = {"value": size.value, "low": size.low, "high": size.high}
    if size.unit == "lift":
        return say("size of lift", **{name: f"{1 + value:.1f}" for name, value in numbers.items()})
    if size.unit == "share" and size.what != "gain":
        q = f", {rate(size.q)}" if np.isfinite(size.q) else ""
        shares = {name: percent(value) for name, value in numbers.items()}
        return say("size of share", what=size.what, **shares, over=size.over, q=q)
    kind, beyond = ("size of nats", readout(size.over)) if size.unit == "nats" else ("size of gain", over(size))
    return say(kind, what=size.what, **{name: number(value) for name, value in numbers.items()}, over=beyond)


def brief(size: Size) -> str:
    """A size by itself, and in a word what it is of; what a gain is over has no room beside a bar."""
    if size.unit == "share" and size.what != "gain":
        return f"{percent(size.value)} {size.what.partition(' ')[0]}"
    briefs = {"lift": f"{1 + size.value:.1f}× expected", "nats": f"{size.value:.2f} nats lost"}
    return briefs.get(size.unit, f"{number(size.value, sign=True)} gain")


def over(size: Size) -> str:
    """What a gain is over."""
    return rule(size.over, "token") if size.over else "its baseline"


def rates(fact: Fact) -> str:
    """The false discovery rates of a fact, where they do not stand beside its sizes."""
    if np.isfinite(fact.q_effect):
        effect = false_discovery_rate(fact.q_effect).replace("< ", "<\u00a0")
        return f"{rate(fact.q)} of attention, {effect} of effect"
    return "" if np.isfinite(fact.sizes[0].q) else rate(fact.q)


def rate(q: float) -> str:
    """A false discovery rate, on one line."""
    return f"false discovery rate {false_discovery_rate(q)}".replace("< ", "<\u00a0")


def numbers(fact: Fact) -> list[str]:
    """All numbers of a fact: its sizes with their intervals, and its false discovery rates."""
    return [*map(size, fact.sizes), *filter(None, [rates(fact)])]
