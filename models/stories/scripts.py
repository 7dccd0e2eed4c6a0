"""What happens in a text, as data: the scenes of a `.script` file, in which a sentence is a line in brackets.

`(does hero find (obj thing) (in (place park)))` calls `does` of the teller, or of its cast. A word is an entity that
the scene has named, a list of the lexicon (with a `*` its members), or the word itself. A clause within a sentence is
evaluated when its turn comes. `(let name X)` names something, `(set hero.owner X)` changes it, `(do ...)` is a series
of steps; `(if X A B)`, `(maybe .3 A B)` and `(tensed PAST PRESENT)` choose.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from models.stories import lexicon
from models.stories.cast import Cast, Entity
from models.stories.description import Description
from models.stories.references import Teller

Node = str | Sequence[Any]  # a word, or the content of a bracket
Scenes = Mapping[str, tuple[Sequence[str], Sequence[Node]]]  # by name: the parameters of a scene, and its steps

_ROLES = frozenset(["obj", "iobj", "in", "on", "at", "to", "of", "for", "by", "with", "near", "behind", "under"])
_ADVERBS = frozenset(("home", "away", "again", "together"))
_CONSTANTS = {"yes": True, "none": None, '""': ""}
# by function, the index of the argument that is a later clause
_LATER = {"because": 2, "when": 2, "in-front": 2, "then": 1, "and-so": 1, "while": 1, "saying": 0, "one-day": 0}
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
    """A script that a teller tells; `names` are the entities and other values that its scenes know."""

    def __init__(self, name: str, teller: Teller, **names: Any) -> None:
        self.scenes, self.teller, self.names = scenes(name), teller, names

    def value(self, node: Node) -> Any:
        """The value of a word or a bracket."""
        if isinstance(node, str):
            return self._word(node)
        if not node:
            return None
        head, *rest = node
        if not isinstance(head, str):  # a drawn preposition
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

    def _maybe(self, *branches: Node) -> Any:
        chance = 0.5
        if isinstance(branches[0], str) and branches[0][0].isdecimal():
            chance, branches = float(branches[0]), branches[1:]
        first, second = (*branches, ())[:2]
        return self.value(first if self.teller.maybe(chance) else second)

    def _scene(self, name: str, arguments: Sequence[Node]) -> Any:
        """The value of a scene's last step; its names are forgotten afterwards."""
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
        """The value of a call of the teller, its cast or a function below."""
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
        if head in _CALLS:
            return _CALLS[head](self, *arguments, **named)
        owner, name = _owner(type(self.teller), head)
        return getattr(self.teller.cast if owner is Cast else self.teller, name)(*arguments, **named)


def _say_some(script: Script, least: partial[Any], largest: partial[Any], *ways: partial[Any]) -> None:
    """Say so many of the ways."""
    for way in script.teller.rng.sample(ways, script.teller.rng.randint(int(least()), int(largest()))):
        script.teller.say(way())


def _familiar(_: Script, entity: Entity) -> Entity:
    """The same entity, called by "the"."""
    entity.is_known = True
    return entity


_FORMS: Mapping[str, Callable[..., Any]] = {  # these get their arguments unevaluated
    **{"let": Script._let, "set": Script._set, "do": Script._do, "maybe": Script._maybe},
    "if": lambda script, test, first, second=(): script.value(first if script.value(test) else second),
    "tensed": lambda script, past, present: script.value(past if script.teller.tense == "past" else present),
    "or": lambda script, *tests: any(map(script.value, tests)),
}
_CALLS: Mapping[str, Callable[..., Any]] = {  # functions of scripts besides the teller's methods
    "described": lambda _, entity, *clauses: Description(entity, clauses),
    "choose": lambda script, *options: script.teller.rng.choice(options),
    "choose-new": lambda script, entity, *options: script.teller.rng.choice(
        [option for option in options if option != entity.adjective]
    ),
    "sample": lambda script, count, *options: script.teller.rng.sample(options, int(count)),
    "pick": lambda script, *ways: script.teller.rng.choice(ways)(),
    "some-of": _say_some,
    "among": lambda _, nouns, *singulars: tuple(noun for noun in nouns if noun.singular in singulars),
    "familiar": _familiar,
    "is-kind": lambda _, entity, kind: entity.kind == kind,
    "is-a": lambda _, entity, *singulars: entity.noun.singular in singulars,
    "is-same": lambda _, first, second: first == second,
    "is-shorter": lambda script, count: len(script.teller.sentences) < count,
}


@cache
def _owner(teller: type[Teller], head: str) -> tuple[type, str]:
    """The class with a method called `head`, and its name in Python: underscores, one at the end of a keyword."""
    name = head.replace("-", "_")
    owners = ((owner, f"{name}{end}") for owner in (teller, Cast) for end in ("", "_"))
    if (method := next((each for each in owners if hasattr(*each)), None)) is None:
        raise LookupError(f"a script calls ({head} ...), but nothing has this name")
    return method
