"""Which keys does each simple rule name, from a fixed offset to the parse and to chains of reference?

Some rules name one word (the last verb), others several (every noun). There are four groups of rules, simplest first;
each is judged by what it adds to those before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from analyses.reading.windows import Batch
from analyses.scoring.antecedents import RIVALS, Chooser, antecedent_items
from analyses.scoring.choices import Items
from analyses.scoring.rules import CLASSES, NEAREST, OFFSETS, RELATIONS, WAYS
from interp.annotation import ROOT, AnnotatedText

POSITION, TOKEN, CLOSEST, RELATED = GROUPS = (
    *("position", "token and class", "nearest of a class", "relation and reference"),
)
FIRST, END, ITSELF = "first position", "end token", "itself"
SAME_FORM, AFTER_SAME_FORM, SAME_CHAIN = "same form", "after the same form", "same chain"
BEFORE_ALL, BEHIND_ALL = 1 << 20, (1 << 20) + 1  # instead of a word: special tokens at the start and the end
TAGS = tuple(tags[0] for tags in CLASSES if len(tags) == 1)
_FAR = {
    f"{low} {upto} {side}": (sign, low, high)
    for side, sign in (("before", -1), ("after", 1))
    for low, high, upto in ((6, 8, "to 8"), (9, 16, "to 16"), (17, 1 << 20, "or more"))
}  # distances in words, beyond `OFFSETS`
_MENTIONS = [rival for rival in RIVALS if isinstance(rival, Chooser)]
_EDGES = (*RELATIONS, "another relation")

NAMES: dict[str, str] = {
    **dict.fromkeys((FIRST, END, ITSELF, *(rule.name for rule in OFFSETS), *_FAR), POSITION),
    **dict.fromkeys((SAME_FORM, AFTER_SAME_FORM, *(f"every {tag}" for tag in TAGS)), TOKEN),
    **dict.fromkeys((rule.name for rule in NEAREST), CLOSEST),
    **dict.fromkeys((f"mention: {rule.name}" for rule in _MENTIONS), CLOSEST),
    **dict.fromkeys((f"{edge}:{way}" for way in WAYS for edge in _EDGES), RELATED),
    SAME_CHAIN: RELATED,
}
"""The group of each rule, in the order of `Pairs.marks`."""


@dataclass(frozen=True)
class Pairs:
    """Queries of a batch and the keys they see; words are counted in their window."""

    batch: Batch
    prompt: Int[Tensor, " item"]
    query: Int[Tensor, " item"]
    item: Int[Tensor, " pair"]
    key: Int[Tensor, " pair"]  # `BEFORE_ALL` and `BEHIND_ALL` stand for special tokens

    @cached_property
    def _index(self) -> tuple[Tensor, Tensor, Tensor]:
        """Prompt, query and key of each pair; the key is 0 unless it is another word."""
        prompt, query = self.prompt[self.item], self.query[self.item]
        return prompt, query, torch.where(self.is_other, self.key, 0)

    @cached_property
    def is_other(self) -> Bool[Tensor, " pair"]:
        """Whether the key is another word."""
        return (self.key < BEFORE_ALL) & (self.key != self.query[self.item])

    def marks(self) -> Bool[Tensor, "pair name"]:
        """True if the rule (`NAMES`) names the pair's key."""
        prompt, query, key = self._index
        away = key - query
        far = [self.is_other & (sign * away >= low) & (sign * away <= high) for sign, low, high in _FAR.values()]
        ends = self.first_position, self.key == BEHIND_ALL, self.key == self.query[self.item]
        columns = [*ends, *self._rule_keys(self._by_rule(OFFSETS)), *far, *self._same_form()]
        columns += [self.is_other & (self.tags[prompt, key] == number) for number in range(len(TAGS))]
        columns += [*self._rule_keys(self._by_rule(NEAREST)), *self._rule_keys(self._by_mention())]
        return torch.stack([*columns, *self._related()], 1)

    @property
    def first_position(self) -> Bool[Tensor, " pair"]:
        """Whether the key is the first position: a start token, else the first word."""
        starts = self.batch.word_of[:, 0] < 0
        first = torch.where(starts, BEFORE_ALL, self.batch.word_of[:, 0])
        return self.key == first[self.prompt[self.item]]

    @cached_property
    def tags(self) -> Int[Tensor, "prompt word"]:
        """The index of each word's tag in `TAGS`; -1 for other tags or none."""
        numbers = {tag: number for number, tag in enumerate(TAGS)}
        return self.batch.by_word(lambda text: [numbers.get(tag, -1) for tag in text.tags or ()])

    def tag_pairs(self) -> Int[Tensor, " pair"]:
        """The tags of query and key as one number; -1 if either has none, or the key is no other word."""
        prompt, query, key = self._index
        tags = self.tags[prompt, query], self.tags[prompt, key]
        return torch.where(self.is_other & (tags[0] >= 0) & (tags[1] >= 0), tags[0] * len(TAGS) + tags[1], -1)

    def forms(self, numbers: dict[str, int]) -> Int[Tensor, " pair"]:
        """The number of the key's form, -1 unless it is another word; adds new forms to `numbers`."""
        prompt, _, key = self._index
        return torch.where(self.is_other, self._numbered(numbers)[prompt, key], -1)

    def _numbered(self, numbers: dict[str, int]) -> Int[Tensor, "prompt word"]:
        return self.batch.by_word(lambda text: [numbers.setdefault(word.lower(), len(numbers)) for word in text.words])

    def _same_form(self) -> list[Bool[Tensor, " pair"]]:
        """Keys with the query's form, and keys right after one."""
        prompt, query, key = self._index
        form = self._numbered({})
        query_form, previous = form[prompt, query], (key - 1).clamp(min=0)
        is_after = (form[prompt, previous] == query_form) & (key > 0) & (previous != query)
        return [self.is_other & (form[prompt, key] == query_form), self.is_other & is_after]

    def _rule_keys(self, words: Int[Tensor, "item rule"]) -> list[Bool[Tensor, " pair"]]:
        """For each rule, whether the key is its choice; -1 in `words`: no choice."""
        return [self.is_other & (each[self.item] == self.key) for each in words.unbind(1)]

    def _by_rule(self, rules: Sequence[Callable[[Items], Tensor]]) -> Int[Tensor, "item rule"]:
        none = torch.zeros(len(self.query), 0, dtype=torch.bool)  # there are no targets
        items = Items(self.batch, self.prompt, self.query, torch.zeros_like(self.query), none, none)
        return torch.stack([rule(items) for rule in rules], 1)

    def _by_mention(self) -> Int[Tensor, "item rule"]:
        """The mention that each rule of reference chooses for a pronoun; -1 for other queries."""
        words_by_rule = np.full((*self.batch.pieces.shape, len(_MENTIONS)), -1)
        for prompt, window in enumerate(self.batch.windows):
            for item in antecedent_items(window.text):
                if window.scores(item.pronoun):
                    words = [item.candidates[rule.choice(item)] for rule in _MENTIONS]
                    words_by_rule[prompt, item.pronoun - window.start] = np.array(words) - window.start
        return torch.from_numpy(words_by_rule).to(self.query.device)[self.prompt, self.query]

    def _related(self) -> list[Bool[Tensor, " pair"]]:
        """Keys that are heads, then dependents, by relation; then other mentions of the same chain."""
        prompt, query, key = self._index
        numbers = {name: number for number, name in enumerate(RELATIONS)}
        heads = self.batch.by_word(lambda text: text.heads, are_words=True)
        edges = self.batch.by_word(
            lambda text: [
                -1 if head == ROOT else numbers.get(name, len(RELATIONS))
                for head, name in zip(text.heads or (), text.relations or (), strict=False)
            ]
        )
        to_head = self.is_other & (heads[prompt, query] == key), edges[prompt, query]
        to_dependent = self.is_other & (heads[prompt, key] == query), edges[prompt, key]
        linked_by = [
            linked & (edge == number) for linked, edge in (to_head, to_dependent) for number in range(len(_EDGES))
        ]
        chains = self.batch.by_word(_chains)
        same_chain = (chains[prompt, query] == chains[prompt, key]) & (chains[prompt, query] >= 0)
        return [*linked_by, self.is_other & same_chain]


def _chains(text: AnnotatedText) -> list[int] | None:
    """For each word the number of its chain, if it heads a mention; else -1."""
    if not text.mentions:
        return None
    numbers: dict[str, int] = {}
    chains = [-1] * len(text.words)
    for mention in text.mentions:
        chains[mention.head] = numbers.setdefault(mention.chain, len(numbers))
    return chains
