"""Random planted models: known behaviours among noise heads in any form, with a record of each head's behaviour.

An analysis is right about a planted head if it gives the head its label or a synonym that some texts cannot tell from
it. It must not give an impostor the label that it imitates, or give a noise head any label.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from benchmarks.planted.planted_texts import Lexicon
from interp import Transformer
from interp.config import LayerNorm, NoNorm, RMSNorm
from interp.patterns.positional import offset_name
from models.planted import heads
from models.planted.build import Planted
from models.planted.heads import seek
from models.planted.slots import Plan

Form = Literal["decoder", "encoder", "grouped"]  # grouped: a decoder whose heads share keys and values
FORMS: tuple[Form, ...] = get_args(Form)
Norm = LayerNorm | RMSNorm | NoNorm
NORMS: tuple[Norm, ...] = (NoNorm(), LayerNorm(), RMSNorm())
_SYNTAX, _REFERENCE = "relation:", "antecedent"


@dataclass(frozen=True)
class Behaviour:
    """What a head does, and which labels are right or wrong for it."""

    name: str
    plan: Plan
    label: str | None = None  # the label that an analysis should give; None for impostors and noise
    synonyms: tuple[str, ...] = ()  # labels (globs) that are also right on texts where they mean the same
    never: tuple[str, ...] = ()  # prefixes of labels that are wrong on any text
    common: bool = False  # equally sharp heads with random queries do it too, so it needs no label

    def is_called(self, label: str) -> bool:
        """Whether a label is the behaviour's own or a synonym."""
        return label == self.label or any(fnmatchcase(label, each) for each in self.synonyms)


@dataclass(frozen=True)
class Placed:
    """A behaviour and its head."""

    layer: int
    head: int
    behaviour: Behaviour

    def is_named_by(self, labels: Sequence[str]) -> bool:
        """Whether these labels recognise the head."""
        return any(map(self.behaviour.is_called, labels))

    def mistaken(self, labels: Sequence[str]) -> list[str]:
        """The labels that are wrong on any text."""
        return [label for label in labels if label.startswith(self.behaviour.never)]


@dataclass(frozen=True)
class Composed:
    """A planted model, its words, and every head's behaviour, layer by layer."""

    model: Transformer
    lexicon: Lexicon
    placed: tuple[Placed, ...]

    def where(self, name: str) -> list[Placed]:
        """The heads with a behaviour; a fixed offset goes by its label: `offset:-3`, `next-token`."""
        return [each for each in self.placed if each.behaviour.name == name]


Maker = Callable[[random.Random, bool], Behaviour]  # given whether the model is causal

# Side effects of behaviours. An encoder's head rests on the first token if it has no target. A token is a copy of
# itself, and copies share their tag. The token after an earlier copy has a tag that can follow the token's own tag; in
# an encoder it may also be the next token.
_RESTS = "first-token"
_COPIES = ("self", "tag:NOUN->NOUN")
_FOLLOWS = ("tag:ADJ->NOUN", "tag:ADJ->ADV", "tag:NOUN->VERB", "tag:NOUN->ADP")


def _offset(by: int) -> Behaviour:
    rule = f"rule:offset {by:+d}"
    return Behaviour(offset_name(by), heads.offset(by), offset_name(by), (rule,), (_SYNTAX, _REFERENCE))


def _noun_to_adjective(rng: random.Random, causal: bool) -> Behaviour:
    plan = seek({"noun": ["adjective"]})
    synonyms = ("rule:* *ADJ*", "tag:NOUN->ADJ", "previous-token", *_resting(causal))
    return Behaviour("noun-to-adjective", plan, "relation:amod:head->dependent", synonyms, (_REFERENCE,))


def _subject_to_verb(rng: random.Random, causal: bool) -> Behaviour:
    """In a decoder the verb looks back to its subject; in an encoder the subject looks ahead to its verb."""
    name = "subject-to-verb"
    if causal:
        tags = ("tag:VERB->NOUN", "tag:VERB->PROPN", "tag:VERB->PRON")
        synonyms = ("rule:* *NOUN*", "rule:* *PRO*", *tags, "previous-token")
        plan = seek({"verb": ["subject"]})
        return Behaviour(name, plan, "relation:nsubj:head->dependent", synonyms, (_REFERENCE,))
    plan = seek({"subject": ["verb"]}, after=True)
    synonyms = ("rule:* *VERB*", "tag:NOUN->VERB", "next-token", _RESTS)
    return Behaviour(name, plan, "relation:nsubj:dependent->head", synonyms, (_REFERENCE,))


def _antecedent(rng: random.Random, causal: bool) -> Behaviour:
    plan = seek({"he": ["masculine"], "she": ["feminine"]})
    synonyms = ("rule:name or gender", "rule:same gender", "tag:PRON->PROPN", "rule:any->PROPN", *_resting(causal))
    return Behaviour("antecedent", plan, "antecedent", synonyms, (_SYNTAX,))


def _nearest_noun(rng: random.Random, causal: bool) -> Behaviour:
    plan = seek({"pronoun": ["noun or name"]})
    synonyms = ("rule:nearest", "tag:PRON->NOUN", "tag:PRON->PROPN", *_resting(causal))
    return Behaviour("nearest-noun", plan, None, synonyms, (_SYNTAX, _REFERENCE))


def _same_form(rng: random.Random, causal: bool) -> Behaviour:
    plan = seek({"he": ["mention", "he"], "she": ["mention", "she"]}, itself=False)
    synonyms = ("rule:same form", "duplicate-token", "tag:PRON->NOUN", "tag:PRON->PROPN", *_resting(causal))
    return Behaviour("same-form", plan, None, synonyms, (_SYNTAX, _REFERENCE))


