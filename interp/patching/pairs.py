"""Minimal pairs: a clean prompt, a corrupted one that differs in a few tokens, and the right and wrong answers."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.display import Result, so_many
from interp.errors import InputError, inside
from interp.model import Model, as_batch, as_target, check_model, target_tokenizer
from interp.patching import pair_files
from interp.patching.pair_files import COLUMNS, FIXED, POSITION, Columns, NamedPlaces, Place, each_place, position_of
from interp.tokens import Span, TokenBatch, Tokenizer, describe

_NAMES = "each token replaces one of the other prompt, so reword one (named positions align one pair with another)"
Answer = str | Sequence[str] | int | Sequence[int] | Int[Tensor, "*prompt"]
Inputs = tuple[TokenBatch, TokenBatch | None]  # what the first stack reads and, if there are two, the decoder


@dataclass(frozen=True, repr=False)
class Pairs(Result):
    """Prompts in pairs of equal length in tokens, padded on the right.

    An encoder-decoder reads two texts, and both prompts share one of them: the decoder's (`target`) if the encoder
    reads clean and corrupted, or the encoder's (`source`) if the decoder reads them.

    `positions` name tokens of the texts that differ, one position per prompt. If pairs name positions, position axes
    have these names as entries, in their order.
    """

    clean: TokenBatch
    corrupt: TokenBatch
    right: Int[Tensor, " prompt"] | None = None  # ids of the answers after the clean prompt
    wrong: Int[Tensor, " prompt"] | None = None  # and after the corrupted one; None if a metric brings its own
    left_out: Counter[str] = field(default_factory=Counter)  # pairs that could not be used, by reason
    kept: tuple[int, ...] = ()  # the used pairs' indices among all that were offered
    target: TokenBatch | None = None
    source: TokenBatch | None = None
    positions: Mapping[str, Int[Tensor, " prompt"]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.clean.ids.shape != self.corrupt.ids.shape or not torch.equal(self.clean.mask, self.corrupt.mask):
            lengths = f"{self.clean.lengths.tolist()} and {self.corrupt.lengths.tolist()} tokens"
            raise InputError(f"clean and corrupted prompts must be equally long: got {lengths}; {_NAMES}")
        check_padding("pairs", self.clean)
        identical = (~self.changed.any(1)).nonzero()
        if len(identical):
            raise InputError(f"clean and corrupted prompt {int(identical[0])} are identical: nothing can be patched")
        self.check_fixed()
        for name, columns in self.positions.items():
            if columns.shape != self.last.shape or bool(((columns < 0) | (columns >= self.clean.lengths)).any()):
                raise InputError(f"expected one position {name} within each prompt's tokens, got {columns.tolist()}")

    @property
    def _fixed(self) -> dict[str, TokenBatch]:
        texts = {"target": self.target, "source": self.source}
        return {name: batch for name, batch in texts.items() if batch is not None}

    def check_fixed(self) -> None:
        """Raise an InputError unless the shared text, if any, fits the pairs."""
        if len(self._fixed) > 1:
            raise InputError("one text differs and the other does not: expected a target or a source, got both")
        for name, texts in self._fixed.items():
            if len(texts.ids) != len(self):
                raise InputError(f"expected one {name} for each of {len(self)} pairs, got {len(texts.ids)}")
            check_padding(f"{name}s", texts)

    def __len__(self) -> int:
        return len(self.clean.ids)

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """How many pairs, where they differ, which positions they name, and what was left out."""
        first, last = int(self.first_changed.min()), int(self.first_changed.max())
        facts = {"first difference": f"at position {first}" + f" to {last}" * (last > first)}
        facts["answers"] = "none" if self.right is None else "one right" + " and one wrong" * (self.wrong is not None)
        facts |= {name: describe(texts) for name, texts in self._fixed.items()}
        facts |= {"positions": ", ".join(self.positions)} if self.positions else {}
        facts |= {"left out": _reasons(self.left_out)} if self.left_out else {}
        return f"{so_many(len(self), 'pair')}: {describe(self.clean)}", facts

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
        """The last position of each text that the output layer reads (the target if there are two)."""
        return (self.clean if self.target is None else self.target).lengths - 1

    @property
    def inputs(self) -> tuple[Inputs, Inputs]:
        """What the model reads for the clean prompts, and for the corrupted ones."""
        if self.source is not None:
            return (self.source, self.clean), (self.source, self.corrupt)
        return (self.clean, self.target), (self.corrupt, self.target)

    def read_by(self, stack: str) -> TokenBatch:
        """What a stack reads for the clean prompts; it has the same length for the corrupted ones."""
        return text_read(self.inputs[0], stack)

    def differing(self, stack: str) -> str:
        """The stack that reads what differs; `stack` itself if the model has only one."""
        return "decoder" if self.source is not None else "encoder" if self.target is not None else stack

    def first_reached(self, stack: str) -> Int[Tensor, " prompt"]:
        """The first position at which a causal stack can tell each pair apart: 0 if the encoder reads what differs."""
        return torch.zeros_like(self.last) if self.target is not None and stack == "decoder" else self.first_changed

    def to(self, device: torch.device) -> "Pairs":
        """The same pairs on another device."""
        return self._changed(lambda part: part.to(device))

    def take(self, prompts: Int[Tensor, " some"]) -> "Pairs":
        """Some of the pairs."""
        rows = tuple(self.kept[prompt] for prompt in prompts.tolist()) if self.kept else ()
        pairs = self._changed(lambda part: part.rows(prompts) if isinstance(part, TokenBatch) else part[prompts])
        return replace(pairs, kept=rows)

    def _changed(self, change: Callable[[Any], Any]) -> "Pairs":
        """Apply `change` to every text, answer and position."""
        parts = {name: getattr(self, name) for name in ("clean", "corrupt", "target", "source", "right", "wrong")}
        changed = {name: None if part is None else change(part) for name, part in parts.items()}
        return replace(self, **changed, positions={name: change(at) for name, at in self.positions.items()})

    def swapped(self) -> "Pairs":
        """The pairs with clean and corrupted, and right and wrong, exchanged."""
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
        positions: NamedPlaces | None = None,
    ) -> "Pairs":
        """Pairs from ids, prompt x position, used unchanged; `right` and `wrong` are one id per pair, or one for all.

        `target` and `source` (see `Pairs`) and `positions`, as numbers, are also one per pair, or one for all.
        Prompts of unequal length or identical, and ids outside the vocabulary, are an `InputError`.
        """
        stack = differing(model, target, source)
        prompts = as_batch(model, clean, stack), as_batch(model, corrupt, stack)
        n_pairs, parts = len(prompts[0].ids), {}
        for name, ids, reader in (("target", target, "decoder"), ("source", source, "encoder")):
            if ids is not None:
                parts[name] = as_batch(model, ids.reshape(-1, ids.shape[-1]).expand(n_pairs, -1), reader)
        for name, ids in (("right", right), ("wrong", wrong)):
            parts[name] = None if ids is None else answer_ids(model, ids, n_pairs, f"{name} id")
        parts["positions"] = {}
        for name, column in each_place(positions or {}, n_pairs).items():
            columns = [position_of(name, place, "these ids", (), 0, clean.shape[1]) for place in column]
            parts["positions"][name] = torch.tensor(columns, device=model.device)
        return Pairs(*prompts, **parts)

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
        positions: NamedPlaces | None = None,
        drop: bool = False,
    ) -> "Pairs":
        """Pairs from texts with one right and one wrong answer each, spelt as they continue the prompt (`" he"`).

        Answers are scored at the first piece in which the two differ; pieces that they share are appended to both
        prompts. With `drop`, unusable pairs (unequal length, identical, too long, no differing piece) are left out and
        counted instead of raising. For an encoder-decoder, clean and corrupted texts are sources and answers continue
        `target` (empty by default); or they are targets, and the encoder reads `source`. `positions` name tokens of the
        clean prompts, by one `Place` for all or a list with one per prompt: `{"S2": ["John", "Mary"], "END": -1}`.
        """
        check_model(model)
        texts = clean, corrupt, right, wrong
        if strange := [a for a in texts if isinstance(a, str)] or [a for a in chain(*texts) if not isinstance(a, str)]:
            raise InputError(f"expected prompts and answers as lists of texts, got {strange[0]!r}")
        if len({*(sizes := (*map(len, texts),))}) > 1:
            raise InputError(f"expected a corrupted prompt, right and wrong answer for each clean prompt, got {sizes}")
        fixed = {name: each for name, each in (("target", target), ("source", source)) if each is not None}
        return _from_rows(model, texts, fixed, each_place(positions or {}, len(clean)), drop)

    @staticmethod
    def from_csv(model: Model, file: str | Path, *, drop: bool = False, as_typed: bool = False) -> "Pairs":
        """Pairs from a CSV file, as `interp patch --pairs FILE` reads it; see `from_columns`."""
        columns = pair_files.read_columns(file)
        return Pairs.from_columns(model, columns, drop=drop, as_typed=as_typed, file=Path(file).name)

    @staticmethod
    def from_columns(
        model: Model,
        columns: Columns,
        *,
        positions: NamedPlaces | None = None,
        drop: bool = False,
        as_typed: bool = False,
        file: str | None = None,
    ) -> "Pairs":
        """Pairs from columns clean, corrupt, answer, wrong, and target or source if the model reads two texts.

        An answer that is a bare word gets the space that tables and shells strip, unless the prompt ends in one. Name
        tokens by `{NAME:words}` in the clean prompt, by a column `position:NAME` of numbers or words that occur there
        once, or by `positions`, as in `from_texts`. `as_typed` uses texts unchanged: it adds no spaces and keeps
        braces. `file` is the table's name in errors.
        """
        texts = {name: [*columns[name]] for name in (*COLUMNS, *FIXED) if name in columns}
        named = each_place(positions or {}, len(texts["clean"]))
        marks: list[dict[str, Span]] = []
        for row in range(0 if as_typed else len(texts["clean"])):
            with inside("this pair" if file is None else f"row {row + 1} of {file}"):
                texts["clean"][row], spans = pair_files.unmarked(texts["clean"][row])
                marks.append(spans)
                if pair_files.unmarked(texts["corrupt"][row])[1]:
                    raise InputError("mark the clean prompt alone: the corrupted one aligns with it token for token")
        clean, corrupt, right, wrong = (texts[name] for name in COLUMNS)
        fixed = {name: texts[name] for name in FIXED if name in texts}
        if not as_typed:
            continued = fixed.get("target", clean if len(model.config.stacks) == 1 or fixed else [""] * len(clean))
            right, wrong = ([*map(pair_files.with_space, continued, each)] for each in (right, wrong))
        for name in columns:
            if str(name).startswith(POSITION):
                named[str(name).removeprefix(POSITION)] = [*map(pair_files.place, columns[name])]
        for name in dict.fromkeys(name for spans in marks for name in spans):
            named[name] = [spans.get(name) for spans in marks]
        pairs = _from_rows(model, (clean, corrupt, right, wrong), fixed, named, drop, file, glue=as_typed)
        if (tokenizer := answers_in(model)) is not None:
            pair_files.warn_of_pieces(tokenizer, [(right[row], wrong[row]) for row in pairs.kept])
        return pairs


def _from_rows(
    model: Model,
    texts: tuple[Sequence[str], ...],
    fixed: Mapping[str, Sequence[str]],
    named: Mapping[str, Sequence[Place | None]],
    drop: bool,
    file: str | None = None,
    *,
    glue: bool = False,
) -> Pairs:
    """Pairs from texts, answers and named places; `fixed` has targets or sources; `glue` allows glued answers."""
    n_rows = len(texts[0])
    if len(model.config.stacks) > 1 and not fixed:
        fixed = {"target": [""] * n_rows}
    differing(model, fixed.get("target"), fixed.get("source"))
    kind = "source" if "source" in fixed else "target"
    column = fixed.get(kind, [None] * n_rows)
    if len(column) != n_rows:
        raise InputError(f"expected one {kind} for each of {n_rows} pairs, got {len(column)}")
    if (answering := answers_in(model)) is not None and not glue:
        pair_files.warn_of_glued(answering, fixed.get("target", texts[0]), *texts[2:])
    left_out: Counter[str] = Counter()
    usable: dict[int, tuple[list[int], list[int], int, int, list[int], list[int]]] = {}
    for index, (*row, text) in enumerate(zip(*texts, column, strict=True)):
        try:
            usable[index] = _pair(model, row, kind, text, {name: places[index] for name, places in named.items()})
        except _UnusableError as reason:
            left_out[str(reason).split(":")[0]] += 1
            if not drop:
                name = f"pair {row[0]!r} / {row[1]!r}" if file is None else f"row {index + 1} of {file}"
                advice = "" if file is None else "; --drop (drop=True) leaves such rows out"
                raise InputError(f"{name}: {reason}{advice}") from None
    if not usable:
        raise InputError(f"none of the {n_rows} pairs can be used: {_reasons(left_out)}")
    clean, corrupt, right, wrong, fixed_ids, positions = zip(*usable.values(), strict=True)
    columns = torch.tensor(positions, dtype=torch.long).view(len(usable), len(named)).unbind(1)
    parts: dict[str, Any] = {"positions": dict(zip(named, columns, strict=True))}
    parts |= {kind: TokenBatch.from_rows(fixed_ids)} if fixed else {}
    batches = TokenBatch.from_rows(clean), TokenBatch.from_rows(corrupt)
    pairs = Pairs(*batches, torch.tensor(right), torch.tensor(wrong), left_out, tuple(usable), **parts)
    return pairs.to(model.device)


def _reasons(left_out: Counter[str]) -> str:
    return "; ".join(f"{count} because {reason}" for reason, count in left_out.items())


class _UnusableError(InputError):
    """Why a pair cannot be used."""


def check_padding(name: str, batch: TokenBatch) -> None:
    """Raise an InputError if texts are padded on the left."""
    if batch.padded and not bool(batch.mask[:, 0].all()):
        raise InputError(f"{name} are padded on the right: expected a real token in the first column of each")


def text_read(inputs: Inputs, stack: str) -> TokenBatch:
    """The text that a stack reads, out of one or two."""
    first, second = inputs
    return first if second is None or stack == "encoder" else second


def answers_in(model: Model) -> Tokenizer | None:
    """The tokenizer of the output vocabulary."""
    return model.tokenizer if len(model.config.stacks) == 1 else model.target_tokenizer


def answer_ids(model: Model, answer: Answer, n_prompts: int, name: str = "answer") -> Int[Tensor, " prompt"]:
    """Answers as ids, one per prompt, checked against the vocabulary."""
    ids: Any = answer
    if isinstance(answer, str) or (isinstance(answer, Sequence) and any(isinstance(each, str) for each in answer)):
        if (tokenizer := answers_in(model)) is None:
            raise InputError("this model has no tokenizer: give answers as ids")
        ids = tokenizer.id(answer) if isinstance(answer, str) else [tokenizer.id(str(each)) for each in answer]
    ids = torch.as_tensor(ids)
    if ids.is_floating_point() or ids.shape not in {(), (n_prompts,)}:
        expected = f"expected one {name} for each of the {n_prompts} prompts, or one for all"
        raise InputError(f"{expected}; got {ids.dtype} {tuple(ids.shape)}")
    low, high, d_vocab = int(ids.min()), int(ids.max()), model.config.last.d_vocab
    if low < 0 or high >= d_vocab:
        raise InputError(f"{name}s must lie in 0-{d_vocab - 1}, the model's vocabulary; got {low} to {high}")
    return ids.long().expand(n_prompts).to(model.device)


def differing(model: Model, target: object, source: object) -> str:
    """The stack whose texts differ."""
    two = len(model.config.stacks) > 1
    if two != (target is not None or source is not None):
        advice = "give target=, what the decoder reads for both prompts, or source=, what the encoder does"
        both = f"this model has an encoder and a decoder: {advice}"
        raise InputError(both if two else "this model reads one text: expected neither target nor source")
    return "decoder" if source is not None else next(iter(model.config.stacks))


def _pair(
    model: Model, row: Sequence[str], kind: str, fixed: str | None, named: Mapping[str, Place | None]
) -> tuple[list[int], list[int], int, int, list[int], list[int]]:
    """Ids of both prompts, the differing answer pieces and the shared text; the named positions."""
    (clean, corrupt, right, wrong), tokenizer, answering = row, model.tokenizer, answers_in(model)
    if tokenizer is None or answering is None:
        raise InputError("this model has no tokenizer: give pairs as ids (Pairs.from_ids)")
    sources_differ, targets_differ = fixed is not None and kind == "target", kind == "source"
    if fixed is None:
        prompts, fixed_ids = [[*tokenizer.prefix, *tokenizer.pieces(text).ids] for text in (clean, corrupt)], []
    elif sources_differ:
        prompts = [tokenizer.encode(text) for text in (clean, corrupt)]
        fixed_ids = as_target(model, fixed).ids[0].tolist()
    else:
        prompts = [as_target(model, text).ids[0].tolist() for text in (clean, corrupt)]
        fixed_ids = tokenizer.encode(fixed)
    answers = answering.continuation(right), answering.continuation(wrong)
    shared = _shared(*answers, f"{right!r} and {wrong!r}", answering.unknown_id)
    if len(prompts[0]) != len(prompts[1]):
        starts = [[*(start for start, _ in tokenizer.pieces(text).spans), None] for text in (clean, corrupt)]
        read = ("|".join(text[a:b] for a, b in pairwise(each)) for text, each in zip(row, starts, strict=False))
        cut = ", ".join(dict.fromkeys(re.findall(r"\w+(?:\|\w+)+", " ".join(read))))  # words of several tokens
        fault = "the prompts do not align" if corrupt.strip() else "there is no corrupted prompt"
        lengths = f"{len(prompts[0])} and {len(prompts[1])} tokens long{f' ({cut})' if cut else ''}"
        raise _UnusableError(f"{fault}: they are {lengths}; {_NAMES}")
    if prompts[0] == prompts[1]:
        raise _UnusableError(f"the prompts are {'identical' if clean.strip() else 'empty'}: nothing can be patched")
    if sources_differ:
        fixed_ids = [*fixed_ids, *answers[0][:shared]]
    else:
        prompts = [[*prompt, *answers[0][:shared]] for prompt in prompts]
    texts = (fixed_ids, prompts[0]) if targets_differ else (prompts[0], fixed_ids)
    for name, config, ids in zip(("prompts", "targets"), model.config.stacks.values(), texts, strict=False):
        if len(ids) > config.n_ctx:
            raise _UnusableError(f"the {name} are longer than the context: {len(ids)} tokens against {config.n_ctx}")
    unknown = (answering if targets_differ else tokenizer).unknown_id
    if unknown in {*prompts[0], *prompts[1]} or (not targets_differ and answering.unknown_id in fixed_ids):
        raise _UnusableError("the prompts hold words that the vocabulary lacks")
    try:
        tokenizer = target_tokenizer(model) if targets_differ else tokenizer
        pieces = clean, tokenizer.pieces(clean).spans, len(tokenizer.prefix), len(prompts[0])
        positions = [position_of(name, place, *pieces) for name, place in named.items()] if named else []
    except InputError as error:
        raise _UnusableError(f"a named position is missing: {error}") from None
    return prompts[0], prompts[1], answers[0][shared], answers[1][shared], fixed_ids, positions


def _shared(right: Sequence[int], wrong: Sequence[int], names: str, unknown: int | None) -> int:
    """How many initial pieces two answers share."""
    if (shared := pair_files.first_difference(right, wrong)) is not None:
        if unknown in (right[shared], wrong[shared]):
            raise _UnusableError(f"the vocabulary lacks an answer: check the spelling of {names}")
        return shared
    if not right or not wrong:
        raise _UnusableError(f"an answer is empty: expected two that continue the prompt, got {names}")
    fault = "the answers are the same" if right == wrong else "one answer begins the other"
    raise _UnusableError(f"{fault}: {names} differ in no piece")
