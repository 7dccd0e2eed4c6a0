"""A head for every rule, from a fixed offset up to the tree itself, and mixtures of two rules.

Analyses must tell each rung from the next: going to the nearest verb from going to the object's own verb, preferring
nouns from any word from preferring them from verbs. Heads of relation and reference read a hidden code of the words
(`linked_texts`), so on these texts no simpler rule describes them. Sinks rest on a key and read nothing there. Readers
carry the previous word to a head that copies, beside a twin or a head that nothing reads.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.planted import rule_heads
from benchmarks.planted.linked_texts import CODES, SPELLINGS, Linked
from benchmarks.planted.random_models import NORMS, Behaviour, Composed, Form, built, noise
from interp.patterns.positional import offset_name
from models.planted import heads
from models.planted.heads import seek

SHARE = 0.7  # of a mixture's attention: it follows the rule that names it
SINK, READER, UNREAD = "sink", "reader", "unread"
BEATS, *FAILS = "beats", "equivalent", "worse", "cannot tell"  # verdicts of `analyses.scoring.rules`
_SYNTAX, _REFERENCE, _TAG = "relation:", "antecedent", "tag:"
_N_HEADS = 8  # per layer
MIXED = (  # for relation, then reference: the rule that names the mixture, and the other rule
    (
        *(("object", "nearest of class"), ("nearest of class", "object")),
        *(("nearest of class", "offset"), ("offset", "nearest of class")),
    ),
    (
        *(("antecedent", "nearest mention"), ("nearest mention", "antecedent"), ("antecedent", "name-aware")),
        *(("name-aware", "antecedent"), ("leftmost", "antecedent"), ("name-aware", "nearest mention")),
    ),
)


@dataclass(frozen=True)
class Rung(Behaviour):
    """A head that follows a rule.

    In its rows of `measure` (a glob), `tables/rules` must name one of `rules`: its rule or, for lifts, the verdict.
    Without `rules` we expect nothing. If `label` is set, the head must also carry it.
    """

    measure: str = ""
    rules: tuple[str, ...] = ()


def rungs(rng: random.Random, *, causal: bool) -> dict[str, Rung]:
    """One head per rule. In a decoder objects look back at their verbs; in an encoder verbs look ahead at objects."""
    asks, sought, nearest = ("thing", "verb", "last VERB") if causal else ("verb", "noun", "next NOUN")
    tag = "tag:NOUN->VERB" if causal else "tag:VERB->NOUN"
    relation = f"relation:obj:{'dependent->head' if causal else 'head->dependent'}"
    by = rng.choice((-4, -3, -2) if causal else (1, 2, 3))
    rests = () if causal else ("first-token",)  # if an encoder's heads have no target
    people = ("tag:PRON->PROPN", "rule:any->PROPN", *rests)
    syntax: dict[str, Any] = {"measure": relation, "never": (_SYNTAX, _REFERENCE)}
    reference: dict[str, Any] = {"measure": "antecedent:named", "never": (_SYNTAX, _REFERENCE)}
    linked = {f"{asks} {code}": [f"{'verb' if causal else 'thing'} {code}"] for code in range(CODES)}
    chains = {f"{sex} {code}": [f"{who} {code}"] for sex, who in _SEXES.items() for code in range(CODES)}
    forms, sexes = ({form: ["mention", form] for form in SPELLINGS}, {sex: [f"name or {sex}"] for sex in _SEXES})
    classes, before = rule_heads.classes, partial(seek, itself=False)
    beats, nouns = {"measure": "tag:VERB->NOUN", "rules": (BEATS,)}, ("tag:PRON->NOUN", *people)
    fails: dict[str, Any] = {"measure": "tag:*->NOUN", "rules": (*FAILS,), "never": _MEANINGFUL}
    rules = (
        Rung("uniform", heads.uniform, measure=relation, rules=("no rule",), never=("",)),
        Rung("offset", heads.offset(by), synonyms=(offset_name(by),), rules=(f"offset {by:+d}",), **syntax),
        Rung("class of key", classes({"word": "noun"}), synonyms=("rule:any->NOUN",), **fails),
        Rung("comma lover", classes({"word": "stop"}), never=_MEANINGFUL),
        Rung("tag pair", classes({"verb": "noun"}), None, ("tag:VERB->NOUN",), **(syntax | beats)),
        Rung(
            "nearest of class",
            seek({asks: [sought]}, after=not causal),
            f"rule:{nearest}",
            (tag, f"rule:{nearest}*", *rests),
            rules=(nearest,),
            **syntax,
        ),
        Rung(
            "object",
            seek(linked, after=not causal),
            relation,
            (tag, *rests),
            rules=("the relation itself",),
            measure=relation,
            never=(_REFERENCE,),
        ),
        Rung("nearest mention", before({"pronoun": ["mention"]}), None, nouns, rules=("nearest",), **reference),
        Rung("same form", before(forms), None, (*nouns, "duplicate-token"), rules=("same form",), **reference),
        Rung("name-aware", before(sexes), None, people, rules=("name or gender",), **reference),
        Rung("leftmost", seek({"pronoun": ["opener"]}), None, people, rules=("leftmost person",), **reference),
        Rung(
            "antecedent",
            seek(chains),
            "antecedent",
            people,
            rules=("the antecedent itself",),
            **(reference | {"never": (_SYNTAX,)}),
        ),
    )
    return {each.name: each for each in rules}


_SEXES: Mapping[str, str] = {"male": "man", "female": "woman"}
_MEANINGFUL = (_TAG, _SYNTAX, _REFERENCE)


def mixed(first: Rung, second: Rung, marks: tuple[int, int]) -> Rung:
    """A head whose attention follows the first rule (which names it) by `SHARE`, and otherwise the second."""
    also = (*first.synonyms, *second.synonyms, *(each.label for each in (first, second) if each.label))
    allowed = tuple(name for name in also if not name.startswith(first.never))
    return replace(
        first,
        name=f"{first.name} with {second.name}",
        plan=rule_heads.mixture(*marks, SHARE),
        synonyms=allowed,
    )


def compose_rungs(seed: int, *, form: Form = "decoder") -> Composed:
    """A planted model of two layers: a head for each rule, a mixture of relation, one of reference, and noise.

    `seed` draws the words, the heads' places, the norm and the rest.
    """
    rng = random.Random(f"rungs-{seed}")
    lexicon = Linked.draw(rng)
    by_name = rungs(rng, causal=form != "encoder")
    pairs = [rng.choice(pairs) for pairs in MIXED]
    marks = {name: number for number, name in enumerate(name for pair in pairs for name in pair)}
    above = [mixed(by_name[first], by_name[second], (marks[first], marks[second])) for first, second in pairs]
    below = [
        replace(by_name[name], plan=rule_heads.marked(by_name[name].plan, number)) for name, number in marks.items()
    ]
    others = [each for each in by_name.values() if each.name not in marks]
    rng.shuffle(others)
    layers = [below + others[: _N_HEADS - len(below)], above + others[_N_HEADS - len(below) :]]
    return _composed(lexicon, layers, form, rng, marks=len(marks))


def compose_sinks(seed: int, *, form: Form = "decoder") -> Composed:
    """A planted decoder of three heads that rest on the first position and harm predictions by what else they read."""
    rng = random.Random(f"sinks-{seed}")
    resting = Behaviour(SINK, heads.first_token, "first-token")
    layers = [[replace(resting, plan=rule_heads.sink(by))] for by in rng.sample((-3, -2, -1), 3)]
    return _composed(Linked.draw(rng), layers, form, rng, n_heads=2)


def compose_readers(seed: int, *, twins: bool, form: Form = "decoder") -> Composed:
    """A planted decoder with two previous-word heads, and a head that copies what the first one reads.

    With `twins` it reads both, and either suffices; otherwise nothing reads the second.
    """
    rng = random.Random(f"readers-{seed}")
    reader = Behaviour(READER, heads.offset(-1, remember=True), "previous-token")
    unread = Behaviour(UNREAD, rule_heads.marked(heads.offset(-1), 0), "previous-token")
    copying = Behaviour("induction", heads.induction(10.0), "induction")
    layers = [[reader, reader if twins else unread], [copying]]
    return _composed(Linked.draw(rng), layers, form, rng, n_heads=4, marks=1)


def _composed(
    lexicon: Linked,
    layers: Sequence[Sequence[Behaviour]],
    form: Form,
    rng: random.Random,
    n_heads: int = _N_HEADS,
    marks: int = 0,
) -> Composed:
    """The layers' heads in random order, filled up with noise."""
    full = [rng.sample([*layer, *(noise(rng) for _ in range(n_heads - len(layer)))], n_heads) for layer in layers]
    n_kv_heads = n_heads // 2 if form == "grouped" else None
    return built(lexicon, full, form, rng.choice(NORMS), marks=marks, n_kv_heads=n_kv_heads)
