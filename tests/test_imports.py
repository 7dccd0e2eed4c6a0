"""Imports point one way, and load nothing that the user did not ask for."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from repository import ROOT

from models.families import FAMILIES

MAY_IMPORT = {"interp": {"interp"}, "models": {"interp", "models"}, "analyses": {"interp", "models", "analyses"}}
QUESTIONS = {"position", "part_of_speech", "coreference", "probe"}
HEAVY = {
    *("transformers", "transformer_lens", "matplotlib", "seaborn", "pandas", "jinja2", "huggingface_hub"),
    *("scipy.stats", "torch.distributed.tensor", "datasets", "pyarrow"),
}


@cache
def nodes(file: Path) -> list[ast.AST]:
    """The imports and calls of a file, parsed once."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call)
    return [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)]


def imported(file: Path) -> set[str]:
    """Dotted names that a file imports, at its top or inside functions."""
    names: set[str] = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_arrows_point_one_way(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for file in files:
        tops = {name.split(".")[0] for name in imported(file)}
        assert tops & {"interp", "models", "analyses", "notebooks", "tests"} <= MAY_IMPORT[package], file


def modules() -> dict[str, Path]:
    """The packages' files by dotted name; `__init__.py` has its folder's name."""
    result = {}
    for file in (each for package in MAY_IMPORT for each in sorted((ROOT / package).rglob("*.py"))):
        parts = file.relative_to(ROOT).with_suffix("").parts
        result[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return result


def arrows() -> dict[str, set[str]]:
    """The modules that each module imports: at its top, in functions, or only for a type checker.

    `from a.b import c` imports the module `a.b.c` if it exists, else a name from `a.b`. Importing `a.b.c` also imports
    `a` and `a.b`, unless they contain the importer, which runs only because they are already loaded.
    """
    providers, result = modules(), {}
    for name, file in providers.items():
        result[name] = set()
        for node in nodes(file):
            if isinstance(node, ast.ImportFrom):
                targets = {f"{node.module}.{alias.name}" for alias in node.names}
                targets = {target if target in providers else str(node.module) for target in targets}
            else:
                targets = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            above = {package for target in targets for package in packages(target)}
            result[name] |= (targets | (above - packages(name))) & providers.keys() - {name}
    return result


def packages(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts))}


def test_no_module_imports_itself_in_a_circle():
    TopologicalSorter(arrows()).prepare()  # its error names the cycle


def test_analyses_is_a_house_of_eight_floors():
    """A room (a folder or a loose module) is on a higher floor than all that it imports."""

    def rooms(names: set[str]) -> set[str]:
        parts = (name.split(".") for name in names)
        return {part[1] if len(part) > 1 else "" for part in parts if part[0] == "analyses"}

    below: dict[str, set[str]] = {}
    for name, imports in arrows().items():
        for room in rooms({name}):
            below[room] = below.get(room, set()) | rooms(imports - {"analyses"}) - {room}

    @cache
    def floor(room: str) -> int:
        return 1 + max(map(floor, below[room]), default=0)

    assert max(map(floor, below)) <= 8
    assert len([*(ROOT / "analyses").glob("*.py")]) <= 12


def test_no_two_modules_share_a_file_name():
    names = Counter(file.name for file in modules().values() if file.name != "__init__.py")
    assert not {name for name, count in names.items() if count > 1}


def test_questions_import_none_of_each_other():
    for question in QUESTIONS:
        alone = ROOT / "analyses" / f"{question}.py"
        files = [alone] if alone.exists() else sorted((ROOT / "analyses" / question).glob("*.py"))
        assert files, question
        others = {f"analyses.{name}" for name in QUESTIONS - {question}}
        for file in files:
            assert not imported(file) & others, file


def words_of(file: Path) -> set[str]:
    """Names and strings in a file's code, without docstrings and comments, which may cite."""
    parts = [*ast.walk(ast.parse(file.read_text()))]
    bodies = (node.body for node in parts if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
    docs = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    words: set[str] = set()
    for node in parts:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            words |= {*re.findall(r"\w+", node.value.lower())}
        for name in ("id", "attr", "name", "arg"):
            if isinstance(value := getattr(node, name, None), str):
                words |= {*value.lower().split("_"), value.lower()}
    return words


@pytest.mark.parametrize("package", ["interp", "analyses"])
def test_families_differ_by_their_parts_and_are_named_in_models_alone(package):
    families = {*FAMILIES} - {"interp"}  # our own format has the command's name
    assert len(families) > 20
    for file in sorted((ROOT / package).rglob("*.py")):
        assert not words_of(file) & families, file
    assert len((ROOT / "interp" / "transformer.py").read_text().splitlines()) < 350


def distributions_of(folder: str) -> set[str]:
    """Distributions that a folder's files import, by a statement or by name."""
    calls = {"import_module", "find_spec", "importorskip"}
    names: set[str] = set()
    for file in (ROOT / folder).rglob("*.py"):
        names |= imported(file)
        for node in nodes(file):
            if isinstance(node, ast.Call) and {getattr(node.func, name, "") for name in ("attr", "id")} & calls:
                names |= {str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant)}
    ours = {path.stem for path in (*ROOT.iterdir(), *(ROOT / "tests").rglob("*.py"))}
    tops = {name.split(".")[0] for name in names} - ours - sys.stdlib_module_names
    providers = packages_distributions()
    return {plain(providers.get(top, [top])[0]) for top in tops}


def plain(name: str) -> str:
    """A distribution's normalised name."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=\[; ]", name)[0]).lower()


def test_the_package_depends_on_what_it_imports_and_on_nothing_else():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core, extras = {*map(plain, project["dependencies"])}, project["optional-dependencies"]
    optional = {plain(each) for name in ("lens", "minilm", "int8", "cluster", "datasets") for each in extras[name]}
    test = {*map(plain, extras["test"])}
    imports = set.union(*map(distributions_of, MAY_IMPORT))
    assert imports <= core | optional, "the package imports what it does not depend on"
    assert core <= imports, "what only tests import is in the extra `test`"
    others = set.union(*map(distributions_of, ("tests", "benchmarks", "notebooks")))
    assert others <= core | optional | test, "tests import what no extra brings"
    # tools that run beside the code and are never imported
    assert test - others == {"pytest-xdist", "ruff", "pyright", "ipykernel", "pre-commit"}


def test_importing_is_light_and_loading_a_model_does_not_bring_in_torchs_compiler():
    code = "import sys, models; print(*sys.modules); models.load('default'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    imported, loaded = (set(line.split()) for line in done.stdout.splitlines())
    assert {"torch", "interp"} <= imported
    assert not imported & HEAVY
    assert not {name for name in loaded if name.startswith(("torch._dynamo", "sympy"))}


@pytest.mark.slow
def test_the_installed_command_is_not_shadowed_by_folders_of_the_same_names(tmp_path):
    for name in ("models", "analyses", "interp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the folder of the user was imported')\n")
    command = Path(sys.executable).with_name("interp")
    if not command.exists():
        pytest.skip("needs the installed command `interp`, which is not there")
    done = subprocess.run(
        [command, "report", "--model", "nowhere"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith('interp: no model directory "nowhere"')
