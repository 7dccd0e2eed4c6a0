"""Which prompts are patched? Reads minimal pairs from a command line or a file, and tells what became of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from interp import InputError, Model, Tokenizer
from interp.patching import Pairs
from interp.patching.pairs import answers_in

COLUMNS = ("clean", "corrupt", "answer", "wrong")
BESIDE = ("target", "source")  # what the decoder, or else the encoder, reads for both prompts of a pair


class PromptTokens(NamedTuple):
    """The tokens of a clean and of a corrupted prompt, which of them differ, and those of the text that does not."""

    clean: list[str]
    corrupt: list[str]
    changed: list[bool]
    beside: list[str]


def read_pairs(file: Path) -> pd.DataFrame:
    """The table of prompts in a CSV file: columns clean, corrupt, answer and wrong, and maybe target or source: texts.

    Raises:
        InputError: not a CSV file, a column missing, rows longer than the header, or no rows.
    """
    try:
        table = pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except pd.errors.EmptyDataError as error:
        raise InputError(f"{file} is empty: expected columns {', '.join(COLUMNS)}") from error
    except (OSError, ValueError) as error:  # what pandas cannot parse or decode is a ValueError too
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read {file} as CSV: {reason}") from error
    if missing := [name for name in COLUMNS if name not in table.columns]:
        have = ", ".join(map(str, table.columns))
        raise InputError(f"{file} lacks the column {', '.join(missing)}: it has {have}")
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes a surplus field for a name of the row
        raise InputError(f"the rows of {file} have more fields than its header: put quotes around texts with commas")
    if table.empty:
        raise InputError(f"{file} has a header and no rows: expected one pair a row")
    return table.loc[:, [*COLUMNS, *(name for name in BESIDE if name in table.columns)]].fillna("")


def read_prompts(typed: Mapping[str, str | None], file: Path | None) -> pd.DataFrame:
    """The table of prompts: one typed pair, or those of a file; either, and whole.

    Raises:
        InputError: neither, both, or a part of a typed pair missing; or as `read_pairs`.
    """
    given = {name: text for name, text in typed.items() if text is not None}
    if file is not None:
        if given:
            raise InputError(f"expected one pair or a file of them; got --pairs and --{', --'.join(given)}")
        return read_pairs(file)
    if missing := [name for name in COLUMNS if name not in given]:
        raise InputError(
            "expected --clean, --corrupt, --answer and --wrong, or --pairs FILE.csv; "
            f"--{', --'.join(missing)} {'is' if len(missing) == 1 else 'are'} not given"
        )
    return pd.DataFrame([given], columns=[*COLUMNS, *(name for name in BESIDE if name in given)])


def with_space(prompt: str, answer: str) -> str:
    """The answer as it continues the prompt: a bare word gets the space that a shell strips."""
    return f" {answer}" if answer[:1].isalpha() and not prompt[-1:].isspace() else answer


def make_pairs(
    model: Model, prompts: pd.DataFrame, *, drop: bool = False, as_typed: bool = False, source: str | None = None
) -> Pairs:
    """Pairs from a table of prompts and answers.

    Args:
        model: a transformer with a tokenizer.
        prompts: columns clean, corrupt, answer, wrong, and target or source where the model reads two texts.
        drop: leave out and count pairs that cannot be used, instead of raising.
        as_typed: put no space before answers.
        source: the file that they come from; errors then name the row, the first after the header being row 1.

    Raises:
        InputError: a pair that does not align, is identical, or whose answers do not differ.
    """
    clean, corrupt, right, wrong = (prompts[name].tolist() for name in COLUMNS)
    beside: dict[str, list[str]] = {name: prompts[name].tolist() for name in BESIDE if name in prompts}
    if not as_typed:
        alone = len(model.config.stacks) == 1 or "source" in beside
        continued = clean if alone else beside.get("target", [""] * len(clean))
        right, wrong = ([*map(with_space, continued, answers)] for answers in (right, wrong))
    if source is not None and not drop:
        for row, texts in enumerate(zip(clean, corrupt, right, wrong, strict=True), 1):
            own = {name: [given[row - 1]] for name, given in beside.items()}
            try:
                Pairs.from_texts(model, *([text] for text in texts), **own)
            except InputError as error:
                raise InputError(f"row {row} of {source}: {error}; --drop leaves such rows out") from error
    return Pairs.from_texts(model, clean, corrupt, right, wrong, **beside, drop=drop)


def pairs_table(
    model: Model, prompts: pd.DataFrame, pairs: Pairs, values: Mapping[str, Sequence[float]]
) -> pd.DataFrame:
    """The pairs that were used: their texts, the tokens read as answers, and each metric before patching (`values`)."""
    used = prompts.iloc[list(pairs.kept)].reset_index(drop=True)
    used.insert(0, "row", [place + 1 for place in pairs.kept])
    for column, ids in (("answer_token", pairs.right), ("wrong_token", pairs.wrong)):
        assert ids is not None
        used[column] = labels(answers_in(model), ids.tolist())
    return used.assign(**values)


def prompt_tokens(model: Model, pairs: Pairs) -> list[PromptTokens]:
    """The prompts of each pair, token by token."""
    tokenizer = model.tokenizer if pairs.source is None else answers_in(model)
    beside = pairs.target or pairs.source
    other_tokenizer = answers_in(model) if pairs.target is not None else model.tokenizer
    found = []
    for at, length in enumerate(pairs.clean.lengths.tolist()):
        own, other = (batch.ids[at, :length].tolist() for batch in (pairs.clean, pairs.corrupt))
        changed = [a != b for a, b in zip(own, other, strict=True)]
        shared = [] if beside is None else beside.ids[at, : int(beside.lengths[at])].tolist()
        found.append(
            PromptTokens(labels(tokenizer, own), labels(tokenizer, other), changed, labels(other_tokenizer, shared))
        )
    return found


def labels(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    """Tokens as they are shown."""
    assert tokenizer is not None
    return [tokenizer.label(id) for id in ids]
