"""Do our sentence scores equal those of a plain loop with `transformers`, and how does a model do on BLiMP?

    python -m benchmarks.suites --blimp ../shared/data/blimp --out DIR
    python -m benchmarks.suites --model textbook --pairs 200 --loop 20 --blimp ../shared/data/blimp --out DIR

Three questions about a folder's paradigms, with one JSON line per paradigm and one per question:

    loop     log-probabilities of the first `--loop` pairs of each paradigm, against a loop that gives `transformers`
             one sentence at a time, with the same weights in float64. target: 1e-5 per sentence
    swap     the same pairs with good and bad exchanged. target: 1 - accuracy, in every paradigm
    tables   accuracy on the first `--pairs` pairs in float32, against rivals and the published 5-gram
             (`models_summary.jsonl`), with verdicts and total CPU seconds

Rivals are counted on the first `--texts` texts of `--text`. Scores are stored in DIR, so that a stopped run can resume;
the tables are DIR/MODEL-paradigms.csv and DIR/MODEL-items.parquet.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analyses import corpora, suites
from analyses.execution import lots
from analyses.execution.provenance import code
from analyses.suites.items import BAD, GOOD, Suite
from benchmarks.console import arguments, machine, show
from interp.bounded_files import lines
from models import load, save

TARGET = 1e-5  # nats per sentence


def first_pairs(suite: Suite, count: int) -> Suite:
    """The first pairs of every paradigm."""
    return replace(suite, paradigms=tuple(replace(each, items=each.items[:count]) for each in suite.paradigms))


def swapped(suite: Suite) -> Suite:
    """The suite with good and bad sentences exchanged."""
    paradigms = []
    for part in suite.paradigms:
        items = [replace(item, sentences={GOOD: item.sentences[BAD], BAD: item.sentences[GOOD]}) for item in part.items]
        paradigms.append(replace(part, items=tuple(items)))
    return replace(suite, paradigms=tuple(paradigms))


@torch.no_grad()
def plain_scores(model: Any, tokenizer: Any, texts: Sequence[str]) -> np.ndarray:
    """Each text's log-probability after its first token, in nats, from `transformers`."""
    scores = []
    for text in texts:
        ids = torch.tensor([tokenizer(text).input_ids])
        log_probabilities = model(ids).logits[0, :-1].log_softmax(-1)
        scores.append(float(log_probabilities.gather(-1, ids[0, 1:, None]).sum()))
    return np.array(scores)


def loop_and_swap(name: str, suite: Suite) -> None:
    """Answer the first two questions."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = load(name, dtype=torch.float64)
    ours, turned = (
        {name: part["right"].to_numpy() for name, part in suites.measure(model, each).groupby("paradigm")}
        for each in (suite, swapped(suite))
    )
    off = max(abs(float(ours[paradigm].mean() + turned[paradigm].mean()) - 1) for paradigm in ours)
    show(model=name, question="swap", paradigms=len(suite.paradigms), largest=off, met=off < 1e-12)
    largest, unlike, start = 0.0, 0, time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        plain = AutoModelForCausalLM.from_pretrained(folder).double(), AutoTokenizer.from_pretrained(folder)
        for paradigm in suite.paradigms:
            texts = [item.sentences[condition].text for condition in (GOOD, BAD) for item in paradigm.items]
            theirs = plain_scores(*plain, texts)
            largest = max(largest, np.abs(suites.score_sentences(model, texts)["log_probability"] - theirs).max())
            margins = np.subtract(*theirs.reshape(2, -1)).round(9)
            unlike += int((((1 + np.sign(margins)) / 2) != ours[paradigm.name]).sum())
    seconds, met = round(time.process_time() - start), bool(largest < TARGET) and not unlike
    show(model=name, question="loop", largest=float(largest), answers_unlike=unlike, met=met, seconds=seconds)


def tables(name: str, suite: Suite, text: corpora.Corpus, published: dict[str, float], out: Path) -> None:
    """Answer the third question."""
    start, model = time.process_time(), load(name)
    with lots.using(lots.Setting(lots.Shards(out / "shards", code()))):
        items = suites.measure(model, suite, text, progress=lambda n, total: show(model=name, lots=n, of=total))
    table, called = suites.by_paradigm(items), Path(name).name
    items.to_parquet(out / f"{called}-items.parquet")
    table.to_csv(out / f"{called}-paradigms.csv", index=False)
    for row in table.to_dict("records"):
        columns = ("level", "name", "n", "accuracy", "low", "high", "length", "unigram", "five_gram", "verdict", "why")
        values = {key: round(row[key], 3) if isinstance(row[key], float) else row[key] for key in columns}
        show(model=called, **values, published_five_gram=published.get(str(row["name"])))
    counts = table["verdict"].value_counts().to_dict()
    show(model=called, question="tables", seconds=round(time.process_time() - start), **counts)


def main() -> None:
    """Parse and print."""
    parser = arguments(__doc__)
    parser.add_argument("--model", action="append")
    parser.add_argument("--blimp", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=1_000)
    parser.add_argument("--loop", type=int, default=100)
    parser.add_argument("--text", default="tales:1000")
    parser.add_argument("--texts", type=int, help="texts of it to count; by default all")
    options = parser.parse_args()
    suite, summary = suites.read(options.blimp), options.blimp / "models_summary.jsonl"
    rows = [json.loads(line) for line in lines(summary)] if summary.is_file() else []
    options.out.mkdir(parents=True, exist_ok=True)
    machine()
    for name in options.model or ["../shared/models/stories260K", "textbook", "default"]:
        if options.loop:
            loop_and_swap(name, first_pairs(suite, options.loop))
        text = corpora.read(options.text, options.texts)
        tables(name, first_pairs(suite, options.pairs), text, {row["UID"]: row["ngram"] for row in rows}, options.out)


if __name__ == "__main__":
    main()
