"""Options that several commands have, and what can be typed for them."""

from collections.abc import Callable
from enum import StrEnum
from glob import escape, glob
from pathlib import Path
from typing import Annotated, Any

import typer

# What can be typed for an option: each value is its name in small letters.
Metric = StrEnum("Metric", "LOGIT_DIFFERENCE LOG_PROBABILITY PROBABILITY RANK KL_DIVERGENCE LOSS")
Stack = StrEnum("Stack", "ENCODER DECODER")
Attention = StrEnum("Attention", "SELF CROSS")
Directions = StrEnum("Directions", "DENOISE NOISE BOTH")
Dtype = StrEnum("Dtype", "FLOAT32 FLOAT64 BFLOAT16 INT8")


def path(typed: str | Path) -> Path:
    """A file's or a directory's name; an empty one, which an unset variable of the shell leaves, is no name.

    It would mean the directory that one is in.
    """
    if not str(typed):
        raise typer.BadParameter("expected the name of a file or directory, got '' ('.' is this directory)")
    return Path(typed)


def out_option(default: str) -> Any:
    """What --out takes; without it a directory is called `default`, numbered where that is taken."""
    text = "The output directory, whose earlier run is replaced. Without it none is: where that is taken, -2, -3, ..."
    return Annotated[Path | None, typer.Option(help=text, parser=path, show_default=default)]


def completing(*names: str) -> Callable[[str], list[str]]:
    """What a shell completes: these names, and what lies here; a shell offers its files only where it is told none."""

    def complete(incomplete: str) -> list[str]:
        here = sorted(glob(f"{escape(incomplete)}*"))
        return [*(name for name in names if name.startswith(incomplete)), *here]

    return complete


class Parallel(StrEnum):
    """How processes share a training."""

    DDP = "ddp"
    FSDP = "fsdp"


Model = Annotated[
    str,
    typer.Option(
        help="A model directory, `default`, `minilm`, or ORG/NAME on the hub; `lens:` before either of these has "
        "TransformerLens run it.",
        autocompletion=completing("default", "minilm"),
    ),
]
Corpora = Annotated[
    list[str] | None,
    typer.Option(
        "--corpus",
        help="A file or directory of annotated text, KIND:PATH (`text:PATH` is plain text by paragraphs, `lines:PATH` "
        "by lines), or `stories:COUNT` or `tales:COUNT`; may be repeated.",
        show_default="`tales:100`, generated",
    ),
]
HeldOut = Annotated[
    list[str] | None,
    typer.Option(
        "--held-out",
        help="Annotated text to test on; may be repeated.",
        show_default="a quarter of the corpus's documents",
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Of everything random.", metavar="INTEGER")]
Device = Annotated[
    str,
    typer.Option(
        help="Where the model runs: `cpu`, `cuda`, `cuda:1`, `mps`.",
        autocompletion=lambda incomplete: [each for each in ("cpu", "cuda", "mps") if each.startswith(incomplete)],
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but what is wrong.")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that interp did not write.")]
Json = Annotated[bool, typer.Option("--json", help="Say what was found and written as JSON, for another program.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Say how it goes and what was written as JSON, an object a line.")
]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Number format of the weights; int8 computes in float32.")]
Pairs = Annotated[
    int | None,
    typer.Option(min=2, max=10_000, help="Minimal pairs of each causal test.", show_default="200, and 40 for copying"),
]
Labels = Annotated[
    bool,
    typer.Option("--labels/--no-labels", help="Label heads: chosen on one half of the text, reported on the other."),
]
Exact = Annotated[
    bool,
    typer.Option("--exact", help="Measure every effect of hiding keys, not only those that can change a label."),
]
Probes = Annotated[bool, typer.Option("--probes/--no-probes", help="Probe every layer for tags, relations, reference.")]
Experiments = Annotated[
    bool, typer.Option("--experiments/--no-experiments", help="Run the small experiments of the source articles.")
]
Measures = Annotated[
    list[Path] | None,
    typer.Option(
        help="A Python file of your own that makes measures or behaviours, measured beside ours; it is run. May be "
        "repeated.",
        parser=path,
        show_default=False,
    ),
]
Texts = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        help="A passage of your own, in which one can point at tokens to see where they look; may be repeated.",
        show_default="beginnings of the texts that were read",
    ),
]
Training = Annotated[
    Path | None,
    typer.Option(
        help="The run that trained the model, by the directory that `interp train` wrote: cards then say when a head "
        "formed.",
        parser=path,
        show_default="what stands with the model",
    ),
]
OverTraining = Annotated[list[Path] | None, typer.Option(parser=path, hidden=True)]  # `interp over-training` since
