"""Imports point one way, and what a user did not ask for is not loaded."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from models.families import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {"interp": {"interp"}, "models": {"interp", "models"}, "analyses": {"interp", "models", "analyses"}}
QUESTIONS = {"position", "cross_attention", "part_of_speech", "coreference", "probe"}
HEAVY = ("transformers", "transformer_lens", "matplotlib", "seaborn", "pandas", "jinja2", "huggingface_hub")


def imported(file: Path) -> set[str]:
    """Dotted names that a file imports, at its top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
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
        packages = {name.split(".")[0] for name in imported(file)}
        assert packages & {"interp", "models", "analyses", "notebooks", "tests"} <= MAY_IMPORT[package], file


def test_questions_import_none_of_each_other():
    for question in QUESTIONS:
        alone = ROOT / "analyses" / f"{question}.py"
        files = [alone] if alone.exists() else sorted((ROOT / "analyses" / question).glob("*.py"))
        assert files, question
        others = {f"analyses.{other}" for other in QUESTIONS - {question}}
        for file in files:
            assert not imported(file) & others, file


def words_of(file: Path) -> set[str]:
    """Names and strings of a file's code; not its docstrings and comments, which may cite."""
    tree = ast.parse(file.read_text())
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
    docs = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            found |= {*re.findall(r"\w+", node.value.lower())}
        for name in ("id", "attr", "name", "arg"):
            if isinstance(value := getattr(node, name, None), str):
                found |= {*value.lower().split("_"), value.lower()}
    return found


@pytest.mark.parametrize("package", ["interp", "analyses"])
def test_families_differ_by_their_parts_and_are_named_in_models_alone(package):
    families = {*FAMILIES} - {"interp"}  # our own format is called as the command is
    assert len(families) > 20
    for file in sorted((ROOT / package).rglob("*.py")):
        assert not words_of(file) & families, file
    assert len((ROOT / "interp" / "transformer.py").read_text().splitlines()) < 350


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("statement", ["import interp", "import models"])
def test_importing_is_light(statement):
    loaded = loaded_by(statement)
    assert "torch" in loaded
    assert not loaded & set(HEAVY)


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
