"""The wheel has exactly the packages' files: no tests, notebooks, data, or files of an older build."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from build import ProjectBuilder
from repository import ROOT

PACKAGES = ["interp", "models", "analyses"]


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git tells which files are ours")
def test_the_wheel_has_the_files_of_the_packages_and_nothing_else(tmp_path: Path):
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *PACKAGES]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    files = {name for name in names if name and (ROOT / name).exists()}
    for name in [*files, "pyproject.toml", "README.md", "LICENSE"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    with ZipFile(ProjectBuilder(tmp_path).build("wheel", tmp_path / "dist")) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == files


def test_the_oldest_versions_that_are_tested_are_the_lower_bounds():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = [re.sub(">=([^,]+).*", r"==\1", each) for each in dependencies]
    assert (ROOT / "constraints-oldest.txt").read_text().splitlines()[1:] == bounds