def _resting(causal: bool) -> tuple[str, ...]:
    return () if causal else (_RESTS,)


def noise(rng: random.Random) -> Behaviour:
    """A noise head. Its preference among classes of m and n words is of the order of 0.05 / (m n)^½."""
    return Behaviour("noise", heads.noise(0.05, rng.randrange(2**31)), never=("",))


BEHAVIOURS: dict[str, Maker] = {
    "previous-token": lambda rng, causal: _offset(-1),
    "offset": lambda rng, causal: _offset(rng.choice((-4, -3, -2) if causal else (-4, -3, -2, 1, 2, 3))),
    "duplicate-token": lambda rng, causal: Behaviour("duplicate-token", heads.same_token, "duplicate-token", _COPIES),
    "induction": lambda rng, causal: Behaviour(
        "induction", heads.induction(), "induction", _FOLLOWS if causal else (*_FOLLOWS, "next-token")
    ),
    "noun-to-adjective": _noun_to_adjective,
    "subject-to-verb": _subject_to_verb,
    "antecedent": _antecedent,
    "nearest-noun": _nearest_noun,
    "same-form": _same_form,
    "first-token": lambda rng, causal: Behaviour(
        "first-token", heads.first_token, "first-token", never=(_SYNTAX, _REFERENCE), common=True
    ),
}
"""The behaviours that can be planted. `offset:K` is a fixed offset of your choice."""


def compose(
    seed: int,
    *,
    form: Form = "decoder",
    n_layers: int | None = None,
    n_heads: int | None = None,
    norm: Norm | None = None,
    behaviours: Sequence[str] | None = None,
) -> Composed:
    """A planted model, the same for the same arguments. Arguments that are None are drawn.

    Args:
        seed: draws the words, sizes, behaviours, their places, and the noise in all other heads.
        form: decoder, encoder or grouped.
        n_layers: at least 2 with induction.
        n_heads: query heads per layer.
        norm: the norm before each layer and at the end.
        behaviours: names from BEHAVIOURS, also repeated; induction adds the previous-token head that it reads.
            If drawn, each occurs at most once.
    """
    rng = random.Random(f"planted-{seed}")
    lexicon = Lexicon.draw(rng)
    n_layers = rng.randint(2, 4) if n_layers is None else n_layers
    n_heads = rng.choice((4, 6, 8) if form == "grouped" else (3, 4, 5, 6)) if n_heads is None else n_heads
    fewer = [count for count in range(1, n_heads) if n_heads % count == 0]
    n_kv_heads = rng.choice(fewer) if form == "grouped" else None
    norm = norm or rng.choice(NORMS)
    names = _sample(rng, n_layers, n_heads) if behaviours is None else behaviours
    chosen = [_make(name, rng, form != "encoder") for name in names]
    cells = _place(chosen, rng, n_layers, n_heads)
    layers = [[cells.get((layer, head)) or noise(rng) for head in range(n_heads)] for layer in range(n_layers)]
    return built(lexicon, layers, form, norm, n_ctx=64, n_kv_heads=n_kv_heads)


def built(lexicon: Lexicon, layers: Sequence[Sequence[Behaviour]], form: Form, norm: Norm, **sizes: Any) -> Composed:
    """A planted model of these heads, layer by layer."""
    planted = Planted(
        lexicon.vocabulary,
        [[behaviour.plan for behaviour in layer] for layer in layers],
        causal=form != "encoder",
        start="<s>",
        directions=lexicon.directions,
        norm=norm,
        **sizes,
    )
    places = [Placed(layer, head, each) for layer, row in enumerate(layers) for head, each in enumerate(row)]
    return Composed(planted.build(), lexicon, tuple(places))


def _sample(rng: random.Random, n_layers: int, n_heads: int) -> list[str]:
    """Random behaviours; models of more than two heads keep at least one noise head."""
    names = [name for name in BEHAVIOURS if n_layers > 1 or name != "induction"]
    most = max(1, min(len(names), n_layers * n_heads - 2))  # induction may add one more
    return rng.sample(names, rng.randint(min(3, most), most))


def _make(name: str, rng: random.Random, causal: bool) -> Behaviour:
    kind, _, by = name.partition(":")
    return _offset(int(by)) if by else BEHAVIOURS[kind](rng, causal)


Cell = tuple[int, int]  # layer, head


def _place(chosen: list[Behaviour], rng: random.Random, n_layers: int, n_heads: int) -> dict[Cell, Behaviour]:
    """A head for every behaviour: induction above a previous-token head that remembers, the others anywhere."""
    inductions = [each for each in chosen if each.name == "induction"]
    others = [each for each in chosen if each.name != "induction"]
    if inductions and not any(each.name == "previous-token" for each in others):
        others.append(_offset(-1))
    cells = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    rng.shuffle(cells)
    placed: dict[Cell, Behaviour] = {}
    if inductions:
        below = n_layers - 1 - -(-len(inductions) // n_heads)  # the last layer that leaves enough heads above it
        writer = next(each for each in others if each.name == "previous-token")
        others.remove(writer)
        low = next(cell for cell in cells if cell[0] <= below)
        placed[low] = replace(writer, plan=heads.offset(-1, remember=True))
        above = [cell for cell in cells if cell[0] > low[0]]
        placed |= dict(zip(above, inductions, strict=False))
    free = [cell for cell in cells if cell not in placed]
    return placed | dict(zip(free, others, strict=False))
