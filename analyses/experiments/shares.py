"""Attention is a third: where do parameters, arithmetic and writing into the stream sit?

Among embedding (with the output layer), attention, and feed-forward. Norms and biases that belong to none of them are
counted with what they stand before: a block's norms with attention or feed-forward, the final norm with the output.
"""

from collections import Counter

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analyses.experiments.cost import FEED_FORWARD, MIXING, PROJECTIONS, flops
from analyses.experiments.experiment import Experiment, Outcome, bounded, panelled, rounded, said
from analyses.experiments.prompts import tokenizer_of
from analyses.experiments.swaps import shares_of
from analyses.figures.style import GREY, INK, SOFT, begin, legend, styled
from analyses.reading.collectors import refuse_unread
from interp import Model, TokenBatch, Transformer, run
from interp.transformer import with_parts
from models.stories import stories

PARTS = EMBEDDING, ATTENTION, MLP = "embedding", "attention", "feed-forward"
PARAMETERS, ARITHMETIC, WRITING = "parameters", "multiply-adds", "writing into the stream"
_TOKENS = 64  # length at which arithmetic is counted
_STORIES = 40


def measure(model: Model, *, tokens: int = _TOKENS, seed: int = 0) -> Outcome:
    """Each part's share of three quantities; the shares of a quantity add up to 1.

    Columns: quantity, part, value, share, ci_low, ci_high (over texts; of the writing alone), tokens (at which
    multiply-adds are counted), n (texts). Writing is the mean square of what is added to the stream, summed over layers
    and dimensions, at every token but special ones.

    Raises:
        InputError: no tokenizer, or one that knows hardly a word of the stories.
    """
    tokenizer_of(model, unfinished=False)
    model = with_parts(model, "counting each part's weights")
    tokens = min(tokens, model.config.n_ctx)
    counted = {PARAMETERS: _parameters(model), ARITHMETIC: _arithmetic(model, tokens)}
    rows = []
    for quantity, values in counted.items():
        whole = sum(values.values())
        rows += [
            {"quantity": quantity, "part": part, "value": values[part], "share": values[part] / whole} for part in PARTS
        ]
    left_out: Counter[str] = Counter()
    written, counts = _writing(model, left_out, seed)
    found = shares_of(written.T, written.sum(1), seed)
    writing = {"quantity": WRITING, "part": PARTS, "value": written.sum(0) / counts.sum(), **bounded(found)}
    table = pd.concat([pd.DataFrame(rows), pd.DataFrame(writing)], ignore_index=True)
    return Outcome(table.assign(tokens=tokens, n=len(written)), {"stories": len(written)}, left_out)


def _parameters(model: Transformer) -> dict[str, int]:
    found: dict[str, int] = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():  # a tied output layer comes once
        place = name.split(".")
        of_attention = "attn" in place or "norm_attn" in place
        of_mlp = "mlp" in place or "norm_mlp" in place
        found[ATTENTION if of_attention else MLP if of_mlp else EMBEDDING] += parameter.numel()
    return found


def _arithmetic(model: Model, tokens: int) -> dict[str, int]:
    config = model.config.last
    output = 0 if model.config.output == "none" else tokens * config.d_model * config.d_vocab
    per_block = {part: flops(config, part, tokens) // 2 for part in (MIXING, PROJECTIONS, FEED_FORWARD)}
    attention = config.n_layers * (per_block[MIXING] + per_block[PROJECTIONS])
    return {EMBEDDING: output, ATTENTION: attention, MLP: config.n_layers * per_block[FEED_FORWARD]}


def _writing(model: Model, left_out: Counter[str], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sum of squares that each part writes, text x part, and the tokens of each text."""
    tokenizer = tokenizer_of(model, unfinished=False)
    (stack,) = model.config.stacks
    written = [site for site in model.sites if site.endswith((".attn_out", ".mlp_out"))]
    found, counts, unknown = [], [], 0
    for text in stories(_STORIES, seed + 3):
        ids = [*tokenizer.prefix, *tokenizer.pieces(text.text).ids]
        if len(ids) > model.config.n_ctx:
            left_out["texts longer than the context, cut there"] += 1
            ids = ids[: model.config.n_ctx]
        unknown += sum(id == tokenizer.unknown_id for id in ids)
        batch = TokenBatch.from_rows([ids]).to(model.device)
        out = run(model, batch, capture=[f"{stack}.embed", *written])
        own = slice(len(tokenizer.prefix), None)
        squares = dict.fromkeys(PARTS, 0.0)
        for site, value in out.activations.items():
            part = EMBEDDING if site.endswith("embed") else ATTENTION if site.endswith("attn_out") else MLP
            squares[part] += float(value[0, own].double().square().sum())
        found.append([squares[part] for part in PARTS])
        counts.append(len(ids) - len(tokenizer.prefix))
    refuse_unread({"tokens": sum(counts), "unknown tokens": unknown}, "the generated stories")
    return np.array(found), np.array(counts)


def sentence(found: Outcome) -> str:
    """Attention's share of each quantity."""
    own = found.table.loc[found.table["part"] == ATTENTION]
    rows = {row["quantity"]: row for row in own.to_dict("records")}
    writing = rows[WRITING]
    return (
        f"Attention holds {rows[PARAMETERS]['share']:.2f} of the parameters, does "
        f"{rows[ARITHMETIC]['share']:.2f} of the multiply-adds at {writing['tokens']} tokens, and writes "
        f"{said(writing)} of the squared length that enters the stream ({writing['n']} texts)."
    )


@styled
def draw(table: pd.DataFrame, title: str) -> Figure:
    """One bar a quantity, divided among embedding, attention and feed-forward; shares from 0.04 on are written in."""
    figure = begin(title, 2.6)
    ax = figure.subplots()
    quantities = list(table["quantity"].unique())
    colours = dict(zip(table["part"].unique(), (GREY, SOFT, INK), strict=False))
    start = np.zeros(len(quantities))
    for part, colour in colours.items():
        own = table.loc[table["part"] == part].set_index("quantity")["share"]
        share = own.reindex(quantities).to_numpy(dtype=float)
        ax.barh(range(len(quantities)), share, left=start, color=colour, label=part, height=0.62)
        for y, (begins, wide) in enumerate(zip(start, share, strict=True)):
            if wide >= 0.04:
                ax.text(begins + wide / 2, y, f"{wide:.2f}", ha="center", va="center", color="white", fontsize=9)
        start = start + share
    ax.axvline(1 / 3, color="black", lw=1, ls=":", zorder=0, label="a third")
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    tokens = int(table["tokens"].iloc[0])
    ax.set_yticks(range(len(quantities)), [_with_length(quantity, tokens) for quantity in quantities])
    ax.set(xlabel="share")
    legend(figure, [ax])
    return figure


def _with_length(quantity: str, tokens: int) -> str:
    """A quantity as its axis names it, in two lines where it is long."""
    if quantity == "multiply-adds":
        return f"{quantity}\nat {tokens} tokens"
    return quantity.replace(" the ", "\nthe ")


def seen(table: pd.DataFrame) -> str:
    """How each bar is divided."""
    return panelled(
        (str(quantity), ", ".join(f"{row['part']} {rounded(row['share'])}" for row in own.to_dict("records")))
        for quantity, own in table.groupby("quantity", sort=False)
    )


SHARES = Experiment(
    name="shares",
    title="Is attention a third?",
    question="How much of the model is attention?",
    command="next-word",
    caption="Norms and biases count with the part that they stand before.",
    measure=measure,
    sentence=sentence,
    draw=draw,
    seen=seen,
)
