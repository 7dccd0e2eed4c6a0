"""The command that patches: which part of a model carries the difference between two prompts?"""
# ruff: noqa: PLC0415

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from analyses.cli.command_frame import Request, leaving
from analyses.cli.options import Attention, Directions, Metric, Stack, path


@leaving("patch")
def patch(
    request: Request,
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
        typer.Option(
            help="A CSV file with columns clean, corrupt, answer, wrong instead, maybe target, source, position:NAME.",
            parser=path,
        ),
    ] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Leave out rows that do not align, and count them.")] = False,
    as_typed: Annotated[
        bool, typer.Option("--as-typed", help="Put no space before answers, and read no braces.")
    ] = False,
    site: Annotated[
        str,
        typer.Option(
            help="resid_pre, resid_mid, resid_post, attn_out, mlp_out, mlp.pre, mlp.post, z, q, k, v, pattern, scores, "
            "embed, resid_final or logits; where there is cross-attention also resid_cross and cross_attn_out."
        ),
    ] = "z",
    stack: Annotated[
        Stack | None, typer.Option(help="Of a model with an encoder and a decoder.", show_default="decoder")
    ] = None,
    attention: Annotated[
        Attention, typer.Option(help="Whose z, q, k, v, pattern or scores: that to the own text, or to the source.")
    ] = Attention.SELF,
    by_position: Annotated[
        bool | None,
        typer.Option(
            "--by-position/--whole-prompts",
            help="Patch positions one by one; of patterns, query and key. Where some have names, these alone.",
            show_default="by position where positions have names",
        ),
    ] = None,
    position: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PLACE",
            help="Name a token of every prompt: END=-1, or VERB=was, a word that occurs once. {NAME:words} in a clean "
            "prompt and columns position:NAME of the file name tokens too. May be repeated.",
        ),
    ] = None,
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
) -> Sequence[str]:
    """Which part of the model carries the difference between two prompts?"""
    from analyses import patch as patching
    from analyses import report
    from interp import InputError

    if position and by_position is False:
        raise InputError("--position names what --by-position patches: leave it or --whole-prompts out")
    prompt = {"clean": clean, "corrupt": corrupt, "answer": answer, "wrong": wrong}
    prompts = patching.read_prompts({**prompt, "target": target, "source": source}, pairs)
    written = report.patch(
        request.load(),
        prompts,
        request.out,
        site,
        by_position=by_position,
        directions=patching.DIRECTIONS if direction is Directions.BOTH else [direction.value],
        metrics=[each.value for each in metric],
        stack=None if stack is None else stack.value,
        attention=attention.value,
        estimates=estimates,
        drop=drop,
        as_typed=as_typed,
        positions=patching.read_places(position or ()),
        source=pairs,
        **request.named,
    )
    answers = written.answers
    said = [] if answers is None else [answers.said]
    if answers is not None and answers.refused:
        said.append(f"no shares: {answers.unsaid}" if answers.unsaid else "So there are no shares.")
    return [*said, *patching.agreement_lines(written.correlations)]
