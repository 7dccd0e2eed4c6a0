"""Does the default model read, and do its heads do what it ships for? Checks every target of its card.

    python -m benchmarks.default_model                               # the model that comes with the repository
    python -m benchmarks.default_model --model DIR --only reading    # another, and one question alone

The model was trained on LitBank's novels except some held out by name (`interp.training.token_arrays.held_out`);
everything about novels is reported on those. Heads are chosen on one text and reported on another. Prints a line about
the machine, then one JSON line per question, with whether its target was met and CPU seconds (in all six minutes on one
core, and 2 GB):

    reading      cross-entropy on held-out novels, by token and by character, against a 5-gram model with modified
                 Kneser-Ney smoothing, which counted the training novels in the model's own tokens (not the generated
                 stories) and predicts the same tokens. The model reads rows as long as its context, each from its
                 start, so it has half of it on average; the 5-gram always has its four tokens.
                 target: its saving, in nats per token, with the whole interval over books above 0
    position     best previous-token head (target .6) on excerpts from novels, best induction head on random repeats
                 (.7), and the share of repeats that the model continues with the right token (.9)
    repeats      the best induction head by how many tokens are repeated (10, 20, 50, 100), chosen at 50 on other
                 repeats, and the share of the second copy's tokens, except the first, that the model predicts.
                 target: .9 of the attention, at 100
    relations    for each dependency relation the better direction and its head, chosen on EWT's training sentences and
                 reported on its development sentences, against the fixed offset that is best on the latter.
                 target: .10 over it in two relations
    coreference  the head that finds most antecedents, chosen on LitBank's excerpts from training novels, reported on
                 the others against each baseline through the same scorer, with intervals over books. Both from the
                 pronoun and from the token that predicts it, each with its own best head.
                 target: from the pronoun, a gain over the nearest mention with an interval above 0; `misses_by`
    gender       the share of prompt pairs that differ in a name's gender with the right pronoun's logit above the wrong
                 one's (target .9)
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from analyses import coreference, corpora, part_of_speech, position
from analyses.measures.definitions import Measure
from analyses.measures.head_tables import Collected
from analyses.reading.windows import Reading
from analyses.scoring.collectors import collect, measured
from analyses.scoring.rules import RELATIONS
from analyses.suites.ngrams import KneserNey
from benchmarks.console import arguments, machine, show
from interp import AnnotatedText, InputError, TokenBatch, Tokenizer, Transformer
from interp.statistics import estimate
from interp.training import token_arrays as texts
from models import load

TARGETS = {
    "previous-token": 0.6,
    "induction": 0.7,
    "far": 0.9,
    "copying": 0.9,
    "relation": 0.1,
    "relations": 2,
    "gender": 0.9,
}
DATA = Path("../shared/data")
BATCH = 16  # rows read together
LENGTHS = (10, 20, 50, 100)  # of the repeated part, in tokens
FEWEST = 100  # least items of a relation and direction to choose a head on
NAMED = 1_000  # pairs of prompts for gender: one of four frames can go wrong for all names of a gender
Line = dict[str, Any]
Measured = list[tuple[Collected, Collected]]  # position and coreference, on training and on held-out novels


def tokenizer_of(model: Transformer) -> Tokenizer:
    """The tokenizer of a model that reads one text.

    Raises:
        InputError: the model has no tokenizer, no start token, or is not a language model.
    """
    if model.tokenizer is None or model.output is None or [*model.config.stacks] != ["decoder"]:
        raise InputError("expected a decoder with a tokenizer and an output layer")
    if len(model.tokenizer.prefix) != 1:
        raise InputError("expected a tokenizer that puts one token before a text, to predict the first token from")
    return model.tokenizer


def numbers(*values: float) -> list[float | None]:
    """A value and its 95% interval, rounded for printing; None if undefined."""
    return [None if np.isnan(each) else round(float(each), 4) for each in values]


# Reading: nats per token, against counts.


def reading(model: Transformer, novels: Path, share: float, limit: int | None) -> Line:
    """Both models on the held-out novels, on at most `limit` tokens in rows spread over the books."""
    tokenizer, n_ctx = tokenizer_of(model), model.config.n_ctx
    trained_on, test = streams(tokenizer, novels, share)
    test = test[: len(test) // n_ctx * n_ctx]  # in whole rows
    n_rows = len(test) // n_ctx
    count = n_rows if limit is None else min(n_rows, max(1, limit // n_ctx))
    rows = torch.arange(count) * n_rows // count
    losses = np.full((n_rows, n_ctx), np.nan)
    losses[rows] = nats(model, test.view(n_rows, n_ctx)[rows], tokenizer.prefix[0])
    read = ~np.isnan(losses.ravel())
    book = (test == tokenizer.prefix[0]).cumsum(0).numpy() - 1
    scored = read & ~np.isin(test, [*tokenizer.special_ids])  # no model can predict a book's start
    ngram = -np.log(KneserNey(trained_on.numpy(), model.config.d_vocab).probabilities(test.numpy()))
    spent = [np.bincount(book[scored], each[scored]) for each in (ngram, losses.ravel())]
    tokens = np.bincount(book[scored]).astype(float)
    characters = np.array(
        [len(tokenizer.decode(test[scored & (book == number)])) for number in range(len(tokens))], dtype=float
    )
    line: Line = {"books": int((tokens > 0).sum()), "tokens": int(tokens.sum()), "characters": int(characters.sum())}
    for unit, n in (("token", tokens), ("character", characters)):
        result = estimate(spent[0][:, None], n[:, None], spent[1][:, None], n[:, None])
        line |= {f"5-gram, nats a {unit}": round(float(result.value[0]), 4)}
        line |= {f"model, nats a {unit}": round(float(result.baseline[0]), 4)}
        line |= {f"saved a {unit}": numbers(result.gain[0], result.low[0], result.high[0])}
    ahead, low = int((spent[1] < spent[0]).sum()), line["saved a token"][1]
    met = low is not None and low > 0
    return {**line, "5-gram counted": len(trained_on), "ahead in books": ahead, "met": met}


def streams(tokenizer: Tokenizer, novels: Path, share: float) -> list[Tensor]:
    """The tokens of the training novels, and of the held-out ones."""
    halves: tuple[list[Path], list[Path]] = [], []
    for path in texts.find(novels):
        halves[texts.held_out(texts.name_of(path), share)].append(path)
    with tempfile.TemporaryDirectory() as folder:
        return [
            texts.tokenize(texts.read(half, unwrap=True), tokenizer, Path(folder) / str(i), str(i)).tokens.long()
            for i, half in enumerate(halves)
        ]


@torch.inference_mode()
def nats(model: Transformer, rows: Tensor, start: int) -> np.ndarray:
    """-log p of each token of each row; a row is read after the start token, without the row before it."""
    losses = []
    for part in rows.to(model.device).split(BATCH):
        read = torch.cat([torch.full_like(part[:, :1], start), part[:, :-1]], 1)
        logits = model(TokenBatch.from_ids(read))
        assert logits is not None
        logs = logits.float().log_softmax(-1).gather(-1, part[..., None])
        losses.append(-logs[..., 0].double().cpu())
    return torch.cat(losses).numpy()


# Heads: chosen on one text, reported on another.


def books(litbank: Path, share: float) -> tuple[list[AnnotatedText], list[AnnotatedText]]:
    """LitBank's excerpts from training novels, and from held-out ones."""
    halves: tuple[list[AnnotatedText], list[AnnotatedText]] = [], []
    for text in corpora.read(f"litbank:{litbank}"):
        halves[texts.held_out(text.document.removesuffix("_brat"), share)].append(text)
    if not all(halves):
        raise InputError(f"{litbank}: expected novels of both kinds, got {[*map(len, halves)]} trained on and left out")
    return halves


