"""Which keys does each planted head attend to, by its definition? Tests compare its attention with them."""

from collections.abc import Iterator, Sequence

from benchmarks.planted import linked_texts
from benchmarks.planted.linked_texts import SPELLINGS
from benchmarks.planted.planted_texts import HE, SHE
from benchmarks.planted.random_models import Composed
from interp import AnnotatedText

PRONOUNS = {spelling: form for form, spellings in SPELLINGS.items() for spelling in spellings}


def attended(name: str, words: Sequence[str], at: int, composed: Composed, causal: bool) -> set[int] | None:
    """The keys that share a row's attention equally; None if the definition leaves them open."""
    visible = set(range(at + 1)) if causal else set(range(len(words)))
    if name in {"previous-token", "next-token"} or name.startswith("offset:"):
        by = {"previous-token": -1, "next-token": 1}.get(name) or int(name.partition(":")[2])
        return {at + by} if at + by in range(len(words)) else visible
    if name == "first-token":
        return {0}
    if name == "duplicate-token":
        return {key for key in visible if words[key] == words[at]}
    if name == "induction":
        after_copies = {key for key in visible if key and words[key - 1] == words[at]}
        return after_copies or (visible if causal else None)  # an encoder's first token remembers some of everything
    return sought(name, words, at, composed, causal)


def sought(name: str, words: Sequence[str], at: int, composed: Composed, causal: bool) -> set[int]:
    lexicon = composed.lexicon
    names, nouns = {*lexicon.masculine, *lexicon.feminine}, {*lexicon.animals, *lexicon.things}
    own_form = {*HE} if words[at] in HE else {*SHE}
    subjects = {*lexicon.animals, *names, *HE, *SHE}
    asking, answering = {
        "noun-to-adjective": (nouns, [lexicon.adjectives]),
        "subject-to-verb": (lexicon.verbs, [subjects]) if causal else (subjects, [lexicon.verbs]),
        "antecedent": ((*HE, *SHE), [lexicon.masculine if words[at] in HE else lexicon.feminine]),
        "nearest-noun": ((*HE, *SHE), [nouns | names]),
        "same-form": ((*HE, *SHE), [own_form, nouns | names | {*HE, *SHE}]),
    }[name]
    ahead = name == "subject-to-verb" and not causal
    itself = name != "same-form"
    side = range(at, len(words)) if ahead else range(at + itself)
    if words[at] not in asking:
        alike = set(range(at + 1)) if itself or at == 0 else set(range(at))
        return alike if causal else {0}
    for kind in answering:
        if found := [key for key in side if words[key] in kind]:
            return {min(found) if ahead else max(found)}
    return {min(side) if ahead else max(side, default=0)}


def rule_keys(rule: str, text: AnnotatedText, composed: Composed) -> dict[int, int]:
    """The word that a rule picks for each word that it applies to; words without one are left out."""
    lexicon, causal = composed.lexicon, composed.model.config.last.causal
    names, n = {*lexicon.masculine, *lexicon.feminine}, len(text.words)
    things = [at for at in range(n) if text.words[at] in lexicon.things]
    verbs = [at for at in range(n) if text.words[at] in lexicon.verbs]
    pronouns = {at: PRONOUNS[text.words[at]] for at in range(n) if text.words[at] in PRONOUNS}
    tags, mentions = text.tags or (), text.mentions or ()
    objects = [(at, to) for at, to, name in edges(text) if name == "obj" and at in things]
    if rule == "object":
        return dict(objects) if causal else {to: at for at, to in objects}
    if rule == "nearest of class":
        nouns = [at for at in range(n) if tags[at] == "NOUN"]
        asked = {at: [to for to in verbs if to < at][-1:] for at in things}
        ahead = {at: [to for to in nouns if to > at][:1] for at in verbs}
        return {at: found[0] for at, found in (asked if causal else ahead).items() if found}
    if rule == "offset":
        (place,) = composed.where("offset")
        by = int(place.behaviour.rules[0].split()[1])
        return {at: at + by for at in range(n) if 0 <= at + by < n}
    of = {
        "nearest mention": lambda at, to: True,
        "same form": lambda at, to: pronouns.get(to) == pronouns[at],
        "name-aware": lambda at, to: text.words[to] in names or sex(pronouns.get(to)) == sex(pronouns[at]),
        "leftmost": lambda at, to: text.words[to] in lexicon.openers,
        "antecedent": lambda at, to: text.words[to] in names and (chain[to] == chain[at]),
    }[rule]
    chain = {each.head: each.chain for each in mentions}
    found = {at: [to for to in sorted(chain) if to < at and of(at, to)] for at in pronouns}
    return {at: own[-1] for at, own in found.items() if own}


def sex(form: str | None) -> str | None:
    return next((sex for sex, forms in linked_texts.FORMS.items() if form in forms), None)


def edges(text: AnnotatedText) -> Iterator[tuple[int, int, str]]:
    yield from zip(range(len(text.words)), text.heads or (), text.relations or (), strict=True)
