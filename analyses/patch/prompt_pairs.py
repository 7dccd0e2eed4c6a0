"""Which prompts are patched? Reads minimal pairs from a command line or a file, and tells what became of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from interp import InputError, Model, Tokenizer
from interp.patching import Pairs
from interp.patching.pair_files import COLUMNS, FIXED, place, read_columns
from interp.patching.pairs import answers_in


class PromptTokens(NamedTuple):
    """The tokens of a clean and of a corrupted prompt, which of them differ, and those of the text that does not."""

    clean: list[str]
    corrupt: list[str]
    changed: list[bool]
    beside: list[str]


def read_pairs(file: Path) -> pd.DataFrame:
    """The table of prompts in a CSV file, as `Pairs.from_csv` reads it.

    Raises:
        InputError: not a CSV file, a column missing or there twice, rows longer than the header, or no rows.
    """
    return pd.DataFrame(read_columns(file))


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
    return pd.DataFrame([given], columns=[*COLUMNS, *(name for name in FIXED if name in given)])


def read_places(typed: Sequence[str]) -> dict[str, int | str]:
    """Places by name, each typed as NAME=PLACE.

    Raises:
        InputError: there is no `=`, no name or no place, or a name twice.
    """
    places: dict[str, int | str] = {}
    for text in typed:
        name, _, where = text.partition("=")
        if not name or not where or name in places:
            raise InputError(f"expected --position NAME=PLACE, as END=-1, each name once; got {text!r}")
        places[name] = place(where)
    return places


def make_pairs(
    model: Model,
    prompts: pd.DataFrame,
    *,
    drop: bool = False,
    as_typed: bool = False,
    positions: Mapping[str, int | str] | None = None,
    source: str | None = None,
) -> Pairs:
    """Pairs from a table of prompts and answers, by `Pairs.from_columns`; `source` is the file that they come from.

    Names of positions are in the order in which they stand in the prompts, on average: tables and pictures read as the
    prompts do, however the names were given.
    """
    columns = {str(name): prompts[name].tolist() for name in prompts}
    made = Pairs.from_columns(model, columns, drop=drop, as_typed=as_typed, positions=positions, file=source)
    order = sorted(made.positions, key=lambda name: float(made.positions[name].double().mean()))
    return replace(made, positions={name: made.positions[name] for name in order})


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
    tokens = []
    for row, length in enumerate(pairs.clean.lengths.tolist()):
        clean, corrupt = (batch.ids[row, :length].tolist() for batch in (pairs.clean, pairs.corrupt))
        changed = [a != b for a, b in zip(clean, corrupt, strict=True)]
        shared = [] if beside is None else beside.ids[row, : int(beside.lengths[row])].tolist()
        shown = labels(tokenizer, clean), labels(tokenizer, corrupt), changed, labels(other_tokenizer, shared)
        tokens.append(PromptTokens(*shown))
    return tokens


def labels(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    """Tokens as they are shown."""
    assert tokenizer is not None
    return tokenizer.labels(ids)