def by_novel(model: Transformer, litbank: Path, share: float) -> Measured:
    """Position and coreference on both halves, each read once, with new random repeats for each."""
    halves = []
    for seed, half in enumerate(books(litbank, share)):
        collectors = position.Collector(model, seed=seed, n_untrained=0), coreference.Collector(model, seed=seed)
        where, who = collect(Reading(model, half), collectors)
        if isinstance(where, InputError):
            raise where
        if isinstance(who, InputError):
            raise who
        halves.append((where, who))
    return halves


def best(table: pd.DataFrame, measure: str, by: str = "value") -> tuple[int, int]:
    """(Layer, head) with the highest value."""
    rows = table.loc[(table["measure"] == measure) & (table["sink"] == "kept")]
    row = rows.loc[rows[by].idxmax()]
    return int(row["layer"]), int(row["head"])


def head_line(table: pd.DataFrame, measure: str, head: tuple[int, int]) -> Line:
    """One head's row, for printing."""
    which = (table["measure"] == measure) & (table["sink"] == "kept")
    (row,) = table.loc[which & (table["layer"] == head[0]) & (table["head"] == head[1])].to_dict("records")
    return {
        "head": "L{}.H{}".format(*head),
        "value": round(row["value"], 4),
        "baseline": [row["baseline_name"], round(row["baseline"], 4)],
        "gain": numbers(row["gain"], row["ci_low"], row["ci_high"]),
        "n": row["n"],
    }


