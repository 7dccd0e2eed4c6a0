"""Injects faults and prints what happened, as the table of docs/faults.md.

    python -m benchmarks.faults [--files 2000] [--kills 60] [--disks 20] [--races 20] [--only damage|stops]

Damaged files are drawn from fixed seeds (`benchmarks.faults.mutations`), `--files` of each kind that is read; `--kills`
of each kind of writer. Kills, full disks and races come at random moments of short trainings and small runs. Anything
lost, hung or traced is our bug; the first of each kind is printed on stderr.
"""

import sys
from collections import Counter

from benchmarks.console import arguments
from benchmarks.faults import stops
from benchmarks.faults.damage import FAULT, READ, REFUSED, outcomes
from benchmarks.faults.read_files import READERS

_HEAD = ("fault", "count", "survived", "refused", "lost, hung or traced")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--files", type=int, default=2_000, help="damaged files of each kind")
    parser.add_argument("--kills", type=int, default=60, help="kills of trainings, and of runs")
    parser.add_argument("--disks", type=int, default=20, help="full disks")
    parser.add_argument("--races", type=int, default=20, help="pairs of writers at once")
    parser.add_argument("--only", choices=("damage", "stops"), help="only one half")
    options = parser.parse_args()
    _row(_HEAD)
    _row(["---"] * len(_HEAD))
    if options.only != "damage":  # before the readers, which bound memory
        _report("trainings killed, and gone on with", stops.kills_of_trainings(options.kills))
        _report("runs killed while they replace another", stops.kills_of_runs(options.kills))
        _report("full disks, in trainings and runs", stops.full_disks(options.disks))
        _report("two runs written to one directory at once", stops.races(options.races))
    if options.only != "stops":
        for name in READERS:
            _report(f"damaged: {name}", _damage(name, options.files))


def _damage(name: str, count: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed, outcome in outcomes(name, range(count)):
        if outcome.kind == FAULT and not counts[stops.TRACED]:
            print(f"{name}, seed {seed}: {outcome.message}", file=sys.stderr)
        counts[{READ: stops.SURVIVED, REFUSED: stops.REFUSED}.get(outcome.kind, stops.TRACED)] += 1
    return counts


def _report(fault: str, counts: Counter[str]) -> None:
    bad = sum(counts[kind] for kind in (stops.LOST, stops.HUNG, stops.TRACED))
    if bad:
        print(f"{fault}: {dict(counts)}", file=sys.stderr)
    _row([fault, *(f"{n:,}" for n in (counts.total(), counts[stops.SURVIVED], counts[stops.REFUSED], bad))])


def _row(cells: list[str] | tuple[str, ...]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
