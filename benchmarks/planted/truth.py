"""Which keys does each planted head attend to, by its definition? Tests compare its attention with them."""

from collections.abc import Iterator, Sequence

from benchmarks.planted import linked_texts
from benchmarks.planted.linked_texts import SPELLINGS
from benchmarks.planted.planted_texts import HE, SHE
from benchmarks.planted.random_models import Composed
from interp import AnnotatedText

PRONOUNS = {spelling: form for form, spellings in SPELLINGS.items() for spelling in spellings}


def attended(name: str, words: Sequence[str], row: int, composed: Composed, causal: bool) -> set[int] | None:
    """The keys that share a row's attention equally; None if the definition leaves them open."""
    visible = set(range(row + 1)) if causal else set(range(len(words)))
    if name in {"previous-token", "next-token"} or name.startswith("offset:"):
        by = {"previous-token": -1, "next-token": 1}.get(name) or int(name.partition(":")[2])
        return {row + by} if row + by in range(len(words)) else visible
    if name == "first-token":
        return {0}
    if name == "duplicate-token":
        return {key for key in visible if words[key] == words[row]}
    if name == "induction":
        after_copies = {key for key in visible if key and words[key - 1] == words[row]}
        return after_copies or (visible if causal else None)  # an encoder's first token remembers some of everything
    return sought(name, words, row, composed, causal)


def sought(name: str, words: Sequence[str], row: int, composed: Composed, causal: bool) -> set[int]:
    lexicon = composed.lexicon
    names, nouns = {*lexicon.masculine, *lexicon.feminine}, {*lexicon.animals, *lexicon.things}
    own_form = {*HE} if words[row] in HE else {*SHE}
    subjects = {*lexicon.animals, *names, *HE, *SHE}
    asking, answering = {
        "noun-to-adjective": (nouns, [lexicon.adjectives]),
        "subject-to-verb": (lexicon.verbs, [subjects]) if causal else (subjects, [lexicon.verbs]),
        "antecedent": ((*HE, *SHE), [lexicon.masculine if words[row] in HE else lexicon.feminine]),
        "nearest-noun": ((*HE, *SHE), [nouns | names]),
        "same-form": ((*HE, *SHE), [own_form, nouns | names | {*HE, *SHE}]),
    }[name]
    ahead = name == "subject-to-verb" and not causal
    itself = name != "same-form"
    side = range(row, len(words)) if ahead else range(row + itself)
    if words[row] not in asking:
        alike = set(range(row + 1)) if itself or row == 0 else set(range(row))
        return alike if causal else {0}
    for kind in answering:
        if matches := [key for key in side if words[key] in kind]:
            return {min(matches) if ahead else max(matches)}
    return {min(side) if ahead else max(side, default=0)}


def rule_keys(rule: str, text: AnnotatedText, composed: Composed) -> dict[int, int]:
    """The word that a rule picks for each word that it applies to; words without one are left out."""
    lexicon, causal = composed.lexicon, composed.model.config.last.causal
    names, n = {*lexicon.masculine, *lexicon.feminine}, len(text.words)
    things = [word for word in range(n) if text.words[word] in lexicon.things]
    verbs = [word for word in range(n) if text.words[word] in lexicon.verbs]
    pronouns = {word: PRONOUNS[text.words[word]] for word in range(n) if text.words[word] in PRONOUNS}
    tags, mentions = text.tags or (), text.mentions or ()
    objects = [(word, to) for word, to, name in edges(text) if name == "obj" and word in things]
    if rule == "object":
        return dict(objects) if causal else {to: word for word, to in objects}
    if rule == "nearest of class":
        nouns = [word for word in range(n) if tags[word] == "NOUN"]
        before = {word: [to for to in verbs if to < word][-1:] for word in things}
        ahead = {word: [to for to in nouns if to > word][:1] for word in verbs}
        return {word: keys[0] for word, keys in (before if causal else ahead).items() if keys}
    if rule == "offset":
        (place,) = composed.where("offset")
        by = int(place.behaviour.rules[0].split()[1])
        return {word: word + by for word in range(n) if 0 <= word + by < n}
    fits = {
        "nearest mention": lambda word, to: True,
        "same form": lambda word, to: pronouns.get(to) == pronouns[word],
        "name-aware": lambda word, to: text.words[to] in names or sex(pronouns.get(to)) == sex(pronouns[word]),
        "leftmost": lambda word, to: text.words[to] in lexicon.openers,
        "antecedent": lambda word, to: text.words[to] in names and (chain[to] == chain[word]),
    }[rule]
    chain = {each.head: each.chain for each in mentions}
    candidates = {word: [to for to in sorted(chain) if to < word and fits(word, to)] for word in pronouns}
    return {word: keys[-1] for word, keys in candidates.items() if keys}


def sex(form: str | None) -> str | None:
    return next((sex for sex, forms in linked_texts.FORMS.items() if form in forms), None)


def edges(text: AnnotatedText) -> Iterator[tuple[int, int, str]]:
    yield from zip(range(len(text.words)), text.heads or (), text.relations or (), strict=True)
