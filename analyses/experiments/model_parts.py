"""How much do attention, feed-forward and embedding cost, hold and write? How far away does attention look?"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from math import isnan
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats

from analyses.experiments.experiment import Outcome, bounded, tokenizer_of, with_interval
from analyses.experiments.swaps import shares_of
from analyses.reading.windows import Reading
from analyses.scoring.collectors import refuse_unread
from analyses.wording.formats import number
from interp import AnnotatedText, Model, StackConfig, TokenBatch, Transformer, run
from interp.config import Gated, NoMLP
from interp.patterns import Totals, positional
from interp.statistics import estimate
from interp.tap import UNTAPPED
from interp.transformer import Block, with_parts
from interp.visibility import Visibility
from models.stories import stories

MIXING, PROJECTIONS, FEED_FORWARD = "attention: mixing", "attention: projections", "feed-forward"
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
_REPEATS = 7  # the fastest counts, because other work on the machine only slows it
_LONGEST = 0.3  # seconds per repeat; once exceeded, no longer text is tried
_FITTED = 4  # the longest lengths, to fit the exponent: short texts cost little more than a call
PARTS = EMBEDDING, ATTENTION, MLP = "embedding", "attention", "feed-forward"
PARAMETERS, ARITHMETIC, WRITING = "parameters", "multiply-adds", "writing into the stream"
_TOKENS = 64  # text length for counting arithmetic
_STORIES, _READ_STORIES = 40, 60  # for writing, and for distances
LAYER = -1  # the `head` of rows with a layer's mean


def measure_cost(
    model: Model, lengths: tuple[int, ...] = LENGTHS, *, repeats: int = _REPEATS, seed: int = 0
) -> Outcome:
    """Seconds and floating-point operations of one block's parts, by length, on random input."""
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
    for _ in range(repeats - 1):  # all lengths in turn, so a busy moment hits not just one
        seconds = {key: min(seconds[key], _seconds(work, model.device)) for key, work in works.items()}
    rows = [(*key, best, flops(config, *key)) for key, best in seconds.items()]
    table = pd.DataFrame(rows, columns=["part", "tokens", "seconds", "flops"])
    groups = table.groupby("part")
    fits = {part: exponent(rows["tokens"].to_numpy(), rows["seconds"].to_numpy()) for part, rows in groups}
    table[["exponent", "exponent_error"]] = [fits[part] for part in table["part"]]
    return Outcome(table)


def flops(config: StackConfig, part: str, tokens: int) -> int:
    """Floating-point operations of matrix products (a multiply-add is two) for one text in one block.

    Mixing: per head, each visible pair of positions costs d_head multiply-adds for its score and as many for its value.
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
    batch = TokenBatch.from_ids(torch.zeros(1, tokens, dtype=torch.long, device=x.device))
    visibility = Visibility.from_batch(batch, causal=config.causal)
    q = torch.randn(1, tokens, config.n_heads, config.d_head, generator=generator).to(x)
    k, v = torch.randn(2, 1, tokens, config.kv_heads, config.d_head, generator=generator).to(x)
    z = q.flatten(-2)
    parts: dict[str, Callable[[], object]] = {
        MIXING: lambda: block.attn.mix(q, k, v, visibility, UNTAPPED),
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


def exponent(tokens: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Slope of log seconds over log tokens for the longest texts, and its standard error; NaN below three lengths."""
    tokens, seconds = tokens[-_FITTED:], seconds[-_FITTED:]
    if len(tokens) < 3:
        return float("nan"), float("nan")
    fit: Any = stats.linregress(np.log(tokens), np.log(seconds))
    return float(fit.slope), float(fit.stderr)


def cost_sentence(outcome: Outcome) -> str:
    """Each part's seconds at the longest text, and its exponent."""
    table = outcome.table
    longest = table.loc[table["tokens"] == table["tokens"].max()].to_dict("records")
    parts = []
    for row in longest:
        growth = f"power {row['exponent']:.2f} ± {row['exponent_error']:.2f}"
        growth = "too few lengths for a power" if isnan(row["exponent"]) else growth
        parts.append(f"{row['seconds'] * 1000:.1f} ms on {row['part'].replace(': ', '’s ')} ({growth})")
    length = number(longest[0]["tokens"])
    return f"At {length} tokens one block spends {', '.join(parts)}. Powers of length ± standard error; 2 is quadratic."


def measure_shares(model: Model, *, seed: int = 0) -> Outcome:
    """Each part's share of three quantities; a norm or bias counts with the part after it."""
    tokenizer_of(model, unfinished=False)
    model = with_parts(model, "counting each part's weights")
    tokens = min(_TOKENS, model.config.n_ctx)
    whole = {PARAMETERS: _parameters(model), ARITHMETIC: _arithmetic(model, tokens)}
    rows = [
        {"quantity": quantity, "part": part, "value": values[part], "share": values[part] / sum(values.values())}
        for quantity, values in whole.items()
        for part in PARTS
    ]
    left_out: Counter[str] = Counter()
    written, counts = _writing(model, left_out, seed)
    share = shares_of(written.T, written.sum(1), seed)
    writing = {"quantity": WRITING, "part": PARTS, "value": written.sum(0) / counts.sum(), **bounded(share)}
    table = pd.concat([pd.DataFrame(rows), pd.DataFrame(writing)], ignore_index=True)
    return Outcome(table.assign(tokens=tokens, n=len(written)), {"stories": len(written)}, left_out)


