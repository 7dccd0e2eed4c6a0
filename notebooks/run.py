"""Do the notebooks still run? Executes every one in this folder, or those that are named.

    python notebooks/run.py                       run them in place, keeping what they show
    python notebooks/run.py --check               run copies in a temporary folder; the committed ones stay as they are
    python notebooks/run.py --check first_look    run copies of these alone

Ends with exit code 1 and a line for each failure: a cell that raises, a committed cell that was never run, a file too
large to commit. Cells run in the Python that runs this script, whatever kernels are installed.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parent
LARGEST = 1 << 20  # bytes of a committed notebook
_TIMEOUT = 300  # seconds a cell
_QUIET = ["--HistoryManager.enabled=False", "--log-level=ERROR"]  # no history file; no warning about local sockets
_KERNEL = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", *_QUIET]


class _ThisPython(KernelSpecManager):
    """Knows one kernel: the interpreter that runs this script."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(argv=_KERNEL, display_name="Python 3", language="python")


def execute(source: Path, target: Path) -> Iterator[str]:
    """Run `source` and write it with its outputs to `target`; on failure nothing is written and its line is yielded."""
    notebook = nbformat.read(source, as_version=4)
    kernels = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=_ThisPython())
    folder = {"metadata": {"path": str(target.parent)}}
    client = NotebookClient(notebook, km=kernels, timeout=_TIMEOUT, resources=folder)
    try:
        client.execute()
    except CellExecutionError as error:
        number = next(at for at, cell in enumerate(notebook.cells, 1) if _raised(cell))
        yield f"{source.name}, cell {number}: {error.ename}: {error.evalue}"
    except (RuntimeError, TimeoutError) as error:  # the kernel did not start, died, or took too long
        yield f"{source.name}: {' '.join(str(error).split())[:200]}"
    else:
        notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        for cell in notebook.cells:
            cell.metadata = {}  # execution times
            if "outputs" in cell:  # what other libraries warn of, with the paths of this machine
                cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
        nbformat.write(notebook, target)


def _raised(cell: nbformat.NotebookNode) -> bool:
    return any(output.output_type == "error" for output in cell.get("outputs", ()))


def complaints(path: Path) -> Iterator[str]:
    """Why a notebook should not be committed as it is."""
    if path.stat().st_size > LARGEST:
        yield f"{path.name}: {path.stat().st_size:,} bytes, more than {LARGEST:,}: draw smaller figures"
    for number, cell in enumerate(nbformat.read(path, as_version=4).cells, 1):
        if cell.cell_type == "code" and cell.source.strip() and (cell.execution_count is None or _raised(cell)):
            yield f"{path.name}, cell {number}: never run, or it raised: python notebooks/run.py runs it"


def main(arguments: list[str]) -> int:
    """The exit code."""
    check, names = arguments[:1] == ["--check"], [name for name in arguments if name != "--check"]
    paths = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
    if not paths.keys() >= {*names}:
        print(f"expected --check, or some of {', '.join(paths)}; got {' '.join(arguments)}", file=sys.stderr)
        return 2
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        for path in [paths[name] for name in names] or paths.values():
            print(path.name, flush=True)
            raised = [*execute(path, Path(scratch) / path.name if check else path)]
            failures += raised or complaints(path)
    print(*failures, sep="\n", end="\n" if failures else "", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
