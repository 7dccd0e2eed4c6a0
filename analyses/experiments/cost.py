"""The quadratic cost: how do the seconds and the arithmetic of attention grow with the length of the text?

One block's parts on random input, on this machine: attention's mixing (scores, softmax, weighted values), its
projections, and the feed-forward.
"""

import time
from collections.abc import Callable
from math import isnan
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from scipy import stats

from analyses.experiments.experiment import Experiment, Outcome, panelled
from analyses.figures.style import GREY, INK, SOFT, legend, panels, styled
from analyses.numerals import number
from interp import Model, StackConfig, TokenBatch
from interp.config import Gated, NoMLP
from interp.sight import Sight
from interp.tap import UNTAPPED
from interp.transformer import Block, with_parts

MIXING, PROJECTIONS, FEED_FORWARD = "attention: mixing", "attention: projections", "feed-forward"
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
_REPEATS = 7  # of which the fastest counts: what else runs on the machine only slows it
_LONGEST = 0.3  # seconds of one repeat after which no longer text is tried
_FITTED = 4  # the longest lengths, on which the exponent is fitted: short texts cost what a call costs


def measure(model: Model, lengths: tuple[int, ...] = LENGTHS, *, repeats: int = _REPEATS, seed: int = 0) -> Outcome:
    """Seconds and floating-point operations of one block's parts by length.

    Columns: part, tokens, seconds (fastest of `repeats`), flops, exponent, exponent_error (of seconds as a power of
    the length, its standard error, fitted on the longest four).
    """
    generator = torch.Generator().manual_seed(seed)
    stack = with_parts(model, "timing a block").last
    block, config = stack.blocks[0], stack.config
    works: dict[tuple[str, int], Callable[[], object]] = {}
    seconds: dict[tuple[str, int], float] = {}
    for tokens in lengths:
        x = torch.randn(1, tokens, config.d_model, generator=generator).to(next(block.parameters()))
        for part, work in _parts(block, x, generator).items():
            _seconds(work, x.device)  # warms up
            works[part, tokens], seconds[part, tokens] = work, _seconds(work, x.device)
        if max(seconds.values()) > _LONGEST:
            break
    for _ in range(repeats - 1):  # all lengths in turn, so that a busy moment of the machine hits none of them alone
        seconds = {key: min(seconds[key], _seconds(work, model.device)) for key, work in works.items()}
    rows = [
        {"part": part, "tokens": tokens, "seconds": best, "flops": flops(config, part, tokens)}
        for (part, tokens), best in seconds.items()
    ]
    table = pd.DataFrame(rows)
    parts = {part: table.loc[table["part"] == part] for part, _ in works}
    fits = {part: exponent(rows["tokens"], rows["seconds"]) for part, rows in parts.items()}
    table["exponent"] = [fits[part][0] for part in table["part"]]
    return Outcome(table.assign(exponent_error=[fits[part][1] for part in table["part"]]))


def flops(config: StackConfig, part: str, tokens: int) -> int:
    """Floating-point operations of matrix products (a multiply-add is two) for one text in one block.

    Mixing: every visible pair of positions costs d_head multiply-adds for its score and as many for its value, a head.
    """
    if part == MIXING:
        pairs = tokens * (tokens + 1) // 2 if config.causal else tokens**2
        return 4 * pairs * config.n_heads * config.d_head
    if part == PROJECTIONS:
        return 2 * tokens * config.d_model * config.d_head * 2 * (config.n_heads + config.kv_heads)
    matrices = 0 if isinstance(config.mlp, NoMLP) else 3 if isinstance(config.mlp, Gated) else 2
    return 2 * tokens * matrices * config.d_model * config.d_mlp


