"""How large is the project? Lines of each room against its budget.

    python -m benchmarks.size

Lines are counted as by `wc -l`, with blank lines and comments; docs are counted in words. A room over its budget is a
defect. A change that needs more says so and raises the number here.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = {"interp": 15_390, "models": 8_270, "analyses": 25_780, "tests": 28_040}  # lines of Python
DOCS = 30_000  # words
PAGE_CODE = (".js", ".css", ".jinja")
DATA = (".toml", ".json", ".csv", ".tsv", ".conllu", ".txt")


def files(room: str, *endings: str) -> Iterator[Path]:
    """Files of a room with one of these endings."""
    return (path for path in sorted((ROOT / room).rglob("*")) if path.name.endswith(endings) and path.is_file())


def lines(room: str, *endings: str) -> int:
    """Lines of these files."""
    return sum(path.read_bytes().count(b"\n") for path in files(room, *endings))


def words() -> int:
    """Words of the documentation's pages."""
    return sum(len(path.read_text("utf-8").split()) for path in files("docs", ".md"))


def main() -> None:
    """Print one row per room."""
    print(f"{'room':<12}{'python':>9}{'budget':>9}{'over':>9}{'page code':>11}{'data':>9}")
    for room, budget in (*BUDGETS.items(), ("benchmarks", None)):
        python = lines(room, ".py")
        over = "" if budget is None else f"{max(0, python - budget):,}"
        text = "" if budget is None else f"{budget:,}"
        print(f"{room:<12}{python:>9,}{text:>9}{over:>9}{lines(room, *PAGE_CODE):>11,}{lines(room, *DATA):>9,}")
    print(f"docs: {words():,} words, budget {DOCS:,}")


if __name__ == "__main__":
    main()