def _parameters(model: Transformer) -> dict[str, int]:
    counts: dict[str, int] = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():  # a tied output layer is listed once
        modules = {*name.split(".")}
        part = ATTENTION if modules & {"attn", "norm_attn"} else MLP if modules & {"mlp", "norm_mlp"} else EMBEDDING
        counts[part] += parameter.numel()
    return counts


def _arithmetic(model: Model, tokens: int) -> dict[str, int]:
    config = model.config.last
    output = 0 if model.config.output == "none" else tokens * config.d_model * config.d_vocab
    costs = {part: config.n_layers * flops(config, part, tokens) // 2 for part in (MIXING, PROJECTIONS, FEED_FORWARD)}
    return {EMBEDDING: output, ATTENTION: costs[MIXING] + costs[PROJECTIONS], MLP: costs[FEED_FORWARD]}


def _writing(model: Model, left_out: Counter[str], seed: int) -> tuple[np.ndarray, np.ndarray]:
    tokenizer = tokenizer_of(model, unfinished=False)
    (stack,) = model.config.stacks
    sites = [f"{stack}.embed", *(site for site in model.sites if site.endswith((".attn_out", ".mlp_out")))]
    written, counts, unknown = [], [], 0
    for text in stories(_STORIES, seed + 3):
        ids = [*tokenizer.prefix, *tokenizer.pieces(text.text).ids]
        if len(ids) > model.config.n_ctx:
            left_out["texts longer than the context, cut there"] += 1
            ids = ids[: model.config.n_ctx]
        unknown += sum(id == tokenizer.unknown_id for id in ids)
        out = run(model, TokenBatch.from_rows([ids]).to(model.device), capture=sites)
        squares = dict.fromkeys(PARTS, 0.0)
        for site, value in out.activations.items():
            part = EMBEDDING if site.endswith("embed") else ATTENTION if site.endswith("attn_out") else MLP
            squares[part] += float(value[0, len(tokenizer.prefix) :].double().square().sum())
        written.append([squares[part] for part in PARTS])
        counts.append(len(ids) - len(tokenizer.prefix))
    refuse_unread({"tokens": sum(counts), "unknown tokens": unknown}, "the generated stories")
    return np.array(written), np.array(counts)


def measure_distance(model: Model, corpus: Iterable[AnnotatedText] | None = None, *, seed: int = 0) -> Outcome:
    """Mean attention distance of every head, in tokens; `head` -1 is the mean of its layer."""
    tokenizer_of(model, unfinished=False)
    layers, heads = model.config.n_layers, model.config.n_heads
    totals = Totals.empty(layers * heads + 1, 1)
    reading = Reading(model, list(stories(_READ_STORIES, seed + 2)) if corpus is None else corpus)
    column = positional.SPREAD.index("distance")
    for batch in reading:
        pattern = torch.cat([batch.pattern, batch.rows.uniform], 1)  # uniform attention as one more head
        sums = positional.Questions(batch.rows, {}).read(pattern)["kept"]
        totals.add(batch.groups, sums.scores[..., column, None], sums.counts[..., column, None])
    refuse_unread(reading.counts, "the generated stories" if corpus is None else "the corpus")
    scores, rows = totals.scores[..., 0].numpy(), totals.weights[..., 0].numpy()
    by_layer = [sums[:, :-1].reshape(-1, layers, heads).sum(-1) for sums in (scores, rows)]
    columns = (np.hstack([sums, layer]) for sums, layer in zip((scores[:, :-1], rows[:, :-1]), by_layer, strict=True))
    result = estimate(*columns, seed=seed)
    ends = estimate(*(sums[:, [layer]] for layer in (-1, 0) for sums in by_layer), seed=seed) if layers > 1 else None
    layer, head = np.unravel_index(np.arange(layers * heads), (layers, heads))
    table = {
        "layer": [*layer, *range(layers)],
        "head": [*head, *[LAYER] * layers],
        "distance": result.value,
        "uniform": scores[:, -1].sum() / rows[:, -1].sum(),
        "ci_low": result.low,
        "ci_high": result.high,
        "n": int(rows[:, -1].sum()),
    }
    return Outcome(
        pd.DataFrame(table),
        used={"stories" if corpus is None else "corpus": len(reading.documents)},
        left_out={name: count for name, count in reading.counts.items() if "left out" in name},
        contrast=ends and {"gain": float(ends.gain[0]), "ci_low": float(ends.low[0]), "ci_high": float(ends.high[0])},
    )


def distance_sentence(outcome: Outcome) -> str:
    """The first and the last layer's mean distance, and the difference."""
    layers = outcome.table.loc[outcome.table["head"] == LAYER].sort_values("layer").to_dict("records")
    first, last = layers[0], layers[-1]
    text = f"Attention looks {with_interval(first, 'distance')} tokens away in layer 0"
    if outcome.contrast:
        value, low, high = outcome.contrast.values()
        way = "farther by" if low > 0 else "nearer by" if high < 0 else "no clear difference:"
        bounds = (-value, -high, -low) if high < 0 else (value, low, high)
        difference = with_interval(dict(zip(outcome.contrast, bounds, strict=True)), "gain")
        text += f" and {with_interval(last, 'distance')} in layer {last['layer']}: {way} {difference}"
    texts = sum(outcome.used.values())
    scope = f"{number(last['n'])} tokens, {texts} texts"
    return f"{text}. Uniform attention would look {last['uniform']:.2f} tokens away ({scope})."