def _parts(block: Block, x: torch.Tensor, generator: torch.Generator) -> dict[str, Callable[[], object]]:
    config, tokens = block.attn.config, x.shape[1]
    sight = Sight.of(
        TokenBatch.from_ids(torch.zeros(1, tokens, dtype=torch.long, device=x.device)), causal=config.causal
    )
    q = torch.randn(1, tokens, config.n_heads, config.d_head, generator=generator).to(x)
    k, v = torch.randn(2, 1, tokens, config.kv_heads, config.d_head, generator=generator).to(x)
    z = q.flatten(-2)
    parts: dict[str, Callable[[], object]] = {
        MIXING: lambda: block.attn.mix(q, k, v, sight, UNTAPPED),
        PROJECTIONS: lambda: (block.attn.qkv(x), block.attn.out(z)),
    }
    if block.mlp is not None:
        mlp = block.mlp
        parts[FEED_FORWARD] = lambda: mlp(x, UNTAPPED)
    return parts


@torch.no_grad()
def _seconds(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def exponent(tokens: pd.Series, seconds: pd.Series) -> tuple[float, float]:
    """Slope of log seconds over log tokens on the longest texts, and its standard error; NaN below three lengths."""
    tokens, seconds = tokens.iloc[-_FITTED:], seconds.iloc[-_FITTED:]
    if len(tokens) < 3:
        return float("nan"), float("nan")
    x, y = np.log(tokens), np.log(seconds)
    fit: Any = stats.linregress(x, y)
    return float(fit.slope), float(fit.stderr)


def sentence(found: Outcome) -> str:
    """Each part's seconds at the longest text, and its exponent."""
    table = found.table
    longest = table.loc[table["tokens"] == table["tokens"].max()].to_dict("records")
    said = [
        f"{row['seconds'] * 1000:.1f} ms on {row['part'].replace(': ', '’s ')}, growing "
        f"{_growth(row['exponent'], row['exponent_error'])}"
        for row in longest
    ]
    length = number(longest[0]["tokens"])
    return f"At {length} tokens one block spends {'; '.join(said)} (standard errors; 2 is quadratic)."


def _growth(power: float, error: float) -> str:
    if isnan(power):
        return "by a power that so few lengths cannot tell"
    return f"as length to the power {power:.2f} ± {error:.2f}"


@styled
def draw(table: pd.DataFrame, title: str) -> Figure:
    """Seconds and operations of one block's parts against the length of the text, both axes logarithmic."""
    figure, axes = panels(title, 2, height=3.0, columns=2)
    looks = dict(zip(table["part"].unique(), zip((INK, SOFT, GREY), "osD", strict=True), strict=False))
    for part, (colour, marker) in looks.items():
        rows = table.loc[table["part"] == part].sort_values("tokens")
        slope, error = (float(rows[name].iloc[0]) for name in ("exponent", "exponent_error"))
        power = "too few lengths" if np.isnan(slope) else f"power {slope:.2f} ± {error:.2f}"
        axes[0].plot(rows["tokens"], 1000 * rows["seconds"], color=colour, marker=marker, ms=4, label=power)
        axes[1].plot(rows["tokens"], rows["flops"] / 1e6, color=colour, marker=marker, ms=4, label=part)
    for ax, label in zip(axes, ("milliseconds, measured here", "millions of operations, counted"), strict=True):
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: f"{tokens:g}"))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.set(xlabel="tokens", title=label)
    axes[0].legend(loc="upper left", frameon=False, fontsize=8)
    legend(figure, axes[1:])
    return figure


def seen(table: pd.DataFrame) -> str:
    """How each part's line rises in time and in operations."""
    told = []
    for part, own in table.groupby("part", sort=False):
        first, last = own.sort_values("tokens").iloc[[0, -1]].to_dict("records")
        times, operations = (last[name] / first[name] for name in ("seconds", "flops"))
        grown = f"at {last['tokens'] / first['tokens']:.0f} times as many tokens"
        told.append((str(part), f"{times:.0f} times the time and {operations:.0f} times the operations {grown}"))
    return panelled(told)


COST = Experiment(
    name="cost",
    title="The quadratic cost",
    question="How does attention's cost grow with the length of the text?",
    command="next-word",
    caption=(
        "Random input, one block, the fastest of several runs on this machine; the power is fitted on the four longest "
        "texts."
    ),
    measure=measure,
    sentence=sentence,
    draw=draw,
    seen=seen,
)
