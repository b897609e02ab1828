"""`strandline new`: what it makes passes its own test, and is the README's first program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from strandline.cli import new
from strandline.core.version import VERSION
from strandline.spark.sqlfile.program import Program
from tests.cli.conftest import ROOT, Command, environment


def test_a_project_is_made_and_its_test_passes(strandline: Command, tmp_path: Path) -> None:
    (found,) = strandline("new", tmp_path / "deep" / "page-visits", "--json").json
    home = tmp_path / "deep" / "page-visits"
    assert found == {
        "project": "page-visits", "directory": str(home),
        "files": [".gitignore", "README.md", "app.py", "requirements.txt", "test_app.py"],
    }  # fmt: skip
    assert sorted(path.name for path in home.iterdir()) == found["files"]
    assert list(home.parent.iterdir()) == [home]
    assert home.stat().st_mode & 0o777 == 0o755
    texts = {path.name: path.read_text() for path in home.iterdir()}
    assert not [name for name, text in texts.items() if re.search("@[a-z]+@", text)]
    assert texts["requirements.txt"].startswith("strandline")
    assert '"page-visits"' in texts["app.py"]
    assert "strandline status page-visits " in texts["README.md"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=home, env=environment(), capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_a_project_in_sql_is_made_and_is_right(strandline: Command, tmp_path: Path) -> None:
    """That it runs is seen by test_sqlfiles.py."""
    (found,) = strandline("new", "--sql", tmp_path / "sales", "--json").json
    assert found["files"] == [
        ".gitignore", "README.md", "orders/1.json", "orders/2.json", "orders/3.json", "requirements.txt", "shops.csv", "totals.sql",
    ]  # fmt: skip
    texts = {name: (tmp_path / "sales" / name).read_text() for name in found["files"]}
    assert not [name for name, text in texts.items() if re.search("@[a-z]+@", text)]
    assert "strandline status sales " in texts["README.md"]
    orders = [json.loads(line) for name in found["files"] if "orders/" in name for line in texts[name].splitlines()]
    assert [order["id"] for order in orders] == list(range(60))
    program, others = Program.read(tmp_path / "sales" / "totals.sql")
    assert (program.names, others) == (["orders", "shops", "totals", "cities", "results", "screen"], [])
    assert program.settings("totals.sql").name == "sales"
    said = strandline("new", "--sql", tmp_path / "other").stdout
    assert re.findall(r"^(?:next:)? +(\S+ \S+)", said, re.MULTILINE)[1:] == ["strandline run", "strandline sql"]


def test_what_is_there_is_not_touched(strandline: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("mine", "file", "link"):
        found = strandline("new", tmp_path / name)
        assert (found.code, found.stdout) == (1, "")
        assert found.stderr.startswith(f"error: {tmp_path / name} is there already\n  next step: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "mine"]
    assert list((tmp_path / "mine").iterdir()) == []
    found = strandline("new", tmp_path / "file" / "below")
    assert found.stderr.startswith(f"error: {tmp_path / 'file' / 'below'} cannot be made: ")


def test_the_requirement_is_where_this_strandline_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        record: str | None = None

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return self.record

    installed = Installed()
    monkeypatch.setattr(new, "distribution", lambda name: installed)
    assert new.requirement() == f"strandline>={VERSION}", "from the index, where this version is"
    # As the packaging guide has them: https://packaging.python.org/en/latest/specifications/direct-url/
    for record, expected in (
        ('{"url": "file:///src/strandline", "dir_info": {"editable": true}}', "strandline @ file:///src/strandline"),
        ('{"url": "https://x/s.git", "vcs_info": {"vcs": "git", "commit_id": "7921"}}',
         "strandline @ git+https://x/s.git@7921"),
    ):  # fmt: skip
        installed.record = record
        assert new.requirement() == expected

    def none(name: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(new, "distribution", none)
    assert new.requirement() == f"strandline>={VERSION}"


@pytest.mark.parametrize("name", ["7x", "a b", "é", "..", "/", "_x"])
def test_a_name_that_no_job_can_have(strandline: Command, tmp_path: Path, name: str) -> None:
    found = strandline("new", Path(tmp_path, name))
    assert (found.code, found.stdout) == (1, "")
    assert "error: a project cannot be called" in found.stderr or name == ".."
    assert list(tmp_path.iterdir()) == []


def test_half_a_project_is_not_left(strandline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    found = strandline("new", tmp_path / "visits")
    assert found.stderr.startswith(f"error: {tmp_path / 'visits'} cannot be made: No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        new.make_project(tmp_path / "visits", "visits")
    assert not list(tmp_path.iterdir())


def test_what_it_says_next_can_be_pasted(strandline: Command, tmp_path: Path) -> None:
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        said = strandline("new", "visits").stdout
    finally:
        os.chdir(before)
    assert re.findall(r"^(?:next:)? +(\S+ \S+)", said, re.MULTILINE) == ["cd visits", "strandline run", "python -m"]


def test_the_readmes_first_program_is_what_is_made(tmp_path: Path) -> None:
    new.make_project(tmp_path / "visits", "visits")
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert blocks == [(tmp_path / "visits" / "app.py").read_text()]


def test_projects_files_are_in_the_package() -> None:
    """Those that the build leaves out are missing only where it is installed."""
    listed = re.search(r"strandline = \[(.*)\]", (ROOT / "pyproject.toml").read_text().partition("package-data]")[2])
    assert '"cli/project/*"' in listed[1]
    assert {*new._FILES, *new._SQL_FILES} == {
        path.name for path in Path(new.__file__).with_name("project").iterdir() if path.is_file()
    }
