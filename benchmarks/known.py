"""Are the published heads of GPT-2 small where our tables say they are?

    python -m benchmarks.known --model DIR
    python -m benchmarks.known --model DIR --heads FILE.csv

Wang et al. (2022, figure 2 and section 3) name heads by class. We rank each one among all heads by its class's measure:

- previous-token, duplicate-token, induction: the gain in attention over the strictest baseline (`tables/heads`), and
  whether the head has the label (`tables/labels`);
- name-mover, negative-name-mover: the head's direct contribution to the indirect object's logit minus the subject's
  (`interp.attribution`), in prompts such as "When Mary and John went to the store, John gave a drink to";
- S-inhibition: the share of the logit difference lost if the name movers' queries read the head from a prompt about
  three other people, with all other heads frozen and feed-forwards recomputed (their path patching).

Rank 1 is the highest value; for negative name movers, the lowest. For other models, --heads FILE lists the known heads
in columns measure, layer and head. Prints Markdown. We leave out backup name movers, which act only without the others.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from analyses import position
from analyses.corpora import Corpus, read
from analyses.labels import label
from analyses.reading.windows import Reading
from analyses.scoring.collectors import collect, refuse_unread
from benchmarks.console import arguments
from interp import InputError, Model
from interp.attribution import direct_logit_attribution
from interp.patching import Pairs, Receiver, logit_difference, path_patch
from interp.statistics import estimate, shares
from models import load


class Known(NamedTuple):
    """A published head."""

    measure: str
    layer: int
    head: int


POSITIONAL = ("previous-token", "duplicate-token", "induction")
MOVERS = {"name-mover": 1.0, "negative-name-mover": -1.0}
INHIBITION = "S-inhibition"
GPT2_SMALL = [
    *(Known("previous-token", *place) for place in ((2, 2), (4, 11))),
    *(Known("duplicate-token", *place) for place in ((0, 1), (3, 0))),
    *(Known("induction", *place) for place in ((5, 5), (6, 9))),
    *(Known(INHIBITION, *place) for place in ((7, 3), (7, 9), (8, 6), (8, 10))),
    *(Known("name-mover", *place) for place in ((9, 9), (10, 0), (9, 6))),
    *(Known("negative-name-mover", *place) for place in ((10, 7), (11, 10))),
]
_SHAPE = {"n_layers": 12, "n_heads": 12, "d_model": 768}
NAMES = (
    *("Mary", "John", "Tom", "Anna", "James", "Sarah", "Paul", "Emma"),
    *("Mark", "Alice", "Peter", "Kate", "David", "Laura", "Jack", "Helen"),
)
_PLACES, _THINGS = ("store", "park", "school", "office"), ("drink", "book", "ring", "letter")
_TEMPLATES = (
    "When {0} and {1} went to the {place} , {2} gave a {thing} to",
    "Then {0} and {1} had a long talk at the {place} and {2} passed a {thing} to",
)


def prompts(count: int, seed: int = 0) -> pd.DataFrame:
    """Columns clean, corrupt, answer, wrong. Clean prompts repeat one of two names; corrupted ones have three others.

    The first and the second name are repeated equally often.
    """
    rng, rows = random.Random(seed), []
    for number in range(count):
        giver, taker, *others = rng.sample(NAMES, 5)
        first = [giver, taker] if number % 2 else [taker, giver]
        words = {"place": rng.choice(_PLACES), "thing": rng.choice(_THINGS)}
        template = _TEMPLATES[number // 2 % len(_TEMPLATES)]
        clean, corrupt = (template.format(*names, **words) for names in ((*first, giver), others))
        rows.append({"clean": clean, "corrupt": corrupt, "answer": f" {taker}", "wrong": f" {giver}"})
    return pd.DataFrame(rows)


def look_up(
    model: Model, corpus: Corpus, heads: Sequence[Known] = GPT2_SMALL, *, pairs: int = 100, seed: int = 0
) -> pd.DataFrame:
    """One row per known head: its rank among all heads, its gain with a 95% interval, and whether it has the label
    (missing if there is no such label).

    Raises:
        InputError: an unknown measure, a head that the model lacks, or nothing to measure.
    """
    measures = {each.measure for each in heads}
    if unknown := measures - {*POSITIONAL, *MOVERS, INHIBITION}:
        raise InputError(
            f"no measure {', '.join(sorted(unknown))}: expected {', '.join([*POSITIONAL, *MOVERS, INHIBITION])}"
        )
    shape = model.config.n_layers, model.config.n_heads
    if beyond := [each for each in heads if each.layer >= shape[0] or each.head >= shape[1]]:
        raise InputError(f"no head {beyond[0].layer}.{beyond[0].head}: this model has {shape[0]} layers of {shape[1]}")
    tables = [_by_position(model, corpus, seed)] if measures & {*POSITIONAL} else []
    if measures - {*POSITIONAL}:
        movers = [each for each in heads if each.measure == "name-mover"]
        tables.append(_by_objects(model, movers if INHIBITION in measures else [], pairs, seed))
    table = pd.concat(tables, ignore_index=True)
    table["rank"] = table.groupby("measure")["gain"].rank(ascending=False, method="min").astype("Int64")
    table["of"] = table.groupby("measure")["gain"].transform("count")
    return pd.DataFrame(heads).merge(table, on=["measure", "layer", "head"], how="left")


def _by_position(model: Model, corpus: Corpus, seed: int) -> pd.DataFrame:
    """Gains in attention, and which heads have the label."""
    (collected,) = collect(Reading(model, corpus), [position.Collector(model, seed=seed)])
    if isinstance(collected, InputError):
        raise collected
    measured = collected.measured(seed=seed)
    refuse_unread(measured.counts, corpus.name)
    heads = measured.heads.loc[(measured.heads["sink"] == "kept") & measured.heads["measure"].isin(POSITIONAL)]
    labels = label(model, {"position": corpus}, collected=[collected], seed=seed).labels
    carried = {*zip(labels["layer"], labels["head"], labels["label"], strict=True)}
    cells = zip(heads["layer"], heads["head"], heads["measure"], strict=True)
    columns = ["measure", "layer", "head", "value", "gain", "ci_low", "ci_high"]
    return heads[columns].assign(labelled=[cell in carried for cell in cells])


def _by_objects(model: Model, movers: Sequence[Known], count: int, seed: int) -> pd.DataFrame:
    """What each head writes towards the indirect object, and what it sends to the queries of any `movers`."""
    texts = prompts(count, seed)
    columns = (texts[name].tolist() for name in ("clean", "corrupt", "answer", "wrong"))
    pairs = Pairs.from_texts(model, *columns, drop=True)
    assert pairs.right is not None
    assert pairs.wrong is not None
    direct = direct_logit_attribution(model, pairs.inputs[0][0], pairs.right, pairs.wrong).by_head()
    terms = direct.double().cpu().flatten(0, 1).T.numpy()  # prompt head
    tables = []
    for name, sign in MOVERS.items():
        gain = estimate(sign * terms, np.ones_like(terms), seed=seed)
        tables.append(_rows(model, name, gain.value, gain.low, gain.high).assign(value=sign * gain.value))
    if movers:
        receivers = [Receiver("q", layer=each.layer, head=each.head) for each in movers]
        sent = path_patch(model, pairs, logit_difference(), receivers, through="mlps", direction="noise")
        effects = sent.effects().double().cpu().flatten(0, 1).T.numpy()
        gain = shares(effects, sent.difference().double().cpu().numpy(), seed=seed)
        tables.append(_rows(model, INHIBITION, gain.value, gain.low, gain.high))
    return pd.concat(tables, ignore_index=True)


def _rows(model: Model, measure: str, gain: np.ndarray, low: np.ndarray, high: np.ndarray) -> pd.DataFrame:
    layer, head = np.divmod(np.arange(len(gain)), model.config.n_heads)
    cells = {"measure": measure, "layer": layer, "head": head, "value": gain}
    return pd.DataFrame({**cells, "gain": gain, "ci_low": low, "ci_high": high, "labelled": None})


def read_heads(file: Path) -> list[Known]:
    """The heads that a file lists.

    Raises:
        InputError: its columns are not measure, layer and head, or a layer or head is no whole number.
    """
    try:
        table = pd.read_csv(file)
        columns = (table[name].tolist() for name in Known._fields)
        return [Known(str(measure), int(layer), int(head)) for measure, layer, head in zip(*columns, strict=True)]
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{file}: expected columns measure, layer, head with whole numbers, got {error}") from error


def check_shape(model: Model, name: str) -> None:
    """Refuse a model that cannot be GPT-2 small.

    Raises:
        InputError: it has another shape.
    """
    stacks = [*model.config.stacks.values()]
    got = [f"{getattr(stack, field)} {field}" for stack in stacks for field in _SHAPE]
    expected = [f"{size} {field}" for field, size in _SHAPE.items()]
    if got != expected or not stacks[0].causal:
        raise InputError(
            f"{name} does not have GPT-2 small's shape (expected a decoder with {', '.join(expected)}, got "
            f"{', '.join(got)}): list its known heads with --heads FILE"
        )


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--heads", type=Path, help="CSV of measure, layer, head; by default GPT-2 small's")
    parser.add_argument("--corpus", default="stories:100", help="text for the measures of position")
    parser.add_argument("--pairs", type=int, default=100)
    options = parser.parse_args()
    try:
        model = load(options.model)
        if options.heads is None:
            check_shape(model, options.model)
        heads = GPT2_SMALL if options.heads is None else read_heads(options.heads)
        table = look_up(model, read(options.corpus), heads, pairs=options.pairs)
    except InputError as error:
        parser.exit(2, f"{error}\n")
    print("| measure | head | rank | value | gain | 95% interval | labelled |\n|---|---|---|---|---|---|---|")
    for row in table.to_dict("records"):
        labelled = {True: "yes", False: "no"}.get(row["labelled"], "no such label")
        print(
            f"| {row['measure']} | {row['layer']}.{row['head']} | {row['rank']} of {row['of']} | {row['value']:+.3f} "
            f"| {row['gain']:+.3f} | {row['ci_low']:+.3f} to {row['ci_high']:+.3f} | {labelled} |"
        )


if __name__ == "__main__":
    main()
