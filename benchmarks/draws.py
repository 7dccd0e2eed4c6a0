"""Do other minimal pairs give the same sentences? One report, with its pairs redrawn many times.

    python -m benchmarks.draws                                    # the default on 100 tales, ten draws
    python -m benchmarks.draws --report DIR --model stories260K   # with the tables of a report that is there
    python -m benchmarks.draws --quick                            # two draws of 40 pairs on two tales, without labels

Attention and labels stay the same; only the pairs' seed changes. Prints a Markdown row per task: the draws in which it
was refused, how often the model is right, the number of heads named needed, and how far two draws agree on them
(Jaccard, mean over all pairs of draws). Then a row for all tasks together, each headline, and each sentence about what
replacing heads removes, by the head that it names, with the draws that have it.

Ten draws: the default always passes in `repeat` (6 to 7 heads needed, Jaccard .97) and `name-gender` (2 heads, 1.00),
never in the other three. stories260K always passes in `name-gender` (4 to 5 heads, .89), once in `agreement-adjacent`
(0 heads, 1.00), never in the others.
"""

import argparse
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analyses import corpora, report, runs
from analyses.behaviours import OURS, vocabulary
from analyses.headlines.facts import Tables, facts, ranked
from analyses.headlines.sentences import headline, sentences
from analyses.measures.findings import carriers
from analyses.measures.head_tables import with_q
from analyses.wording.head_names import HEAD
from benchmarks.console import arguments
from interp import Model
from models import load

_REPLACING = re.compile(r"Replacing (L\d+\.H\d+) removes \S+ of ([^.;]*?), and")


def draw(model: Model, seed: int, pairs: int | None = None) -> Tables:
    """A report's `effects` and `tasks` for one draw."""
    how: dict[str, Any] = {"seed": seed} if pairs is None else {"seed": seed, "pairs": pairs}
    effects = [each.effects(model, **how) for each in OURS.values() if each.effects]
    tables = with_q([each.table for each in effects])
    tasks = pd.DataFrame([task for each in effects for task in each.tasks])
    return {"effects": pd.concat([each for each in tables if len(each)], ignore_index=True), "tasks": tasks}


def needed(effects: pd.DataFrame) -> dict[str, set[tuple[Any, ...]]]:
    """The heads that an answer needs, by task."""
    rows = carriers(effects.loc[(effects["intervention"] == "noise") & (effects["effect"] > 0)])
    return {str(task): {*group[HEAD].itertuples(index=False, name=None)} for task, group in rows.groupby("task")}


def agreement(sets: Sequence[Collection[Any]]) -> float:
    """The mean Jaccard index over all pairs of sets; two empty sets agree fully."""
    pairs = [({*a} & {*b}, {*a} | {*b}) for a, b in combinations(sets, 2)]
    return float(np.mean([len(shared) / len(either) if either else 1.0 for shared, either in pairs]))


def table(draws: Sequence[Tables]) -> str:
    """One row per task, and one for all together."""
    names = [*dict.fromkeys(str(task) for each in draws for task in each["tasks"]["task"])]
    sets = [needed(each["effects"]) for each in draws]
    lines = ["| task | refused | right | heads needed | Jaccard |", "|---|---|---|---|---|"]
    for name in names:
        tasks = pd.concat([each["tasks"].loc[each["tasks"]["task"] == name] for each in draws])
        right, counts = tasks["accuracy"], [len(each.get(name, ())) for each in sets]
        refused = sum(isinstance(why, str) for why in tasks["refused"])
        cells = f"{refused} of {len(draws)} | {right.min():.2f} to {right.max():.2f} | {min(counts)} to {max(counts)}"
        lines.append(f"| `{name}` | {cells} | {agreement([each.get(name, ()) for each in sets]):.2f} |")
    every = [{(name, head) for name, tasks in each.items() for head in tasks} for each in sets]
    return "\n".join(
        [*lines, f"| all | | | {min(map(len, every))} to {max(map(len, every))} | {agreement(every):.2f} |"]
    )


def claims(tables: Tables) -> tuple[str, list[str]]:
    """The headline, and the sentences about which head is needed for what."""
    by_place = {place: ranked(group) for place, group in facts(tables, OURS).items()}
    lines = sentences(tables, by_place, OURS)
    return headline(tables, by_place, lines, vocabulary(OURS))[0], [
        f"{head} for {what}" for each in lines for head, what in _REPLACING.findall(each.text)
    ]


def totals(lines: Sequence[str], n: int) -> str:
    """Each line with the number of draws that have it, the commonest first."""
    return "\n".join(f"- {count} of {n}: {line}" for line, count in Counter(lines).most_common())


def tables_of(options: argparse.Namespace, model: Model) -> Mapping[str, pd.DataFrame]:
    """The tables of a given report, or of a new one."""
    with tempfile.TemporaryDirectory() as folder:
        folder_of_run = options.report or Path(folder) / "report"
        if options.report is None:
            texts = [corpora.read("tales:2" if options.quick else name) for name in options.corpus]
            settled: Any = {"labels": not options.quick, "probes": False, "experiments": False}
            report.build(model, texts, folder_of_run, pairs=options.pairs, **settled)
        run = runs.read(folder_of_run)
        return {name: run.table(name) for name in run.tables}


def main() -> None:
    """Parse arguments and print."""
    parser = arguments(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--corpus", action="append", help="tales:100 by default")
    parser.add_argument("--report", type=Path, help="a directory from `interp report`, instead of a corpus")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--pairs", type=int, help="as in `interp report`")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.corpus = options.corpus or ["tales:100"]
    if options.quick:
        options.draws, options.pairs = 2, 40
    model = load(options.model)
    tables, draws = tables_of(options, model), [draw(model, seed, options.pairs) for seed in range(options.draws)]
    print(table(draws), flush=True)
    lines, heads = zip(*(claims({**tables, **each}) for each in draws), strict=True)
    print(f"\n{totals(lines, len(draws))}\n\n{totals([each for group in heads for each in group], len(draws))}")


if __name__ == "__main__":
    main()
