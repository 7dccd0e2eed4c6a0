"""What does one run of `interp patch` measure? Its pairs, every cell, and gradient estimates where asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analyses.execution.provenance import digest
from analyses.patch.cell_estimates import Estimates, check_metrics, correlations, estimates_of
from analyses.patch.cells import NO_OUTPUT, Cells, cells_of, sweeps
from interp import InputError, Model, Tokenizer
from interp.patching import Pairs
from interp.patching.pair_files import COLUMNS, FIXED, place, read_columns
from interp.patching.pairs import answers_in

Progress = Callable[[str, int], object]  # what is being done, and how often it was


class PromptTokens(NamedTuple):
    """The tokens of a clean and of a corrupted prompt, which of them differ, and those of the text that both share."""

    clean: list[str]
    corrupt: list[str]
    changed: list[bool]
    shared: list[str]


@dataclass(frozen=True)
class Patched:
    """What was patched and what came of it; `prompts` and `how` are for the record."""

    site: str
    how: Mapping[str, Any]
    prompts: Mapping[str, Any]
    pairs: pd.DataFrame
    tokens: Sequence[PromptTokens]
    cells: Cells
    positions: Mapping[str, Sequence[int]]  # of each pair, by name
    estimates: Estimates | None = None
    correlations: pd.DataFrame | None = None


def find(
    model: Model,
    prompts: pd.DataFrame,
    site: str = "z",
    *,
    estimates: bool = False,
    drop: bool = False,
    as_typed: bool = False,
    positions: Mapping[str, int | str] | None = None,
    by_position: bool | None = None,
    source: Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **how: Any,
) -> Patched:
    """Sweep one site over all pairs.

    Args:
        model: a transformer with a tokenizer.
        prompts: columns clean, corrupt, answer, wrong, and target or source where the model reads two texts.
        site: what is patched.
        estimates: set gradient estimates beside the exact effects.
        drop: leave out and count pairs that cannot be used.
        as_typed: take texts as they are: put no space before answers, and read no braces.
        positions: names for tokens of all prompts, as in `Pairs.from_texts`.
        by_position: whether positions are patched one by one; by default where some have names.
        source: the file that the prompts come from.
        seed: of everything random.
        progress: called with what is being done.
        how: `directions`, `metrics`, `stack` and `attention` of `analyses.patch.cells.sweeps`.

    Raises:
        InputError: as `make_pairs` and `measure`, or a metric without a gradient where estimates are asked for.
    """
    say = progress or (lambda stage, count: None)
    if model.config.output == "none":
        raise InputError(NO_OUTPUT)
    if estimates:
        check_metrics(how.get("metrics", ()))
    file = None if source is None else source.name
    pairs = make_pairs(model, prompts, drop=drop, as_typed=as_typed, positions=positions, source=file)
    by_position = bool(pairs.positions) if by_position is None else by_position
    say("patching", 0)
    exact = sweeps(model, pairs, site, by_position=by_position, **how)
    config = {"by_position": by_position, "directions": [each.direction for each in exact]}
    config |= {"metrics": [*exact[0].values], "stack": exact[0].stack, "attention": how.get("attention", "self")}
    cells = cells_of(model, exact, seed=seed)
    sha256 = None if source is None else digest([source.read_bytes()])
    patched = Patched(
        site=site,
        how=config,
        prompts={"file": file, "sha256": sha256, "pairs": len(pairs), "left_out": pairs.left_out},
        pairs=_pairs_table(model, prompts, pairs, cells.prompts),
        tokens=_prompt_tokens(model, pairs),
        cells=cells,
        positions={name: indices.tolist() for name, indices in pairs.positions.items()},
    )
    if not estimates:
        return patched
    say("estimating", 0)
    estimated = estimates_of(model, pairs, exact, seed=seed, progress=say)
    return replace(patched, estimates=estimated, correlations=correlations(estimated.table))


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
    texts = {name: text for name, text in typed.items() if text is not None}
    if file is not None:
        if texts:
            raise InputError(f"expected one pair or a file of them; got --pairs and --{', --'.join(texts)}")
        return read_pairs(file)
    if missing := [name for name in COLUMNS if name not in texts]:
        raise InputError(
            "expected --clean, --corrupt, --answer and --wrong, or --pairs FILE.csv; "
            f"--{', --'.join(missing)} {'is' if len(missing) == 1 else 'are'} not given"
        )
    return pd.DataFrame([texts], columns=[*COLUMNS, *(name for name in FIXED if name in texts)])


def read_places(typed: Sequence[str]) -> dict[str, int | str]:
    """Places by name, each typed as NAME=PLACE."""
    by_name: dict[str, int | str] = {}
    for text in typed:
        name, _, index = text.partition("=")
        if not name or not index or name in by_name:
            raise InputError(f"expected --position NAME=PLACE, as END=-1, each name once; got {text!r}")
        by_name[name] = place(index)
    return by_name


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

    Positions stand in the order of the prompts, on average, however their names were given.
    """
    columns = {str(name): prompts[name].tolist() for name in prompts}
    pairs = Pairs.from_columns(model, columns, drop=drop, as_typed=as_typed, positions=positions, file=source)
    order = sorted(pairs.positions, key=lambda name: float(pairs.positions[name].double().mean()))
    return replace(pairs, positions={name: pairs.positions[name] for name in order})


def _pairs_table(
    model: Model, prompts: pd.DataFrame, pairs: Pairs, values: Mapping[str, Sequence[float]]
) -> pd.DataFrame:
    table = prompts.iloc[list(pairs.kept)].reset_index(drop=True)
    table.insert(0, "row", [row + 1 for row in pairs.kept])
    for column, ids in (("answer_token", pairs.right), ("wrong_token", pairs.wrong)):
        assert ids is not None
        table[column] = _labels(answers_in(model), ids.tolist())
    return table.assign(**values)


def _prompt_tokens(model: Model, pairs: Pairs) -> list[PromptTokens]:
    tokenizer = model.tokenizer if pairs.source is None else answers_in(model)
    batch = pairs.target or pairs.source
    shared_tokenizer = answers_in(model) if pairs.target is not None else model.tokenizer
    tokens = []
    for row, length in enumerate(pairs.clean.lengths.tolist()):
        clean, corrupt = (each.ids[row, :length].tolist() for each in (pairs.clean, pairs.corrupt))
        changed = [a != b for a, b in zip(clean, corrupt, strict=True)]
        shared = [] if batch is None else batch.ids[row, : int(batch.lengths[row])].tolist()
        prompts = _labels(tokenizer, clean), _labels(tokenizer, corrupt)
        tokens.append(PromptTokens(*prompts, changed, _labels(shared_tokenizer, shared)))
    return tokens


def _labels(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    assert tokenizer is not None
    return tokenizer.labels(ids)