def by_position(model: Transformer, halves: Measured, pairs: int) -> Line:
    """Previous token, induction, copying."""
    chosen, reported = (where.table() for where, _ in halves)
    line = {name: head_line(reported, name, best(chosen, name)) for name in ("previous-token", "induction")}
    (task,) = position.effects(model, pairs=pairs, seed=1).tasks
    met = {name: each["value"] >= TARGETS[name] for name, each in line.items()}
    met["copying"] = task.get("copying", 0.0) >= TARGETS["copying"]
    return {**line, "copying": {"value": task.get("copying"), "n": task["n"]}, "met": met}


def by_length(model: Transformer, lengths: Sequence[int] = LENGTHS, rows: int = 40) -> Line:
    """Induction and copying, by number of repeated tokens."""

    def attention(length: int, seed: int) -> Tensor:
        total = position.induction(model, length, seed).totals
        return (total.scores.sum(0) / total.weights.sum(0)).flatten()[:-1]  # the last is the uniform baseline

    head = int(attention(50, 0).argmax())
    layer, number = divmod(head, model.config.stacks["decoder"].n_heads)
    line: Line = {"head": f"L{layer}.H{number}"}
    for length in lengths:
        ids = position.repeated(model, length, rows, seed=1)
        with torch.inference_mode():
            logits = torch.cat([model(TokenBatch.from_ids(part)) for part in ids.split(BATCH)])
        foretold = logits[:, -length:-1].argmax(-1) == ids[:, -length + 1 :]
        line[str(length)] = {"induction": round(float(attention(length, 1)[head]), 4)}
        line[str(length)]["copied"] = round(float(foretold.float().mean()), 4)
    return {**line, "met": line[str(max(lengths))]["induction"] >= TARGETS["far"]}


def relations(model: Transformer, train: Path, dev: Path, sentences: int) -> Line:
    """Each relation's head and offset."""
    chosen, reported = (
        measured(part_of_speech.Collector, model, corpora.read(path, limit))
        for path, limit in ((train, sentences), (dev, None))
    )
    read, chosen, reported = chosen.counts["texts"], chosen.heads, reported.heads
    heads: dict[str, Line] = {}
    for name in RELATIONS:
        ways = [f"relation:{name}:{way}" for way in ("dependent->head", "head->dependent")]
        enough = chosen["measure"].isin(ways) & (chosen["sink"] == "kept") & (chosen["n"] >= FEWEST)
        rows = chosen.loc[enough].dropna(subset=["gain"])
        if rows.empty:
            continue
        measure = str(rows.loc[rows["gain"].idxmax(), "measure"])
        if measure in set(reported["measure"]):
            heads[measure.removeprefix("relation:")] = head_line(reported, measure, best(chosen, measure, "gain"))
    above = [name for name, each in heads.items() if each["gain"][0] >= TARGETS["relation"]]
    heads = dict(sorted(heads.items(), key=lambda item: -item[1]["gain"][0]))
    met = len(above) >= TARGETS["relations"]
    return {"sentences chosen on": read, "above": above, "found": heads, "met": met}


