"""How do heads of a model compare with what papers report, on real text?

    python -m benchmarks.published relations --model minilm --choose EWT-TRAIN --report EWT-DEV
    python -m benchmarks.published pronouns --model minilm --corpus LITBANK --corpus GAP.tsv
    python -m benchmarks.published scores --model minilm --corpus GAP.tsv --corpus WINOBIAS --corpus WINOGENDER

`relations` chooses for every dependency relation the head with the largest gain on one text and reports it on another,
beside BERT-base's best head (Clark et al. 2019, Table 1, on Stanford relations, which UD's only resemble).
`pronouns` chooses on the even half of each corpus' documents the head that finds most antecedents, and reports it on
the odd half beside every baseline: on all pronouns, and on those whose nearest true antecedent is a name or a noun.
`scores` prints what GAP, WinoBias and Winogender are scored by in their own papers, head and rule chosen alike.
All print Markdown.
"""

from collections.abc import Sequence

import pandas as pd

from analyses import coreference, corpora, part_of_speech
from analyses.measures.head_tables import Collected
from analyses.reading.windows import Reading
from analyses.report.coreference_scores import REPORTING, RULES, coreference_scores
from analyses.scoring.antecedents import RIVALS
from analyses.scoring.collectors import collect
from analyses.scoring.rules import RELATIONS
from benchmarks.console import arguments
from interp import InputError, Transformer
from models import load

BERT = {  # best head, best fixed offset, in percent
    "det": (94.3, 51.7),
    "obj": (86.8, 40.0),
    "amod": (75.6, 68.3),
    "nsubj": (58.5, 45.5),
    "nmod:poss": (80.5, 47.7),
}
_WAYS = ("dependent->head", "head->dependent")


def kept(table: pd.DataFrame) -> pd.DataFrame:
    """The reading that keeps the first position."""
    return table.loc[table["sink"] == "kept"]


def relations(model: Transformer, choose: str, report: str) -> None:
    """Print a row a relation and direction."""
    chosen, reported = (kept(part_of_speech.measure(model, corpora.read(spec))) for spec in (choose, report))
    print("| relation | head | accuracy | best offset | gain | 95% interval | q | n | BERT-base: head / offset |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in RELATIONS:
        for way in _WAYS:
            measure = f"relation:{name}:{way}"
            rows = chosen.loc[chosen["measure"] == measure].dropna(subset=["gain"])
            if rows.empty:
                continue
            best = rows.loc[rows["gain"].idxmax()]
            where = (reported["layer"] == best["layer"]) & (reported["head"] == best["head"])
            rows_there = reported.loc[where & (reported["measure"] == measure)]
            if rows_there.empty:
                continue
            (row,) = rows_there.to_dict("records")
            bert = "{} / {}".format(*BERT[name]) if name in BERT else ""
            print(
                f"| {name} {way} | L{row['layer']}.H{row['head']} | {row['value']:.1%} | {row['baseline']:.1%} "
                f"({row['baseline_name'].removeprefix('offset ')}) | {row['gain']:+.3f} "
                f"| {row['ci_low']:+.3f} to {row['ci_high']:+.3f} | {row['q']:.2g} | {row['n']:,} | {bert} |"
            )


def pronouns(model: Transformer, specs: Sequence[str]) -> None:
    """Print a table a corpus: every rule, and the best head, on all items and on those with a named antecedent."""
    for spec in specs:
        corpus = corpora.read(spec)
        (collected,) = collect(Reading(model, corpus), [coreference.Collector(model)])
        if not isinstance(collected, Collected):
            print(f"{corpus.name}: {collected}\n")
            continue
        tables = [collected.half(half).table() for half in (0, 1)]
        print(f"{corpus.name}: {collected.documents:,} documents, context {model.config.n_ctx}\n")
        print("| | all pronouns | nearest antecedent named |\n|---|---|---|")
        rules = collected.half(1).measured().baselines
        for rule in (rival.name for rival in RIVALS):
            print(f"| {rule} |" + "".join(f" {_value(rules, rule, name):.1%} |" for name in _ASKED))
        for asked in _ASKED:
            print(_best(kept(tables[0]), kept(tables[1]), asked))
        print()


def scores(model: Transformer, specs: Sequence[str]) -> None:
    """Print a table a corpus: the score of its paper, for the chosen head and every rule."""
    for spec in specs:
        results = coreference_scores(model, corpora.read(spec))
        table = results.table.loc[results.table["half"] == REPORTING]
        (title,) = set(table["paper"])
        print(f"{title}: {results.clusters:,} clusters, context {model.config.n_ctx}\n")
        print(f"| | head | value | {' | '.join(RULES)} | head less the chosen rule | n | sees |")
        print("|---|---|---|---|---|---|---|---|")
        for (score, condition), rows in table.groupby(["score", "condition"], sort=False):
            head = rows.loc[rows["chosen"] & rows["head"].notna()].iloc[0]
            rules = [f"{rows.loc[rows['resolver'] == rule, 'value'].iloc[0]:.3f}" for rule in RULES]
            gain = f"{head['gain']:+.3f} ({head['gain_low']:+.3f} to {head['gain_high']:+.3f})"
            print(
                f"| {', '.join(filter(None, (score, condition)))} | {head['resolver']} "
                f"| {head['value']:.3f} ({head['ci_low']:.3f} to {head['ci_high']:.3f}) | {' | '.join(rules)} "
                f"| {gain if head['gain'] == head['gain'] else ''} | {head['n']:,} | {head['coverage']:.2f} |"
            )
        print()


_ASKED = ("antecedent", "antecedent:named")


def _value(rules: pd.DataFrame, rule: str, measure: str) -> float:
    rows = rules.loc[(rules["baseline_name"] == rule) & (rules["measure"] == measure) & (rules["sink"] == "kept")]
    return float(rows["value"].iloc[0])


def _best(choosing: pd.DataFrame, reporting: pd.DataFrame, measure: str) -> str:
    """The head that chooses best in `asked` on one half, as the other half sees it."""
    rows = choosing.loc[choosing["measure"] == measure]
    best = rows.loc[rows["value"].idxmax()]
    mine = reporting.loc[(reporting["layer"] == best["layer"]) & (reporting["head"] == best["head"])]
    cells = []
    for name in _ASKED:
        (row,) = mine.loc[mine["measure"] == name].to_dict("records")
        cells.append(
            f" {row['value']:.1%}, {row['gain']:+.3f} over {row['baseline_name']} "
            f"({row['ci_low']:+.3f} to {row['ci_high']:+.3f}), n {row['n']:,} |"
        )
    chosen = "all" if measure == "antecedent" else "named"
    return f"| best head on {chosen}, L{best['layer']}.H{best['head']} |" + "".join(cells)


def main() -> None:
    """Parse and print."""
    parser = arguments(__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("relations")
    one.add_argument("--choose", required=True)
    one.add_argument("--report", required=True)
    two = kinds.add_parser("pronouns")
    three = kinds.add_parser("scores")
    for each in (two, three):
        each.add_argument("--corpus", required=True, action="append")
    for each in (one, two, three):
        each.add_argument("--model", default="default")
    options = parser.parse_args()
    try:
        model = load(options.model)
        if options.kind == "relations":
            relations(model, options.choose, options.report)
        else:
            (pronouns if options.kind == "pronouns" else scores)(model, options.corpus)
    except InputError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
