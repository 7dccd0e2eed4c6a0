"""The `interp` command: which analysis, of which model, on which text, into which directory?

Only what parses options is imported here; a command brings in the rest when it runs, so that `--help` answers at once.
"""
# ruff: noqa: PLC0415

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from interp import Transformer

# the parent of all wrong options, which typer does not export
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])
_USAGE, _INTERRUPTED = 2, 130  # exit codes


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

app = typer.Typer(
    name="interp",
    help="What does each attention head of a transformer do, and how sure are we?",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _command(behaviours: Sequence[str] | None, default_out: str) -> "Callable[..., None]":
    """A command that measures and tests `behaviours` (None: all of them) and writes its directory."""

    def command(
        *,
        model: Model = "default",
        corpus: Corpora = None,
        out: Out = Path(default_out),
        seed: Seed = 0,
        device: Device = "cpu",
        dtype: DtypeOption = Dtype.FLOAT32,
        pairs: Pairs = 40,
        labels: Labels = True,
        probes: Probes = behaviours is None,
        experiments: Experiments = behaviours is None,
    ) -> None:
        with _one_line():
            from analyses import corpora, report

            with _progress() as progress:
                progress("loading the model", 0)
                loaded = _load(model, device, dtype)
                report.build(
                    loaded,
                    [corpora.read(spec) for spec in corpus or [corpora.GENERATED]],
                    out,
                    behaviours=behaviours,
                    seed=seed,
                    pairs=pairs,
                    labels=labels,
                    probes=probes,
                    experiments=experiments,
                    command=shlex.join(["interp", *sys.argv[1:]]),
                    name=_title(model),
                    progress=progress,
                )
        typer.echo(_wrote(out))

    return command


for _name, _behaviours, _help in (
    ("report", None, "Everything for one model: positional, part-of-speech and coreference heads, with a causal test."),
    ("position", ["position"], "Which heads look by position?"),
    ("part-of-speech", ["part-of-speech"], "Which heads follow grammar?"),
    ("coreference", ["coreference"], "Which heads follow reference?"),
):
    app.command(_name, help=_help)(_command(_behaviours, _name))


def _experiments(commands: Sequence[str] | None, default_out: str) -> "Callable[..., None]":
    """A command that runs the experiments of `commands` (None: all of them) and writes its directory."""

    def command(
        *,
        model: Model = "default",
        out: Out = Path(default_out),
        seed: Seed = 0,
        device: Device = "cpu",
        dtype: DtypeOption = Dtype.FLOAT32,
    ) -> None:
        with _one_line():
            from analyses.experiments import building

            with _progress() as progress:
                progress("loading the model", 0)
                building.build(
                    _load(model, device, dtype),
                    out,
                    commands,
                    seed=seed,
                    command=shlex.join(["interp", *sys.argv[1:]]),
                    name=_title(model),
                    progress=progress,
                )
        typer.echo(_wrote(out))

    return command


for _name, _commands, _help in (
    ("experiments", None, "The small experiments of the source articles, all of them."),
    ("word-sense", ["word-sense"], "Does a word's stream tell its senses apart, and akin words from others?"),
    ("next-word", ["next-word"], "Which words and heads decide what comes next, and what does it cost?"),
):
    app.command(_name, help=_help)(_experiments(_commands, _name))


@app.command()
def probes(
    *,
    model: Model = "default",
    corpus: Corpora = None,
    held_out: HeldOut = None,
    out: Out = Path("probes"),
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: DtypeOption = Dtype.FLOAT32,
) -> None:
    """From which layer can tags, relations and reference be read?"""
    with _one_line():
        from analyses import corpora
        from analyses.probes import building

        with _progress() as progress:
            progress("loading the model", 0)
            building.build(
                _load(model, device, dtype),
                [corpora.read(spec) for spec in corpus or [corpora.GENERATED]],
                out,
                held_out=[corpora.read(spec) for spec in held_out or ()],
                seed=seed,
                command=shlex.join(["interp", *sys.argv[1:]]),
                name=_title(model),
                progress=progress,
            )
    typer.echo(_wrote(out))


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue, or to read where the model has an encoder.")],
    *,
    model: Model = "default",
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens to add.")] = 100,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw among the fewest tokens that hold this probability.")
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: DtypeOption = Dtype.FLOAT32,
) -> None:
    """Continue a text; a model with an encoder reads it, and writes its own."""
    with _one_line():
        from interp import InputError
        from interp import generate as continue_text

        loaded = _load(model, device, dtype)
        if loaded.tokenizer is None:
            raise InputError(
                f"{model} has no tokenizer, so it cannot read a prompt: give its directory a tokenizer.json"
            )
        ids = continue_text(loaded, prompt, tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        written = loaded.target_tokenizer
        typer.echo(ids[0].tolist() if written is None else written.decode(ids[0].tolist()))


@app.command()
def patch(
    *,
    clean: Annotated[str | None, typer.Option(help="A prompt.")] = None,
    corrupt: Annotated[str | None, typer.Option(help="The same with a few other words, token for token.")] = None,
    answer: Annotated[
        str | None,
        typer.Option(help="What continues the clean prompt. A bare word gets a space before it, as shells strip it."),
    ] = None,
    wrong: Annotated[str | None, typer.Option(help="What continues the corrupted prompt, likewise.")] = None,
    target: Annotated[
        str | None,
        typer.Option(help="What the decoder has read so far, for both prompts, where an encoder reads them."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="What the encoder reads, where the prompts are what a decoder reads.")
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(help="A CSV file with columns clean, corrupt, answer, wrong instead, and maybe target or source."),
    ] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Leave out rows that do not align, and count them.")] = False,
    as_typed: Annotated[bool, typer.Option("--as-typed", help="Put no space before answers.")] = False,
    site: Annotated[
        str,
        typer.Option(
            help="resid_pre, resid_mid, resid_post, attn_out, mlp_out, z, q, k, v, pattern or scores; where there is "
            "cross-attention also resid_cross and cross_attn_out."
        ),
    ] = "z",
    stack: Annotated[
        Stack | None, typer.Option(help="Of a model with an encoder and a decoder.", show_default="decoder")
    ] = None,
    attention: Annotated[
        Attention, typer.Option(help="Whose z, q, k, v, pattern or scores: that to the own text, or to the source.")
    ] = Attention.SELF,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="Patch positions one by one; of patterns, query and key.")
    ] = False,
    direction: Annotated[
        Directions, typer.Option(help="denoise: clean into corrupted; noise: corrupted into clean.")
    ] = Directions.BOTH,
    metric: Annotated[list[Metric], typer.Option(help="May be repeated.")] = [Metric.LOGIT_DIFFERENCE],  # noqa: B006
    estimates: Annotated[
        bool,
        typer.Option(
            "--estimates",
            help="Set gradient estimates (attribution patching, QK fix, AtP*; for z also edges: EAP, EAP-IG) beside "
            "the exact effects, and say how they rank them. Edges take longest. Not for the metric rank.",
        ),
    ] = False,
    model: Model = "default",
    out: Out = Path("patch"),
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: DtypeOption = Dtype.FLOAT32,
) -> None:
    """Which part of the model carries the difference between two prompts?"""
    with _one_line():
        from analyses import patching

        typed = {"clean": clean, "corrupt": corrupt, "answer": answer, "wrong": wrong}
        prompts = patching.read_prompts({**typed, "target": target, "source": source}, pairs)
        with _progress() as progress:
            progress("loading the model", 0)
            loaded = _load(model, device, dtype)
            written = patching.build(
                loaded,
                prompts,
                out,
                site,
                by_position=by_position,
                directions=patching.DIRECTIONS if direction is Directions.BOTH else [direction.value],
                metrics=[each.value for each in metric],
                stack=None if stack is None else stack.value,
                attention=attention.value,
                estimates=estimates,
                drop=drop,
                as_typed=as_typed,
                source=pairs,
                seed=seed,
                command=shlex.join(["interp", *sys.argv[1:]]),
                name=_title(model),
                progress=progress,
            )
    for line in patching.agreement_lines(written.correlations):
        typer.echo(line)
    typer.echo(_wrote(out))


