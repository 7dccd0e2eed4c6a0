"""Minimal pairs: a clean prompt, a corrupted one that differs in a few tokens, and the answers that tell them apart."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.display import DataFrame, Shown, so_many
from interp.errors import InputError, inside
from interp.model import Model
from interp.patching.pair_files import (
    BESIDE,
    COLUMNS,
    POSITION,
    Columns,
    Place,
    Places,
    each_place,
    place,
    position_of,
    read_columns,
    unmarked,
    warn_of_glued,
    with_space,
)
from interp.running import as_batch, as_target, check_model, target_tokenizer
from interp.tokens import Span, TokenBatch, Tokenizer, said_of

_NAMES = (
    "every token takes the place of one of the other prompt, so both must have equally many: reword one of the two "
    "(named positions align one pair with another)"
)
Answer = str | Sequence[str] | int | Sequence[int] | Int[Tensor, "*prompt"]
Inputs = tuple[TokenBatch, TokenBatch | None]  # what the first stack reads and, where there are two, the decoder


@dataclass(frozen=True, repr=False)
class Pairs(Shown):
    """Prompts in pairs, token for token alike in length, padded on the right.

    `right` and `wrong` are the ids of the answers after the clean prompt and after the corrupted one; None where a
    metric brings its own. `left_out` counts the pairs that could not be used, by reason; `kept` are the others' places
    among the pairs that were offered.

    A model with an encoder and a decoder reads two texts, of which one differs and the other is the same for both
    prompts: `target`, where clean and corrupted are what the encoder reads, or `source`, where the decoder does.

    `positions` are names for tokens of the texts that differ, each with one position a prompt. Where pairs have them,
    whatever goes by position (sweeps, searches, paths, ablations, estimates) goes by these, in their order.
    """

    clean: TokenBatch
    corrupt: TokenBatch
    right: Int[Tensor, " prompt"] | None = None
    wrong: Int[Tensor, " prompt"] | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    kept: tuple[int, ...] = ()
    target: TokenBatch | None = None
    source: TokenBatch | None = None
    positions: Mapping[str, Int[Tensor, " prompt"]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.clean.ids.shape != self.corrupt.ids.shape or not torch.equal(self.clean.mask, self.corrupt.mask):
            raise InputError(
                "clean and corrupted prompts must align token by token: expected equal lengths, got "
                f"{self.clean.lengths.tolist()} and {self.corrupt.lengths.tolist()} tokens; {_NAMES}"
            )
        check_padding("pairs", self.clean)
        same = (~self.changed.any(1)).nonzero()
        if len(same):
            raise InputError(f"clean and corrupted prompt {int(same[0])} are identical: nothing can be patched")
        self.check_other()
        for name, at in self.positions.items():
            if at.shape != self.last.shape or bool((at < 0).any()) or bool((at >= self.clean.lengths).any()):
                raise InputError(f"expected one position {name} within each prompt's tokens, got {at.tolist()}")

    def check_other(self) -> None:
        """Whether the text that does not differ fits."""
        if self.target is not None and self.source is not None:
            raise InputError("one text differs and the other does not: expected a target or a source, got both")
        for name, other in (("target", self.target), ("source", self.source)):
            if other is not None and len(other.ids) != len(self.clean.ids):
                raise InputError(f"expected one {name} for each of {len(self.clean.ids)} pairs, got {len(other.ids)}")
            if other is not None:
                check_padding(f"{name}s", other)

    def __len__(self) -> int:
        return len(self.clean.ids)

    def table(self) -> DataFrame:
        """One row a pair: `pair`, `row` (its place among those offered), `length`, `first_changed`, `changed` (how many
        tokens differ), `right` and `wrong` (ids), and a column `position:NAME` for each name.
        """
        import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

        columns = {"length": self.clean.lengths, "first_changed": self.first_changed, "changed": self.changed.sum(1)}
        columns |= {name: ids for name, ids in (("right", self.right), ("wrong", self.wrong)) if ids is not None}
        columns |= {f"{POSITION}{name}": at for name, at in self.positions.items()}
        rows = [*self.kept] or [*range(len(self))]
        numbers = {name: value.cpu().numpy() for name, value in columns.items()}
        return pd.DataFrame({"pair": range(len(self)), "row": rows, **numbers})

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """How many pairs, where they differ, what they name and what was left out."""
        first, last = int(self.first_changed.min()), int(self.first_changed.max())
        facts = {"first difference": f"at position {first}" + f" to {last}" * (last > first)}
        facts["answers"] = "none" if self.right is None else "one right" + " and one wrong" * (self.wrong is not None)
        others = {"target": self.target, "source": self.source}
        facts |= {name: said_of(other) for name, other in others.items() if other is not None}
        facts |= {"positions": ", ".join(self.positions)} if self.positions else {}
        reasons = "; ".join(f"{n} because {why}" for why, n in self.left_out.items())
        facts |= {"left out": reasons} if reasons else {}
        return f"{so_many(len(self), 'pair')}: {said_of(self.clean)}", facts

    @property
    def changed(self) -> Bool[Tensor, "prompt position"]:
        """Where the two prompts differ."""
        return self.clean.ids != self.corrupt.ids

    @property
    def first_changed(self) -> Int[Tensor, " prompt"]:
        """The first position at which each pair differs: nothing before it can carry an effect in a causal stack."""
        return self.changed.int().argmax(1)

    @property
    def last(self) -> Int[Tensor, " prompt"]:
        """The last position of each text that the output layer reads: of the target where there are two."""
        return (self.clean if self.target is None else self.target).lengths - 1

    @property
    def inputs(self) -> tuple[Inputs, Inputs]:
        """What the model reads for the clean prompts, and for the corrupted ones."""
        if self.source is not None:
            return (self.source, self.clean), (self.source, self.corrupt)
        return (self.clean, self.target), (self.corrupt, self.target)

    def read_by(self, stack: str) -> TokenBatch:
        """What a stack reads for the clean prompts; for the corrupted ones it is as long."""
        return text_read(self.inputs[0], stack)

    def differing(self, stack: str) -> str:
        """The stack that reads what differs; of models of one stack that stack."""
        return stack if self.target is None and self.source is None else "encoder" if self.source is None else "decoder"

    def reaches(self, stack: str) -> bool:
        """Whether the prompts differ in what a stack reads or, in a decoder, sees of the encoder."""
        return self.source is None or stack == "decoder"

    def first_reached(self, stack: str) -> Int[Tensor, " prompt"]:
        """The first position at which a causal stack can tell each pair apart: all of them where an encoder can."""
        return torch.zeros_like(self.last) if self.target is not None and stack == "decoder" else self.first_changed

    def to(self, device: torch.device) -> "Pairs":
        """The same pairs on another device."""
        return self._each(lambda part: part.to(device))

    def take(self, prompts: Int[Tensor, " some"]) -> "Pairs":
        """Some of the pairs."""
        kept = tuple(self.kept[at] for at in prompts.tolist()) if self.kept else ()
        some = self._each(lambda part: part.rows(prompts) if isinstance(part, TokenBatch) else part[prompts])
        return replace(some, kept=kept)

    def _each(self, change: Callable[[Any], Any]) -> "Pairs":
        """Every text, answer and position changed alike."""
        names = ("clean", "corrupt", "target", "source", "right", "wrong")
        parts = {name: getattr(self, name) for name in names}
        changed = {name: None if part is None else change(part) for name, part in parts.items()}
        return replace(self, **changed, positions={name: change(at) for name, at in self.positions.items()})

    def swapped(self) -> "Pairs":
        """Clean and corrupted, right and wrong, exchanged."""
        return replace(self, clean=self.corrupt, corrupt=self.clean, right=self.wrong, wrong=self.right)

    @staticmethod
    def from_ids(
        model: Model,
        clean: Tensor,
        corrupt: Tensor,
        right: Tensor | Sequence[int] | int | None = None,
        wrong: Tensor | Sequence[int] | int | None = None,
        *,
        target: Tensor | None = None,
        source: Tensor | None = None,
        positions: Places | None = None,
    ) -> "Pairs":
        """Pairs from ids, prompt x position, taken as they are; `right` and `wrong` are one id each, or one for all.

        `target` and `source` are those of `Pairs`: one for each pair, or one for all; so are `positions`, in numbers.

        Raises:
            InputError: prompts of unequal length or identical, ids outside the vocabulary, not one answer a prompt, a
                place that a prompt has not.
        """
        stack = differing(model, target, source)
        prompts = as_batch(model, clean, stack), as_batch(model, corrupt, stack)
        n_pairs, parts = len(prompts[0].ids), {}
        for name, ids, read in (("target", target, "decoder"), ("source", source, "encoder")):
            if ids is not None:
                parts[name] = as_batch(model, ids.reshape(-1, ids.shape[-1]).expand(n_pairs, -1), read)
        for name, ids in (("right", right), ("wrong", wrong)):
            parts[name] = None if ids is None else answer_ids(model, ids, n_pairs, f"{name} id")
        named = {
            name: torch.tensor([position_of(name, at, "these ids", (), 0, clean.shape[1]) for at in places])
            for name, places in each_place(positions or {}, n_pairs).items()
        }
        return Pairs(*prompts, **parts, positions={name: at.to(model.device) for name, at in named.items()})

    @staticmethod
    def from_texts(
        model: Model,
        clean: Sequence[str],
        corrupt: Sequence[str],
        right: Sequence[str],
        wrong: Sequence[str],
        *,
        target: Sequence[str] | None = None,
        source: Sequence[str] | None = None,
        positions: Places | None = None,
        drop: bool = False,
    ) -> "Pairs":
        """Pairs from texts with one right and one wrong answer each, given as they continue the prompt (`" he"`).

        An answer is scored at the first piece in which the two differ: the pieces they share are put behind both
        prompts. With `drop`, pairs that cannot be used are left out and counted instead of raising. In a model with an
        encoder and a decoder clean and corrupted texts are sources, answers continue `target` (by default nothing); or
        they are targets, and `source` is what the encoder reads. `positions` name tokens of the clean prompts, each by
        one `Place` for all, or a list with one a prompt: `{"S2": ["John", "Mary"], "END": -1}`.

        Raises:
            InputError: prompts of unequal length or identical, answers without a differing piece, too long a prompt, a
                place that a prompt has not.
        """
        check_model(model)
        texts = clean, corrupt, right, wrong
        if strange := [each for each in chain(*texts) if not isinstance(each, str)]:
            raise InputError(f"expected prompts and answers as texts, got {strange[0]!r}")
        if len({*map(len, texts)}) > 1:
            sizes = (*map(len, texts),)
            raise InputError(
                f"expected one corrupted prompt, right and wrong answer for each clean prompt, got {sizes}"
            )
        beside = {name: each for name, each in (("target", target), ("source", source)) if each is not None}
        return _from_rows(model, texts, beside, each_place(positions or {}, len(clean)), drop)

    @staticmethod
    def from_csv(model: Model, file: str | Path, *, drop: bool = False, as_typed: bool = False) -> "Pairs":
        """Pairs from a CSV file, as `interp patch --pairs FILE` reads it; `from_columns` says how.

        Raises:
            InputError: no such file, not the columns of pairs, and as `from_columns`, naming the row.
        """
        return Pairs.from_columns(model, read_columns(file), drop=drop, as_typed=as_typed, file=Path(file).name)

    @staticmethod
    def from_columns(
        model: Model,
        columns: Columns,
        *,
        positions: Places | None = None,
        drop: bool = False,
        as_typed: bool = False,
        file: str | None = None,
    ) -> "Pairs":
        """Pairs from columns clean, corrupt, answer, wrong, and target or source where the model reads two texts.

        An answer that is a bare word gets the space before it that tables and shells strip, but where the prompt ends
        in one. Tokens are named by `{NAME:words}` in the clean prompt, or by a column `position:NAME` of numbers and of
        words that occur there once. `as_typed` takes texts as they are: no space is added, no braces are read.

        Args:
            model: what the pairs are for.
            columns: texts by column; others are not read.
            positions: names beside those in the columns, as in `from_texts`.
            drop: leave out and count pairs that cannot be used, instead of raising.
            as_typed: as said.
            file: what errors call the table; its first row after the header is row 1.

        Raises:
            InputError: as `from_texts`.
        """
        texts = {name: [*columns[name]] for name in (*COLUMNS, *BESIDE) if name in columns}
        places = each_place(positions or {}, len(texts["clean"]))
        marks: list[dict[str, Span]] = []
        for at in range(0 if as_typed else len(texts["clean"])):
            with inside("this pair" if file is None else f"row {at + 1} of {file}"):
                texts["clean"][at], found = unmarked(texts["clean"][at])
                marks.append(found)
                if unmarked(texts["corrupt"][at])[1]:
                    raise InputError("mark the clean prompt alone: the corrupted one aligns with it token for token")
        clean, corrupt, right, wrong = (texts[name] for name in COLUMNS)
        beside = {name: texts[name] for name in BESIDE if name in texts}
        if not as_typed:
            continued = beside.get("target", clean if len(model.config.stacks) == 1 or beside else [""] * len(clean))
            right, wrong = ([*map(with_space, continued, each)] for each in (right, wrong))
        for name in columns:
            if str(name).startswith(POSITION):
                places[str(name).removeprefix(POSITION)] = [*map(place, columns[name])]
        for name in dict.fromkeys(name for each in marks for name in each):
            places[name] = [each.get(name) for each in marks]
        return _from_rows(model, (clean, corrupt, right, wrong), beside, places, drop, file, glue=as_typed)


def _from_rows(
    model: Model,
    texts: tuple[Sequence[str], ...],
    beside: Mapping[str, Sequence[str]],
    places: Mapping[str, Sequence[Place | None]],
    drop: bool,
    file: str | None = None,
    *,
    glue: bool = False,
) -> Pairs:
    """Pairs of texts, answers and named places; `beside` are targets or sources; answers may `glue` to a word."""
    n_rows = len(texts[0])
    if len(model.config.stacks) > 1 and not beside:
        beside = {"target": [""] * n_rows}
    differing(model, beside.get("target"), beside.get("source"))
    kind = "source" if "source" in beside else "target"
    others = beside.get(kind, [None] * n_rows)
    if len(others) != n_rows:
        raise InputError(f"expected one {kind} for each of {n_rows} pairs, got {len(others)}")
    if (answering := answers_in(model)) is not None and not glue:
        warn_of_glued(answering, beside.get("target", texts[0]), *texts[2:])
    left_out: Counter[str] = Counter()
    usable: dict[int, tuple[list[int], list[int], int, int, list[int], list[int]]] = {}
    for at, (*row, other) in enumerate(zip(*texts, others, strict=True)):
        try:
            usable[at] = _pair(model, row, kind, other, {name: listed[at] for name, listed in places.items()})
        except _UnusableError as reason:
            left_out[str(reason).split(":")[0]] += 1
            if not drop:
                name = f"pair {row[0]!r} / {row[1]!r}" if file is None else f"row {at + 1} of {file}"
                advice = "" if file is None else "; --drop (drop=True) leaves such rows out"
                raise InputError(f"{name}: {reason}{advice}") from None
    if not usable:
        reasons = "; ".join(f"{count} because {reason}" for reason, count in left_out.items())
        raise InputError(f"none of the {n_rows} pairs can be used: {reasons}")
    clean, corrupt, right, wrong, read, positions = zip(*usable.values(), strict=True)
    columns = torch.tensor(positions, dtype=torch.long).view(len(usable), len(places)).unbind(1)
    parts: dict[str, Any] = {"positions": dict(zip(places, columns, strict=True))}
    parts |= {kind: TokenBatch.from_rows(read)} if beside else {}
    batches, answers = (
        (TokenBatch.from_rows(clean), TokenBatch.from_rows(corrupt)),
        (torch.tensor(right), torch.tensor(wrong)),
    )
    return Pairs(*batches, *answers, left_out, tuple(usable), **parts).to(model.device)


class _UnusableError(InputError):
    """A pair that cannot be used, and why."""


def check_padding(what: str, batch: TokenBatch) -> None:
    """Refuse texts with padding before them."""
    if batch.padded and not bool(batch.mask[:, 0].all()):
        raise InputError(f"{what} are padded on the right: expected a real token in the first column of each")


def text_read(inputs: Inputs, stack: str) -> TokenBatch:
    """What a stack reads of one text or two."""
    first, second = inputs
    return first if second is None or stack == "encoder" else second


def answers_in(model: Model) -> Tokenizer | None:
    """The tokenizer of what the output layer says."""
    return model.tokenizer if len(model.config.stacks) == 1 else model.target_tokenizer


def answer_ids(model: Model, answer: Answer, n_prompts: int, name: str = "answer") -> Int[Tensor, " prompt"]:
    """One token a prompt."""
    ids: Any = answer
    if isinstance(answer, str) or (isinstance(answer, Sequence) and any(isinstance(each, str) for each in answer)):
        if (tokenizer := answers_in(model)) is None:
            raise InputError("this model has no tokenizer: give answers as ids")
        ids = tokenizer.id(answer) if isinstance(answer, str) else [tokenizer.id(str(each)) for each in answer]
    ids = torch.as_tensor(ids)
    if ids.is_floating_point() or ids.shape not in {(), (n_prompts,)}:
        raise InputError(
            f"expected one {name} for each of the {n_prompts} prompts, or one for all; "
            f"got {ids.dtype} {tuple(ids.shape)}"
        )
    low, high, d_vocab = int(ids.min()), int(ids.max()), model.config.last.d_vocab
    if low < 0 or high >= d_vocab:
        raise InputError(f"{name}s must lie in 0-{d_vocab - 1}, the model's vocabulary; got {low} to {high}")
    return ids.long().expand(n_prompts).to(model.device)


def differing(model: Model, target: object, source: object) -> str:
    """The stack whose texts differ."""
    two = len(model.config.stacks) > 1
    if two != (target is not None or source is not None):
        raise InputError(
            "this model has an encoder and a decoder: give target=, what the decoder reads for both prompts, or "
            "source=, what the encoder does"
            if two
            else "this model reads one text: expected neither target nor source"
        )
    return "decoder" if source is not None else next(iter(model.config.stacks))


def _pair(
    model: Model, row: Sequence[str], kind: str, other: str | None, places: Mapping[str, Place | None]
) -> tuple[list[int], list[int], int, int, list[int], list[int]]:
    """Ids of both prompts, of the differing answer pieces and of the text that does not differ; the named positions."""
    (clean, corrupt, right, wrong), tokenizer, answering = row, model.tokenizer, answers_in(model)
    if tokenizer is None or answering is None:
        raise InputError("this model has no tokenizer: give pairs as ids (Pairs.from_ids)")
    of_sources = other is not None and kind == "target"  # the prompts are what the encoder reads

    def decoded(text: str) -> list[int]:
        """Ids as the decoder reads them, its start id before them."""
        return as_target(model, text).ids[0].tolist()

    if other is None:
        prompts, beside = [[*tokenizer.prefix, *tokenizer.pieces(text).ids] for text in (clean, corrupt)], []
    elif of_sources:
        prompts, beside = [tokenizer.encode(text) for text in (clean, corrupt)], decoded(other)
    else:
        prompts, beside = [decoded(text) for text in (clean, corrupt)], tokenizer.encode(other)
    answers = answering.continuation(right), answering.continuation(wrong)
    shared = _shared(*answers, f"{right!r} and {wrong!r}")
    if len(prompts[0]) != len(prompts[1]):
        lengths = f"{len(prompts[0])} and {len(prompts[1])}"
        raise _UnusableError(f"the prompts do not align: they are {lengths} tokens long; {_NAMES}")
    if prompts[0] == prompts[1]:
        raise _UnusableError(f"the prompts are {'identical' if clean.strip() else 'empty'}: nothing can be patched")
    if of_sources:
        beside = [*beside, *answers[0][:shared]]
    else:
        prompts = [[*prompt, *answers[0][:shared]] for prompt in prompts]
    reads_source = other is not None and not of_sources
    read = (beside, prompts[0]) if reads_source else (prompts[0], beside)
    for texts, config, ids in zip(("prompts", "targets"), model.config.stacks.values(), read, strict=False):
        if len(ids) > config.n_ctx:
            raise _UnusableError(f"the {texts} are longer than the context: {len(ids)} tokens against {config.n_ctx}")
    asked = answering if reads_source else tokenizer
    said = {answers[0][shared], *(() if reads_source else beside)}
    if asked.unknown_id in {*prompts[0], *prompts[1]} or answering.unknown_id in said:
        raise _UnusableError("the prompts hold words that the vocabulary lacks")
    try:
        tokenizer = target_tokenizer(model) if reads_source else tokenizer
        pieces = clean, tokenizer.pieces(clean).spans, len(tokenizer.prefix), len(prompts[0])
        positions = [position_of(name, at, *pieces) for name, at in places.items()] if places else []
    except InputError as error:
        raise _UnusableError(f"a named position is missing: {error}") from None
    return prompts[0], prompts[1], answers[0][shared], answers[1][shared], beside, positions


def _shared(right: Sequence[int], wrong: Sequence[int], names: str) -> int:
    """How many pieces two answers begin with alike."""
    if (shared := first_difference(right, wrong)) is not None:
        return shared
    if not right or not wrong:
        raise _UnusableError(f"an answer is empty: expected two that continue the prompt, got {names}")
    same = "the answers are the same" if right == wrong else "one answer begins the other"
    raise _UnusableError(f"{same}: {names} are {right} and {wrong}, with no differing piece")


def first_difference(right: Sequence[int], wrong: Sequence[int]) -> int | None:
    """The first piece in which two answers differ; None where one begins with the other."""
    return next((at for at, (a, b) in enumerate(zip(right, wrong, strict=False)) if a != b), None)
