"""Do tests find a head at the strength that the tables call detectable? We plant choices in the rules' own tables.

    python -m benchmarks.power                        # tales, and EWT's sentences if they are beside the checkout
    python -m benchmarks.power --corpora stories:100 --plants 50
    python -m benchmarks.power --figure power.png

We plant choices for every relation that a corpus can test. A plant is right in a share of the hard items, where the
strictest rule errs. On the other items

    rule        it makes the rule's choice, on easy items too
    random      it makes the choice of a random rule, and is right as often on easy items
    clustered   as `rule`, but its share differs between documents (beta, correlation 0.05 within one)

One plant at a time joins the real heads. Rules are chosen on one half and tested on the other; the false discovery rate
covers all real cells and the plant. A head that is right in every item of all measures gives verdicts and the names of
its rules. Prints one JSON line per corpus and kind of error: how many relations the corpus can test, their mean
detectable strength, and the share of plants found at that strength, 0.1 below it and 0.1 above it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from analyses.corpora.corpus import read
from analyses.measures.head_tables import Heads
from analyses.part_of_speech import Collector
from analyses.reading.windows import Reading
from analyses.scoring.collectors import read as read_all
from analyses.scoring.outcomes import Outcomes
from analyses.scoring.rules import Records, rules_table, tests
from benchmarks.console import arguments, curves, machine, show
from interp.patterns import N_GROUPS
from models import load

EWT = "../shared/data/ud-ewt"
CORPORA = ("stories:50", "stories:100", "stories:400", f"{EWT}:500", f"{EWT}:2000")
ERRORS = ("rule", "random", "clustered")
PLANTS, CORRELATION = 200, 0.05
_OF_HEADS = ("words", "right", "mass", "kinds")  # fields with a column per head
GRID = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def planted(
    items: Outcomes, best: np.ndarray, strength: float, errors: str, rng: np.random.Generator, n: int
) -> Outcomes:
    """The items with `n` plants' choices instead of the heads'; `best` is each item's strictest rule."""
    shape, rows = (len(items.groups), n), np.arange(len(items.groups))[:, None]
    share = np.full(shape, strength)
    if errors == "clustered" and 0 < strength < 1:
        all_in_all = 1 / CORRELATION - 1
        share = rng.beta(strength * all_in_all, (1 - strength) * all_in_all, (N_GROUPS, n))[items.groups]
    random = errors == "random"
    rule = rng.integers(items.rules.shape[1], size=shape) if random else np.broadcast_to(best[:, None], shape)
    right = (rng.random(shape) < share) & (random | ~items.sought[rows, best[:, None]])
    words, kinds = (
        np.where(right, sought[:, None], of_rules[rows, rule])
        for sought, of_rules in ((items.target, items.rules), (items.target_kind, items.rule_kinds))
    )
    hits = np.where(right, items.first[:, None], items.hits[rows, rule])
    return replace(items, words=words, right=hits, kinds=kinds, mass=np.ones(shape, dtype=np.float16))


def strictest(items: Outcomes) -> np.ndarray:
    """For each item, the rule that is right most often in its measure, on the choosing half."""
    best = np.zeros(len(items.groups), dtype=int)
    for number in np.unique(items.measure):
        chooses = (items.measure == number) & (items.groups % 2 == 0)
        best[items.measure == number] = items.subset(chooses).strictest if chooses.any() else 0
    return best


def chosen(records: Records, items: Outcomes, numbers: Sequence[int]) -> Records:
    """Records of these items and measures for heads of one layer, with the same rules and kinds of words."""
    of_items = Records(
        Heads("decoder", 1, items.words.shape[1]), [records.measures[n] for n in numbers], (), records.itself
    )
    of_items.rules, of_items.names, of_items.ends = records.rules, records.names, records.ends
    of_items.parts = [Outcomes(*map(torch.from_numpy, vars(items).values()))]
    of_items.kinds, of_items.unseen = records.kinds[:, :, [*numbers]], records.unseen[[*numbers]]
    return of_items


def share_found(records: Records, number: int, items: Outcomes, real: pd.DataFrame, seed: int) -> float:
    """The share of heads with these choices of one measure that tests find, each tested beside all real heads."""
    items = replace(items, measure=np.zeros_like(items.measure))
    ((table, _),) = chosen(records, items, [number]).rows(seed)
    count = 0
    for _, row in table.iterrows():
        rows = pd.concat([real, row.to_frame().T], ignore_index=True)
        verdicts = tests(rows)
        count += bool(verdicts["beats"][-1] or verdicts["beyond"][-1])
    return count / len(table)


