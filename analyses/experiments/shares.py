"""Attention is a third: where do parameters, arithmetic and writing into the stream sit?

Among embedding (with the output layer), attention, and feed-forward. Norms and biases that belong to none of them are
counted with what they stand before: a block's norms with attention or feed-forward, the final norm with the output.
"""

from collections import Counter

import numpy as np
import pandas as pd

from analyses.experiments.cost import FEED_FORWARD, MIXING, PROJECTIONS, flops
from analyses.experiments.prompts import finish, tokenizer_of, with_interval
from analyses.reading.collectors import refuse_unread
from interp import TokenBatch, Transformer, run
from interp.statistics import estimate
from models.stories import stories

NAME, COMMAND = "shares", "next-word"
TITLE = "Attention is a third"
QUESTION = "How much of the model is attention?"
CAPTION = "Norms and biases count with the part that they stand before."

PARTS = EMBEDDING, ATTENTION, MLP = "embedding", "attention", "feed-forward"
PARAMETERS, ARITHMETIC, WRITING = "parameters", "multiply-adds", "writing into the stream"
_TOKENS = 64  # length at which arithmetic is counted
_STORIES = 40


def measure(model: Transformer, *, tokens: int = _TOKENS, seed: int = 0) -> pd.DataFrame:
    """Each part's share of three quantities; the shares of a quantity add up to 1.

    Columns: quantity, part, value, share, ci_low, ci_high (over texts; of the writing alone), tokens (at which
    multiply-adds are counted), n (texts). Writing is the mean square of what is added to the stream, summed over layers
    and dimensions, at every token but special ones.

    Raises:
        InputError: no tokenizer, or one that knows hardly a word of the stories.
    """
    tokenizer_of(model, unfinished=False)
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
    found = estimate(written, np.repeat(written.sum(1)[:, None], 3, 1), *_nothing(written), seed=seed)
    means = written.sum(0) / counts.sum()
    for at, part in enumerate(PARTS):
        row = {"quantity": WRITING, "part": part, "value": means[at], "share": found.value[at]}
        rows.append(row | {"ci_low": found.low[at], "ci_high": found.high[at]})
    table = pd.DataFrame(rows).assign(tokens=tokens, n=len(written))
    return finish(table, left_out, {"stories": len(written)})


def _nothing(like: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros_like(like), np.ones_like(like)


def _parameters(model: Transformer) -> dict[str, int]:
    found: dict[str, int] = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():  # a tied output layer comes once
        place = name.split(".")
        of_attention = "attn" in place or "norm_attn" in place
        of_mlp = "mlp" in place or "norm_mlp" in place
        found[ATTENTION if of_attention else MLP if of_mlp else EMBEDDING] += parameter.numel()
    return found


def _arithmetic(model: Transformer, tokens: int) -> dict[str, int]:
    config = model.last.config
    output = 0 if model.output is None else tokens * config.d_model * config.d_vocab
    per_block = {part: flops(config, part, tokens) // 2 for part in (MIXING, PROJECTIONS, FEED_FORWARD)}
    attention = config.n_layers * (per_block[MIXING] + per_block[PROJECTIONS])
    return {EMBEDDING: output, ATTENTION: attention, MLP: config.n_layers * per_block[FEED_FORWARD]}


def _writing(model: Transformer, left_out: Counter[str], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sum of squares that each part writes, text x part, and the tokens of each text."""
    tokenizer = tokenizer_of(model, unfinished=False)
    (stack,) = model.config.stacks
    found, counts, unknown = [], [], 0
    for text in stories(_STORIES, seed + 3):
        ids = [*tokenizer.prefix, *tokenizer.pieces(text.text).ids]
        if len(ids) > model.config.n_ctx:
            left_out["texts longer than the context, cut there"] += 1
            ids = ids[: model.config.n_ctx]
        unknown += sum(id == tokenizer.unknown_id for id in ids)
        batch = TokenBatch.from_rows([ids]).to(model.device)
        out = run(model, batch, capture=[f"{stack}.embed", *_sites(model, stack)])
        own = slice(len(tokenizer.prefix), None)
        squares = dict.fromkeys(PARTS, 0.0)
        for site, value in out.activations.items():
            part = EMBEDDING if site.endswith("embed") else ATTENTION if site.endswith("attn_out") else MLP
            squares[part] += float(value[0, own].double().square().sum())
        found.append([squares[part] for part in PARTS])
        counts.append(len(ids) - len(tokenizer.prefix))
    refuse_unread({"tokens": sum(counts), "unknown tokens": unknown}, "the generated stories")
    return np.array(found), np.array(counts)


def _sites(model: Transformer, stack: str) -> list[str]:
    sites = [f"{stack}.{layer}.attn_out" for layer in range(model.config.n_layers)]
    return sites + [f"{stack}.{at}.mlp_out" for at, block in enumerate(model.last.blocks) if block.mlp is not None]


def sentence(table: pd.DataFrame) -> str:
    """Attention's share of each quantity."""
    rows = {row["quantity"]: row for row in table.loc[table["part"] == ATTENTION].to_dict("records")}
    writing = rows[WRITING]
    return (
        f"Attention holds {rows[PARAMETERS]['share']:.2f} of the parameters, does "
        f"{rows[ARITHMETIC]['share']:.2f} of the multiply-adds at {writing['tokens']} tokens, and writes "
        f"{with_interval(writing['share'], writing['ci_low'], writing['ci_high'])} of the squared length that enters "
        f"the stream ({writing['n']} texts)."
    )
