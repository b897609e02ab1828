"""The wheel: nothing of the source tree is missing in it, and what is installed from it works by itself."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from strandline.core.version import VERSION

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "strandline"
STATIC = SOURCES / "ui" / "static"
pytestmark = pytest.mark.long


def files_below(directory: Path) -> set[str]:
    """Paths relative to a directory, without what Python compiles."""
    paths = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if "__pycache__" not in path.parts}


def environment(**more: str) -> dict[str, str]:
    """An environment in which nothing of the checkout is found: sessions of other tests leave their Python in it."""
    ours = ("PYTHON", "PYSPARK_", "SPARK_", "STRANDLINE_", "MASTER")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


def run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment(), capture_output=True, text=True, check=False, timeout=240
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: setuptools leaves its own files beside the sources."""
    home = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", home / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, home)
    # What is installed for development builds it without a network; an older one is not touched.
    is_new = int(version("setuptools").split(".")[0]) >= 77
    isolation = ["--no-build-isolation"] if is_new else []
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", *isolation, "-w", home / "dist", home)
    (built,) = (home / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a new environment with the wheel; only other packages are those of this environment."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    (packages,) = home.glob("lib/python*/site-packages")
    paths = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    # Path files there, as that of an editable installation, are not read.
    (packages / "others.pth").write_text("\n".join(paths) + "\n")
    place = run(python, "-c", "import strandline; print(strandline.__file__)", cwd=home).strip()
    assert Path(place) == packages / "strandline" / "__init__.py"
    return home / "bin"


def test_it_has_every_file_of_the_source_tree_and_no_other(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if name.startswith("strandline/")} == {
        f"strandline/{each}" for each in files_below(SOURCES)
    }
    # Type checkers do not look at types without it.
    assert "strandline/py.typed" in names
    about = f"strandline-{VERSION}.dist-info/"
    others = {name.removeprefix(about) for name in names if not name.startswith("strandline/")}
    assert others == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}


def test_licences_of_what_is_not_ours_are_in_it(wheel: Path) -> None:
    names = {
        name.removeprefix("strandline/ui/static/vendor/")
        for name in zipfile.ZipFile(wheel).namelist()
        if "/vendor/" in name
    }
    libraries = {name.partition(".")[0].partition("-")[0] for name in names if name.endswith((".js", ".css"))}
    assert (
        libraries
        == {name.removesuffix(".LICENSE") for name in names if name.endswith(".LICENSE")}
        >= {"preact", "uplot"}
    )


def test_the_command_runs(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "strandline", "--version", cwd=tmp_path) == f"strandline {VERSION}\n"
    for command in ("top", "ui", "new", "run", "status"):
        assert "Usage: strandline" in run(installed / "strandline", command, "--help", cwd=tmp_path)
    assert "no job runs here" in run(installed / "strandline", "top", "--once", "--local-dir", tmp_path, cwd=tmp_path)


@contextmanager
def process(*command: object, cwd: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [str(word) for word in command], cwd=cwd, env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    ) as started:  # fmt: skip
        try:
            yield started
        finally:
            started.kill()


def test_the_page_is_served_from_it(installed: Path, tmp_path: Path, local_dir: Path) -> None:
    with process(installed / "strandline", "ui", "--port", 0, "--local-dir", local_dir, cwd=tmp_path) as server:
        address = server.stdout.readline().strip()
        base, _, token = address.partition("?token=")
        cookie = f"strandline-{base.rstrip('/').rpartition(':')[2]}={token}"

        def get(path: str) -> bytes:
            request = urllib.request.Request(base + path, headers={"cookie": cookie})
            with urllib.request.urlopen(request, timeout=20) as answer:
                return bytes(answer.read())

        assert get("") == (STATIC / "index.html").read_bytes()
        for name in files_below(STATIC):
            assert get(name) == (STATIC / name).read_bytes(), name
        assert f'"version":"{VERSION}"'.encode() in get("api/jobs")
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 143


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_new_project_passes_its_test_and_runs(installed: Path, tmp_path: Path, local_dir: Path) -> None:
    run(installed / "strandline", "new", "visits", cwd=tmp_path)
    home = tmp_path / "visits"
    assert "1 passed" in run(installed / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=home)
    with process(installed / "strandline", "run", "app.py", cwd=home, TMPDIR=str(local_dir)) as driver:
        assert driver.stdout is not None
        seen = []
        for line in driver.stdout:
            seen.append(line)
            if line.startswith("  user='user-"):
                break
        else:
            pytest.fail("".join(seen))
        # Keepers and workers run what is installed, too.
        for words in processes(local_dir):
            assert str(ROOT / "src") not in words
        driver.terminate()
        seen += driver.stdout.readlines()
        assert driver.wait(90) == 143, seen
    assert not re.search("Traceback|log4j|WARN ", "".join(seen)), seen
    assert list((home / "checkpoints" / "visits").iterdir())


def processes(directory: Path) -> list[str]:
    lines = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(directory).encode() in words:
            lines.append(words.decode(errors="replace"))
    return lines