@app.command()
def compare(
    models: Annotated[
        list[str],
        typer.Argument(help="Two or more, each as for --model; the others are compared with the first."),
    ],
    *,
    corpus: Corpora = None,
    out: Out = Path("compare"),
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: DtypeOption = Dtype.FLOAT32,
) -> None:
    """Does one model have the heads that another has? The same measures side by side."""
    with _one_line():
        from analyses import comparing, corpora

        names = comparing.names(models)
        with _progress() as progress:
            progress("loading the models", 0)
            comparing.build(
                dict(zip(names, [_load(model, device, dtype) for model in models], strict=True)),
                [corpora.read(spec) for spec in corpus or [corpora.GENERATED]],
                out,
                seed=seed,
                command=shlex.join(["interp", *sys.argv[1:]]),
                progress=progress,
            )
    typer.echo(_wrote(out))


@app.command()
def models() -> None:
    """Which models can be loaded: families, what they are made of, and what is on this machine."""
    with _one_line():
        from analyses import listing

        for line in listing.lines():
            typer.echo(line)


def _wrote(out: Path) -> str:
    """How a command that leaves a page ends."""
    return f"wrote {out / 'report.html'}; beside it run.json, tables/ and figures/"


def _title(model: str) -> str:
    """How a report calls a model."""
    named = {"default": "the default model", "minilm": "MiniLM"}
    return named.get(model) or (Path(model).resolve().name if Path(model).exists() else model)


def _load(model: str, device: str, dtype: Dtype) -> "Transformer":
    import torch

    from models import load

    if dtype is Dtype.INT8:
        return load(model, device=device, quantize="int8")
    return load(model, dtype=getattr(torch, dtype.value), device=device)


@contextmanager
def _one_line() -> Iterator[None]:
    """What the user got wrong, and an interruption, end the command with one line and no traceback."""
    try:
        from interp import InputError

        try:
            yield
        except InputError as error:
            _end(str(error), _USAGE)
    except KeyboardInterrupt:
        _end("interrupted; nothing was written", _INTERRUPTED)


def _end(message: str, code: int) -> NoReturn:
    typer.echo(f"interp: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


@contextmanager
def _progress() -> "Iterator[Callable[[str, int], None]]":
    """A line on stderr that says what is being done and how many texts were read, and goes away at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[texts]}")
    console = Console(stderr=True)
    quiet = not console.is_terminal  # a log gets what was wrong, and nothing else
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("starting", total=None, texts="")

        def say(stage: str, texts: int) -> None:
            bar.update(task, description=stage, texts=f"{texts:,}" if texts else "")

        yield say


def main(arguments: Sequence[str] | None = None) -> None:
    """The console command: `arguments` are those of the command line by default."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # threads that spin while they wait take a busy machine's cores from the thread that they wait for: with one other
    # program running, a report took five times as long; read when torch is first imported
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        code = app(given or ["--help"], prog_name="interp", standalone_mode=False)
    except _UsageError as error:
        typer.echo(f"interp: {' '.join(error.format_message().split()).rstrip('.')}; see interp --help", err=True)
        code = _USAGE
    sys.exit(code)


def run_alone(behaviour: str) -> None:
    """What `python -m analyses.BEHAVIOUR` does: the command of that name, with the same options."""
    main([behaviour, *sys.argv[1:]])


if __name__ == "__main__":
    main()
