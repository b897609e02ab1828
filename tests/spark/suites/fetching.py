"""Where suites that others wrote are put: python -m tests.spark.suites.fetching [flink|risingwave|arroyo …] [--from DIR]

Repositories are fetched with git at the commit that is named here, only the folders of their tests. Nothing of them is
part of this repository.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parents[3] / "build" / "suites"


class UnavailableSuiteError(Exception):
    """A suite cannot be fetched here."""


@dataclass(frozen=True)
class Repository:
    """A public repository, and the folders of it that are a suite."""

    url: str
    commit: str
    folders: tuple[str, ...]


REPOSITORIES = {
    "risingwave": Repository(
        "https://github.com/risingwavelabs/risingwave", "8eb066c9812c0ed0c7f5e5248014348db074a2bd", ("e2e_test/streaming", "e2e_test/over_window")
    ),
    "arroyo": Repository(
        "https://github.com/ArroyoSystems/arroyo", "76f7530f4a55d8b2182b639a8e0dee84d92a35aa", ("crates/arroyo-sql-testing",)
    ),
}  # fmt: skip


def clone(name: str) -> None:
    """Fetch a repository's folders."""
    repository, home = REPOSITORIES[name], HOME / name
    if shutil.which("git") is None:
        raise UnavailableSuiteError(f"{repository.url} is fetched with git, which is not installed")
    home.mkdir(parents=True, exist_ok=True)
    for command in (
        ["init", "-q"],
        ["sparse-checkout", "set", *repository.folders],
        ["fetch", "-q", "--depth", "1", "--filter=blob:none", repository.url, repository.commit],
        ["checkout", "-q", repository.commit],
    ):
        done = subprocess.run(
            ["git", "-C", str(home), *command], capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode:
            raise UnavailableSuiteError(
                f"{repository.url} at {repository.commit} cannot be fetched ({done.stderr.strip()[-300:]}): "
                f"without a network, copy {', '.join(repository.folders)} of it somewhere, and give --from DIR"
            )


def main() -> None:
    from tests.spark.suites import flinkjars

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", default=["flink", *REPOSITORIES])
    parser.add_argument("--from", dest="origin", type=Path, help="a directory with the suite, in place of the network")
    given = parser.parse_args()
    for name in given.suites:
        if given.origin is not None and name == "flink":
            flinkjars.read(given.origin)
        elif given.origin is not None:
            shutil.copytree(given.origin, HOME / name, dirs_exist_ok=True)
        elif name == "flink":
            flinkjars.fetch()
        else:
            clone(name)


if __name__ == "__main__":
    try:
        main()
    except UnavailableSuiteError as error:
        raise SystemExit(str(error)) from None