def antecedents(halves: Measured) -> Line:
    """The best head on training books, measured on held-out ones against every baseline, in both readings."""
    readings = {
        measures[0].name: _antecedents(halves, measures) for measures in (coreference.MEASURES, coreference.PREDICTING)
    }
    low = readings["antecedent"]["antecedent"]["gains"]["nearest"][1]
    if low is None:
        raise InputError("the books left out of training are too few for an interval: expected three or more")
    return {"books": halves[1][1].documents, **readings, "misses_by": max(0.0, -low), "met": low > 0}


def _antecedents(halves: Measured, measures: Sequence[Measure]) -> Line:
    """Antecedents from pronouns, or from the tokens that predict them."""
    (_, trained), (_, test) = halves
    layer, head = best(trained.table(), measures[0].name)
    scored = next(each for each in test.scored if each.sink == "kept" and measures[0] in each.measures)
    totals, column = scored.totals.finish(), layer * test.heads.n_heads + head
    line: Line = {"head": f"L{layer}.H{head}"}
    for index, measure in enumerate(measures[:2]):
        scores, weights = (each[:, :, index].numpy() for each in (totals.scores, totals.weights))
        against = {
            name: estimate(
                *(each[:, [row]] for row in (column, test.heads.count + number) for each in (scores, weights))
            )
            for number, name in enumerate(scored.baselines)
        }
        line[measure.name] = {
            "value": round(float(against["nearest"].value[0]), 4),
            "n": int(weights[:, column].sum()),
            "baselines": {name: round(float(each.baseline[0]), 4) for name, each in against.items()},
            "gains": {name: numbers(each.gain[0], each.low[0], each.high[0]) for name, each in against.items()},
        }
    return line


def gender(model: Transformer, pairs: int = NAMED) -> Line:
    """How often the right pronoun has the higher logit."""
    task = coreference.effects(model, pairs=pairs, seed=1).tasks[-1]
    facts = {name: round(task[name], 4) for name in ("accuracy", "clean", "corrupt", "neutral")}
    return {"pairs": task["n"], **facts, "refused": task["refused"], "met": task["accuracy"] >= TARGETS["gender"]}


def main() -> None:
    """Run all questions, and say which targets are met."""
    parser = arguments(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--novels", type=Path, default=DATA / "litbank" / "novels", help="the text it was trained on")
    parser.add_argument("--held-out", type=float, default=0.1, help="the share of novels that its recipe held out")
    parser.add_argument("--litbank", type=Path, default=DATA / "litbank" / "coref")
    parser.add_argument("--ewt-train", type=Path, default=DATA / "ud-ewt" / "en_ewt-ud-train.conllu.gz")
    parser.add_argument("--ewt-dev", type=Path, default=DATA / "ud-ewt" / "en_ewt-ud-dev.conllu")
    parser.add_argument("--tokens", type=int, help="tokens of the held-out novels to read (default all)")
    parser.add_argument("--sentences", type=int, default=4_000, help="of EWT's training half, for choosing heads")
    parser.add_argument("--pairs", type=int, default=200, help="pairs of prompts for copying")
    parser.add_argument("--only", choices=("reading", "position", "repeats", "relations", "coreference", "gender"))
    options = parser.parse_args()
    machine(targets=TARGETS)
    try:
        model = load(options.model)
        tokenizer_of(model)
        halves = cache(lambda: by_novel(model, options.litbank, options.held_out))
        questions: dict[str, Callable[[], Line]] = {
            "reading": lambda: reading(model, options.novels, options.held_out, options.tokens),
            "position": lambda: by_position(model, halves(), options.pairs),
            "repeats": lambda: by_length(model),
            "relations": lambda: relations(model, options.ewt_train, options.ewt_dev, options.sentences),
            "coreference": lambda: antecedents(halves()),
            "gender": lambda: gender(model),
        }
        for name, ask in questions.items():
            if options.only in (None, name):
                began = time.process_time()
                show(name=name, **ask(), seconds=round(time.process_time() - began, 1))
    except InputError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