@dataclass(frozen=True)
class Bench:
    """The real heads of one corpus, and the strength that is detectable for each relation that it can test.

    `records` hold relations at their own words, and relations where a model must predict the word.
    """

    records: Sequence[Records]
    real: pd.DataFrame
    detectable: Mapping[tuple[int, int], float]  # by index of the records and of the measure

    @staticmethod
    def from_corpus(corpus: str, seed: int) -> "Bench":
        """Read a corpus with the default model: `stories:N`, or a directory and its number of texts."""
        model = load("default")
        collector = Collector(model, transposed=False)
        spec, _, limit = corpus.rpartition(":") if corpus.startswith("..") else (corpus, "", "")
        read_all(Reading(model, read(spec, int(limit) if limit else None)), [collector])
        records = collector.records
        judged = rules_table(records, "part-of-speech", corpus, seed=seed)
        real = [rows for each in records for rows, _ in each.rows(seed)]
        by_name = judged.dropna(subset="detectable").groupby("measure")["detectable"].first().to_dict()
        detectable = {
            (which, number): by_name[measure.name]
            for which, each in enumerate(records)
            for number, measure in enumerate(each.measures)
            if measure.name in by_name
        }
        return Bench(records, pd.concat(real, ignore_index=True).reindex(columns=judged.columns), detectable)

    @property
    def n_measures(self) -> int:
        """The number of relations and strata."""
        return sum(len(each.measures) for each in self.records)

    def perfect(self, seed: int) -> pd.DataFrame:
        """The `tables/rules` rows of a head that is right in every item of every measure."""
        everyone = []
        for records in self.records:
            joined = Outcomes.joined(records.parts)
            plant = planted(joined, strictest(joined), 1.0, "rule", np.random.default_rng(seed), 1)
            columns = {name: np.concatenate([getattr(joined, name), getattr(plant, name)], 1) for name in _OF_HEADS}
            everyone.append(chosen(records, replace(joined, **columns), range(len(records.measures))))
        table = rules_table(everyone, "part-of-speech", "perfect", seed=seed)
        return table.loc[table["head"] == everyone[0].heads.count - 1]

    def share(self, strengths: Mapping[tuple[int, int], float], errors: str, plants: int, seed: int) -> float:
        """The mean share of plants found over relations, each planted at its strength."""
        joined, rng = [Outcomes.joined(each.parts) for each in self.records], np.random.default_rng(seed)
        shares = []
        for (which, number), strength in strengths.items():
            items = joined[which].subset(joined[which].measure == number)
            choices = planted(items, strictest(items), min(max(strength, 0.0), 1.0), errors, rng, plants)
            shares.append(share_found(self.records[which], number, choices, self.real, seed))
        return round(float(np.mean(shares)), 3)


def draw(benches: Mapping[str, Bench], file: Path, plants: int) -> None:
    """Draw the share found against the strength, one panel per corpus that can test anything."""
    panels = []
    for corpus, bench in benches.items():
        lines = {
            errors: [bench.share(dict.fromkeys(bench.detectable, strength), errors, plants, 0) for strength in GRID]
            for errors in ERRORS
        }
        title = f"{corpus.rpartition('/')[2]}: {len(bench.detectable)} of {bench.n_measures} can tell"
        panels.append((title, "share of hard items in which it is right", GRID, lines))
    styles = {"rule": "INK", "random": "GREY", "clustered": "INK --"}
    curves("How often is a planted head found?", panels, styles, file, unit="share found", scale="linear")


def main() -> None:
    """Print the rows."""
    parser = arguments(__doc__)
    parser.add_argument("--corpora", nargs="+", default=CORPORA)
    parser.add_argument("--plants", type=int, default=PLANTS)
    parser.add_argument("--figure", type=Path, help="draw the share found against strength, with fewer plants")
    options = parser.parse_args()
    machine("numpy", plants=options.plants)
    benches = {corpus: Bench.from_corpus(corpus, 0) for corpus in options.corpora}
    able = {corpus: bench for corpus, bench in benches.items() if bench.detectable}
    for corpus, bench in benches.items():
        line = {"name": corpus, "can tell": len(bench.detectable), "of": bench.n_measures}
        for errors in ERRORS if corpus in able else ():
            shares = {}
            for name, off in (("found", 0.0), ("0.1 below", -0.1), ("0.1 above", 0.1)):
                strengths = {number: strength + off for number, strength in bench.detectable.items()}
                shares[name] = bench.share(strengths, errors, options.plants, 0)
            mean = round(float(np.mean([*bench.detectable.values()])), 3)
            show(**line, errors=errors, strength=mean, **shares)
        perfect = bench.perfect(0)
        show(**line, perfect=perfect["verdict"].value_counts().to_dict(), rules=sorted({*perfect["rule"]}))
    if options.figure:
        draw(able, options.figure, max(options.plants // 5, 1))


if __name__ == "__main__":
    main()
