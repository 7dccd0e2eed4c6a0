"""Does a difference of means steer what the default model writes more than random directions of its length do?

    python -m benchmarks.steering [--figure docs/figures/steering.png]
    python -m benchmarks.steering --cost

The direction is the mean stream after layer 1 at words for women, minus that at words for men in the same texts.
We add it, times a strength, at every position while the model samples continuations of neutral beginnings; for
comparison, ten random directions of the same length. Prints one JSON line per strength and direction:

    strength      factor of the added direction
    direction     difference, or random 0-9
    logit         logit of " she" minus that of " he" after the beginnings in SAID, mean over them
    feminine      share of she, her, hers, herself among the third-person pronouns written
    n             number of these pronouns
    loss          nats per token of the continuations, read by the unsteered model

With --cost it prints what edits of `resid_post` cost: seconds per token without edits, and the median slowdown with an
edit in one layer, and in every layer, each against its own plain run (7.4 ms per token, 1.006 and 1.023 times).
"""

import re
import statistics
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.ticker
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from analyses.figures.style import INK, begin, styled
from benchmarks.console import arguments, show
from interp import Model, add, edited, generate, run, token_losses
from models import load

SITE = "decoder.1.resid_post"
STRENGTHS = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
N_RANDOM = 10
PEOPLE = [
    *(("woman", "man"), ("girl", "boy"), ("lady", "gentleman"), ("queen", "king"), ("mother", "father")),
    *(("sister", "brother"), ("wife", "husband"), ("daughter", "son"), ("aunt", "uncle"), ("widow", "soldier")),
]
FRAMES = ["The {}", "When the {}", "He knew that the {}", "She saw the {}"]
SAID = [
    f"The {who} {did}"
    for who, did in product(
        ("doctor", "child", "stranger", "friend", "servant", "teacher", "neighbour", "visitor"),
        ("was tired, because", "smiled and said that", "went away, and"),
    )
]
PRONOUNS = re.compile(r"\b(he|him|his|himself|she|her|hers|herself)\b", re.IGNORECASE)
N_TOKENS = 24


def ends(model: Model, texts: list[str]) -> Float[Tensor, "text d_model"]:
    """The stream at the end of each text."""
    out = run(model, texts, until=SITE)
    return out[SITE][torch.arange(len(texts)), out.tokens.columns(-1)[:, 0]]


def direction(model: Model) -> Float[Tensor, " d_model"]:
    """The mean over texts that end with a word for a woman, minus that over the same texts with one for a man."""
    women, men = ([frame.format(pair[number]) for frame in FRAMES for pair in PEOPLE] for number in (0, 1))
    return (ends(model, women) - ends(model, men)).mean(0)


def measured(model: Model, vector: Float[Tensor, " d_model"]) -> dict[str, float | int]:
    """Measures of what the model writes with `vector` added at every position."""
    steered = edited(model, {SITE: add(vector)})
    out = run(steered, SAID)
    tokenizer = model.tokenizer
    assert tokenizer is not None
    last = out.logits[torch.arange(len(SAID)), out.tokens.columns(-1)[:, 0]]
    result = generate(steered, SAID, N_TOKENS, temperature=0.8, seed=0)
    pronouns = [word.lower() for text in result.continuations for word in PRONOUNS.findall(text)]
    losses = torch.cat([each[-N_TOKENS:] for each in token_losses(model, result.texts)])
    return {
        "logit": float((last[:, tokenizer.id(" she")] - last[:, tokenizer.id(" he")]).mean()),
        "feminine": sum(word.startswith(("sh", "her")) for word in pronouns) / max(1, len(pronouns)),
        "n": len(pronouns),
        "loss": float(losses.mean()),
    }


def rows(model: Model) -> Iterator[dict[str, Any]]:
    """One row per strength and direction."""
    vector, generator = direction(model), torch.Generator().manual_seed(0)
    noise = torch.randn(N_RANDOM, len(vector), generator=generator)
    others = noise / noise.norm(dim=-1, keepdim=True) * vector.norm()
    for strength in STRENGTHS:
        yield {"strength": strength, "direction": "difference", **measured(model, strength * vector)}
        for number, rival in enumerate(others if strength else []):
            yield {"strength": strength, "direction": f"random {number}", **measured(model, strength * rival)}


@styled
def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw the effect, and the loss, against the strength."""
    figure = begin("Which pronouns does the model write, where a direction is added to what it reads?", 3.2)
    axes = figure.subplots(1, 3)
    panels = {
        "logit": "logit of she less that of he,\nafter the beginnings",
        "feminine": "share of she and her in\nthe pronouns written",
        "loss": "nats a token of what is written,\nas the unsteered model reads it",
    }
    for ax, (column, title) in zip(axes, panels.items(), strict=True):
        lines = table.pivot(index="strength", columns="direction", values=column)
        mean, others = lines["difference"], lines.drop(columns="difference")
        others = others.apply(lambda line, mean=mean: line.fillna(mean))  # strength 0 is one row
        first, *_ = ax.plot(others, color="0.75", lw=0.8, zorder=1)
        first.set_label("random, as long")
        ax.plot(mean, "o-", color=INK, lw=2, ms=4, zorder=3, label="difference of means")
        ax.set(title=title, xlabel="strength")
        ax.xaxis.set_major_locator(matplotlib.ticker.MultipleLocator(1))
    axes[0].legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=150)


def cost(model: Model) -> dict[str, float]:
    """What edits of the stream cost during generation, on one thread."""
    torch.set_num_threads(1)
    vector, layers = torch.randn(model.config.d_model), {"one layer": SITE, "every layer": "decoder.*.resid_post"}
    seconds: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(21):
        for name, site in layers.items():
            plain, with_edit = _seconds(model, {}), _seconds(model, {site: add(vector)})
            seconds.append(plain)
            ratios[name].append(with_edit / plain)
    medians = {name: statistics.median(each) for name, each in ratios.items()}
    return {"seconds": statistics.median(seconds), **medians}


def _seconds(model: Model, edit: dict[str, Any], n_tokens: int = 60) -> float:
    start = time.process_time()
    generate(model, "The old lady", n_tokens, edit=edit)
    return (time.process_time() - start) / n_tokens


def main() -> None:
    """Measure, print, draw."""
    parser = arguments(__doc__)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--cost", action="store_true")
    options, model = parser.parse_args(), load("default")
    if options.cost:
        show(**cost(model))
        return
    table = []
    for row in rows(model):
        show(**row)
        table.append(row)
    if options.figure is not None:
        draw(pd.DataFrame(table), options.figure)


if __name__ == "__main__":
    main()
