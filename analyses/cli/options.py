"""Options that several commands have, and what can be typed for them."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

N_PAIRS = 40  # of each causal test


class Metric(StrEnum):
    """What a patch is measured by."""

    LOGIT_DIFFERENCE = "logit_difference"
    LOG_PROBABILITY = "log_probability"
    PROBABILITY = "probability"
    RANK = "rank"
    KL_DIVERGENCE = "kl_divergence"


class Stack(StrEnum):
    """Which stack of a model is patched."""

    ENCODER = "encoder"
    DECODER = "decoder"


class Attention(StrEnum):
    """Which of a decoder's attentions is patched."""

    SELF = "self"
    CROSS = "cross"


class Directions(StrEnum):
    """Which way activations are put."""

    DENOISE = "denoise"
    NOISE = "noise"
    BOTH = "both"


class Parallel(StrEnum):
    """How processes share a training."""

    DDP = "ddp"
    FSDP = "fsdp"


class Dtype(StrEnum):
    """Number formats that a model can be loaded in."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


Model = Annotated[str, typer.Option(help="A model directory, `default`, `minilm`, or ORG/NAME on the hub.")]
Corpora = Annotated[
    list[str] | None,
    typer.Option(
        "--corpus",
        help="A file or directory of annotated text, or KIND:PATH; may be repeated.",
        show_default="generated stories",
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
Seed = Annotated[int, typer.Option(help="Of everything random.")]
Device = Annotated[str, typer.Option(help="Where the model runs: `cpu`, `cuda`, `cuda:1`, `mps`.")]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Number format of the weights; int8 computes in float32.")]
Pairs = Annotated[int, typer.Option(min=2, help="Minimal pairs of each causal test.")]
Labels = Annotated[
    bool,
    typer.Option("--labels/--no-labels", help="Label heads: chosen on one half of the text, reported on the other."),
]
Probes = Annotated[bool, typer.Option("--probes/--no-probes", help="Probe every layer for tags, relations, reference.")]
Experiments = Annotated[
    bool, typer.Option("--experiments/--no-experiments", help="Run the small experiments of the source articles.")
]
Out = Annotated[Path, typer.Option(help="The output directory.")]
OverTraining = Annotated[
    list[Path] | None,
    typer.Option(
        help="Instead of one model: how heads formed in a run, by the directory that `interp train` wrote; may be "
        "repeated, for runs side by side.",
        show_default=False,
    ),
]
