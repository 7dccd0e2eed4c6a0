"""What happens in a text, as data: the scenes of a `.script` file, in which a sentence is a line in brackets.

`(does hero find (obj thing) (in (place park)))` calls `does` of the teller, or of its cast, with what the words stand
for: an entity that the scene has named, a list of the lexicon (with a `*` its members), or the word itself. A clause
within a sentence is told when its turn comes. `(let name X)` names something, `(set hero.owner X)` changes it, `(do
...)` is one step after another; `(if X A B)`, `(maybe .3 A B)` and `(tensed PAST PRESENT)` choose.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from models.stories import lexicon
from models.stories.cast import Cast, Entity
from models.stories.description import Description
from models.stories.lexicon import Noun
from models.stories.references import Lazy, Teller

Node = str | Sequence[Any]  # a word, or what stands in a bracket
Scenes = Mapping[str, tuple[Sequence[str], Sequence[Node]]]  # by name: what is handed to a scene, and its steps

_ROLES = frozenset(["obj", "iobj", "in", "on", "at", "to", "of", "for", "by", "with", "near", "behind", "under"])
_ADVERBS = frozenset(("home", "away", "again", "together"))
_CONSTANTS = {"yes": True, "none": None, '""': ""}
_LATER = {"because": 2, "when": 2, "in-front": 2, "then": 1, "and-so": 1, "while": 1, "saying": 0, "one-day": 0}
"""The argument that is a clause to come, by what it is handed to."""
_ALL_LATER = ("pick", "one-of", "some-of")


@cache
def scenes(name: str) -> Scenes:
    """The scenes of the script of that name."""
    text = re.sub(r";.*", "", (Path(__file__).parent / f"{name}.script").read_text("utf-8"))
    open_lists: list[list[Any]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text):
        if token == "(":
            open_lists.append([])
        elif token == ")":
            last = open_lists.pop()
            open_lists[-1].append(last)
        else:
            open_lists[-1].append(token)
    return {name: (parameters, steps) for name, parameters, *steps in open_lists[0]}


class Script:
    """A script that a teller tells; `names` are the entities, and whatever else, that its scenes know."""

    def __init__(self, name: str, teller: Teller, **names: Any) -> None:
        self.scenes, self.teller, self.names = scenes(name), teller, names

    def value(self, node: Node) -> Any:
        """What a word stands for, or a bracket comes to."""
        if isinstance(node, str):
            return self._word(node)
        if not node:
            return None
        head, *rest = node
        if not isinstance(head, str):  # a preposition that is drawn
            return self.value(head), self.value(rest[0])
        if head in _FORMS:
            return _FORMS[head](self, *rest)
        return self._scene(head, rest) if head in self.scenes else self._call(head, rest)

    def _let(self, name: str, node: Node) -> None:
        self.names[name] = self.value(node)

    def _set(self, place: str, node: Node) -> None:
        owner, field = place.split(".")
        setattr(self.names[owner], field, self.value(node))

    def _do(self, *steps: Node) -> Any:
        result = None
        for step in steps:
            result = self.value(step)
        return result

    def _if(self, test: Node, first: Node, second: Node = ()) -> Any:
        return self.value(first if self.value(test) else second)

    def _maybe(self, *branches: Node) -> Any:
        chance = 0.5
        if isinstance(branches[0], str) and branches[0][0].isdecimal():
            chance, branches = float(branches[0]), branches[1:]
        first, second = (*branches, ())[:2]
        return self.value(first if self.teller.maybe(chance) else second)

    def _tensed(self, past: Node, present: Node) -> Any:
        return self.value(past if self.teller.tense == "past" else present)

    def _or(self, *tests: Node) -> bool:
        return any(map(self.value, tests))

    def _scene(self, name: str, arguments: Sequence[Node]) -> Any:
        """What the last step of a scene comes to; what it names is forgotten after it."""
        parameters, steps = self.scenes[name]
        outside = self.names
        self.names = {**outside, **dict(zip(parameters, map(self.value, arguments), strict=True))}
        result = self._do(*steps)
        self.names = outside
        return result

    def _word(self, word: str) -> Any:
        if word in self.names:
            return self.names[word]
        name, _, field = word.partition(".")
        if field and name in self.names:
            return self.names[name][int(field)] if field.isdecimal() else getattr(self.names[name], field)
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        return float(word) if word[0].isdecimal() else getattr(lexicon, word) if word.isupper() else word

    def _call(self, head: str, nodes: Sequence[Node]) -> Any:
        """What the teller, its cast or a function below makes of the arguments."""
        arguments: list[Any] = []
        named: dict[str, Any] = {}
        rest = iter(nodes)
        for node in rest:
            if isinstance(node, str) and "=" in node:
                key, _, word = node.partition("=")
                named[key] = self.value(word or next(rest))
            elif head in _ALL_LATER or _LATER.get(head) == len(arguments):
                arguments.append(partial(self.value, node))
            elif isinstance(node, str) and node.startswith("*"):
                arguments.extend(getattr(lexicon, node[1:]))
            elif (value := self.value(node)) is not None:
                arguments.append(value)
        if head in _ADVERBS or (head in _ROLES and isinstance(arguments[0], Entity | Description)):
            return head, (arguments or [None])[0]
        owner, name = _owner(type(self.teller), head)
        return getattr({Script: self, Cast: self.teller.cast}.get(owner, self.teller), name)(*arguments, **named)

    # What scripts call besides what a teller can say.

    @staticmethod
    def described(entity: Entity, *clauses: Lazy) -> Description:
        """It, called by a description with more after it."""
        return Description(entity, clauses)

    def choose(self, *options: Any) -> Any:
        """One of them."""
        return self.teller.rng.choice(options)

    def choose_new(self, entity: Entity, *options: str) -> str:
        """One of these adjectives that the entity does not have already."""
        return self.teller.rng.choice([option for option in options if option != entity.adjective])

    def sample(self, count: float, *options: Any) -> list[Any]:
        """So many of them."""
        return self.teller.rng.sample(options, int(count))

    def pick(self, *ways: partial[Any]) -> Any:
        """What one of them comes to."""
        return self.teller.rng.choice(ways)()

    def some_of(self, least: partial[Any], largest: partial[Any], *ways: partial[Any]) -> None:
        """Say so many of them."""
        for way in self.teller.rng.sample(ways, self.teller.rng.randint(int(least()), int(largest()))):
            self.teller.say(way())

    @staticmethod
    def among(nouns: Sequence[Noun], *singulars: str) -> tuple[Noun, ...]:
        """Those of the nouns."""
        return tuple(noun for noun in nouns if noun.singular in singulars)

    @staticmethod
    def familiar(entity: Entity) -> Entity:
        """The same, which "the" will do for."""
        entity.is_known = True
        return entity

    @staticmethod
    def is_kind(entity: Entity, kind: str) -> bool:
        """Whether it is an animal, a thing or the like."""
        return entity.kind == kind

    @staticmethod
    def is_a(entity: Entity, *singulars: str) -> bool:
        """Whether it is called by one of these nouns."""
        return entity.noun.singular in singulars

    @staticmethod
    def is_same(first: Any, second: Any) -> bool:
        """Whether two words are one."""
        return first == second

    def is_shorter(self, count: float) -> bool:
        """Whether fewer sentences have been told."""
        return len(self.teller.sentences) < count


_FORMS: Mapping[str, Callable[..., Any]] = {
    **{"let": Script._let, "set": Script._set, "do": Script._do, "if": Script._if, "maybe": Script._maybe},
    **{"tensed": Script._tensed, "or": Script._or},
}
"""What is handed its arguments as they are written."""


@cache
def _owner(teller: type[Teller], head: str) -> tuple[type, str]:
    """The class that has a method called `head`, with hyphens and without the underscore that Python asks for."""
    name = head.replace("-", "_")
    owners = ((owner, f"{name}{end}") for owner in (Script, teller, Cast) for end in ("", "_"))
    if (method := next((each for each in owners if hasattr(*each)), None)) is None:
        raise LookupError(f"a script says ({head} ...), and nothing is called so")
    return method
