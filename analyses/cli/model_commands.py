"""Commands around models themselves: train, generate, models."""
# ruff: noqa: PLC0415

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from textwrap import fill
from typing import TYPE_CHECKING, Any

import typer

from analyses.cli.command_frame import INTERRUPTED, as_json, end, folded, opened, tell, typed
from analyses.cli.options import COLUMNS

if TYPE_CHECKING:
    from models import catalogue


def train(recipe, *, out, resume, changes, device, cache, measures, parallel, quiet, json) -> None:
    """Trains a model by a recipe."""
    command = typed()
    from analyses.over_training import train as training

    try:
        training.train(
            recipe,
            out,
            changes or (),
            resume=resume,
            device=device,
            cache=cache,
            measured=measures,
            parallel=None if parallel is None else parallel.value,
            command=command,
            told=training.JSON if json else training.NOTHING if quiet else training.LINES,
        )
    except KeyboardInterrupt:
        end(training.interrupted(out, command), INTERRUPTED)
    if not training.leads():
        return
    if json:
        typer.echo(as_json({"out": str(out)}, indent=None))
    elif not quiet:
        typer.echo(
            folded(
                f"wrote {out}: the model, metrics.jsonl, run.json and recipe.toml",
                f"see what its heads do with interp report --model {shlex.quote(str(out))}",
            )
        )


def generate(
    prompt, *, model, tokens, temperature, top_k, top_p, repetition_penalty, stop, seed, device, dtype, quiet, json
) -> None:
    """Continues a text, shown while it is written."""
    from interp import InputError, stream
    from interp import generate as continue_text

    cut = {"--top-k": top_k, "--top-p": top_p}
    if temperature == 0 and (given := [name for name, value in cut.items() if value is not None]):
        raise InputError(f"{' and '.join(given)} cut what is drawn from, and --temperature 0 draws none: raise it")
    loaded = opened(model, device, dtype)
    if loaded.tokenizer is None:
        raise InputError(f"{model} has no tokenizer, so it cannot read a prompt: give its directory a tokenizer.json")
    how: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    how |= {"repetition_penalty": repetition_penalty, "stop": stop or None}
    if loaded.target_tokenizer is None:
        ids = continue_text(loaded, prompt, tokens, **how).ids[0].tolist()
        tell(lambda: [str(ids)], lambda: {"prompt": prompt, "ids": ids}, quiet=quiet, json=json)
        return
    pieces = (piece for (piece,) in stream(loaded, prompt, tokens, **how))
    if quiet or json:
        written = "".join(pieces)
        tell(list, lambda: {"prompt": prompt, "written": written}, quiet=quiet, json=json)
        return
    first = next(pieces)
    typer.echo((prompt if len(loaded.config.stacks) == 1 else "") + first, nl=False)
    for piece in pieces:
        typer.echo(piece, nl=False)
    typer.echo()


def models(*, quiet, json) -> None:
    """Lists what can be loaded."""
    from models import catalogue

    families, shipped = catalogue.families(), [*catalogue.shipped()]
    cached = [*catalogue.local_models(catalogue.cached())]
    parts = {name: None if family is None else asdict(family) for name, family in families.items()}
    here = {"shipped": [*map(asdict, shipped)], "cached": [*map(asdict, cached)]}
    tell(lambda: listing(families, shipped, cached), lambda: {"families": parts, **here}, quiet=quiet, json=json)


def listing(
    families: "Mapping[str, catalogue.Parts | None]",
    shipped: "Sequence[catalogue.LocalModel]",
    cached: "Sequence[catalogue.LocalModel]",
) -> Iterator[str]:
    """Families with their parts, and the models on this machine with their sizes, line by line."""
    yield "Families (a directory in Hugging Face's format, or a name on its hub):"
    for name, parts in families.items():
        own = ["any: our own format, for models that no family can express"]
        yield from _entry(name, *(own if parts is None else astuple(parts)))
    for title, models in (("Shipped:", shipped), ("In the hub's cache:", cached)):
        yield from ("", title if models else f"{title} nothing; --model ORG/NAME downloads a model once")
        for each in models:
            size = f"{_size(each.n_bytes)}B on disk"
            if each.parts is None:
                yield from _entry(each.name, size, f"cannot be loaded: {each.summary}")
            else:
                about = each.summary, each.parts.stacks, each.parts.attention, each.parts.positions
                yield from _entry(each.name, each.family, f"{_size(each.n_parameters)} parameters", size, *about)
    yield from ("", "Other architectures: --model lens:DIRECTORY_OR_NAME, what TransformerLens wraps")


def _size(number: int) -> str:
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:g} "


def _entry(name: str, *facts: str) -> Iterator[str]:
    """A name, and below it what is said of it."""
    indent = " " * 4
    yield f"  {name}"
    yield fill(" · ".join(facts), COLUMNS, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
