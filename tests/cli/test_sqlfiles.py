"""`strandline run totals.sql`, `explain` and the shell, as processes: what they print, and how they end."""

from __future__ import annotations

import datetime as dt
import json
import os
import pty
import select
import shutil
import sqlite3
import subprocess
import sys
from collections import defaultdict
from csv import DictReader
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Command, Outcome, environment
from tests.spark.harness import keepers
from tests.spark.pipeline import read_json

SINK = "CREATE SINK out USING console;\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def shell(text: str, *args: object, cwd: Path, **env: str) -> Outcome:
    """Run the shell with standard input from a pipe."""
    command = [sys.executable, "-m", "strandline.cli.main", "sql", *map(str, args)]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=cwd, env=environment(MASTER="local[2]", **env), timeout=240
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr)


def dips(ticks: list[dict[str, str]]) -> list[tuple[str, float, float, float, int]]:
    """Return what examples/price_dips finds: at least three prices that fall, and one that rises, within an hour."""
    found, by_symbol = [], defaultdict(list)
    for tick in sorted(ticks, key=lambda tick: tick["at"]):
        by_symbol[tick["symbol"]].append((float(tick["price"]), dt.datetime.fromisoformat(tick["at"])))
    for symbol, rows in by_symbol.items():
        start = 0
        while start < len(rows):
            end = start + 1
            while end < len(rows) and rows[end][0] < rows[end - 1][0]:
                end += 1
            is_dip = end - start >= 3 and end < len(rows) and rows[end][0] > rows[end - 1][0]
            if is_dip and rows[end][1] - rows[start][1] < dt.timedelta(hours=1):
                found.append((symbol, rows[start][0], rows[end - 1][0], rows[end][0], end - start))
                start = end
            start += 1
    return sorted(found)


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.long
def test_the_example_with_patterns_runs_and_is_previewed(tmp_path: Path, local_dir: Path) -> None:
    home = tmp_path / "price_dips"
    shutil.copytree(ROOT / "examples" / "price_dips", home, ignore=shutil.ignore_patterns("checkpoints", "dips"))
    program = home / "price_dips.sql"
    write(program, program.read_text() + f"SET parallelism = 2; SET local_dir = '{local_dir}';\n")
    command = [sys.executable, "-m", "strandline.cli.main", "run", "-q", "price_dips.sql"]
    done = subprocess.run(
        command, cwd=home, env=environment(MASTER="local[2]"), capture_output=True, text=True, timeout=240
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with (home / "ticks" / "ticks.csv").open() as file:
        expected = dips([*DictReader(file)])
    assert len(expected) > 3
    columns = ("symbol", "top", "bottom", "price", "falling")
    assert sorted(tuple(row[name] for name in columns) for row in read_json(home / "dips")) == expected
    assert keepers(local_dir) == {}
    found = shell("SELECT symbol, falling FROM dips ORDER BY symbol, at; SELECT 1 AS one", "price_dips.sql", cwd=home)
    assert found.code == 0, found.stderr
    words = [line.split() for line in found.stdout.splitlines()]
    assert sorted((row[0], int(row[1])) for row in words if len(row) == 2 and row[1].isdigit()) == sorted(
        (row[0], row[-1]) for row in expected
    )
    said = found.stderr.splitlines()
    assert said[0] == f"{len(expected)} rows"
    assert said[1].startswith("matches are those of the rows that were read: ")
    assert said[2:] == ["1 row"]


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.long
def test_what_new_makes_runs_and_is_previewed(
    process: Command, strandline: Command, tmp_path: Path, local_dir: Path
) -> None:
    home = tmp_path / "sales"
    assert strandline("new", "--sql", home).code == 0
    program = home / "totals.sql"
    ended = f"SET trigger = 'available-now'; SET parallelism = 2; SET local_dir = '{local_dir}';\n"
    write(program, program.read_text() + ended)
    command = [sys.executable, "-m", "strandline.cli.main", "run", "-q", "totals.sql"]
    done = subprocess.run(
        command, cwd=home, env=environment(MASTER="local[2]"), capture_output=True, text=True, timeout=240
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(home / "totals.db") as database:
        stored = dict(database.execute("SELECT shop, orders FROM totals"))
    database.close()
    assert stored == dict.fromkeys(("north", "east", "south", "west"), 15)
    shown = done.stdout.splitlines()
    assert shown[0] == "epoch 1: 3 rows"
    assert sum(int(line.rpartition("=")[2]) for line in shown if "city='Oslo'" in line) == 1
    assert keepers(local_dir) == {}
    found = shell(
        "SELECT city, total FROM cities WHERE city = 'Oslo';\nEXPLAIN cities;\nCREATE VIEW many AS SELECT explode(sequence(1, 200)) "
        "AS n, id FROM orders;\nSELECT n FROM many;\nINSERT INTO screen CHANGES OF totals;\nSELECT\n  oders.id FROM orders",
        "totals.sql", cwd=home,
    )  # fmt: skip
    assert found.code == 1
    assert [line.split() for line in found.stdout.splitlines() if "Oslo" in line] == [["Oslo", "1470.00"]]
    assert "view 'cities': changes, of rows by city" in found.stdout
    said = found.stderr.splitlines()
    assert said[0] == "1 row"
    assert "view 'many': rows that stay; n int, id bigint" in said
    assert "the first 100 rows; write LIMIT or WHERE to see others" in said
    assert "INSERT INTO screen is checked; a file with it is run by: strandline run FILE.SQL" in said
    at = next(
        number for number, line in enumerate(said) if line.startswith("error: standard input, line 7, column 3: ")
    )
    assert said[at + 1 : at + 3] == ["      oders.id FROM orders", "      ^"]


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.long
def test_explain_shows_each_view(process: Command, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    program = write(
        tmp_path / "totals.sql",
        f"CREATE STREAM orders (shop STRING, amount INT) USING files OPTIONS (path '{tmp_path}/in'); {SINK}"
        "CREATE VIEW large AS SELECT * FROM orders WHERE amount > 3; INSERT INTO out SELECT shop FROM large;",
    )
    found = process("explain", program, MASTER="local[2]")
    assert (found.code, found.stdout) == (0, "view 'large': rows that stay\nview 'out': rows that stay\n")


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.long
def test_explain_says_what_becomes_of_state(process: Command, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    before = (
        f"CREATE STREAM orders (shop STRING, amount INT) USING files OPTIONS (path '{tmp_path}/in'); {SINK}"
        "CREATE VIEW totals AS SELECT shop, count(*) AS n FROM orders GROUP BY shop;\n"
        "CREATE VIEW large AS SELECT count(*) AS n FROM orders WHERE amount > 3;\n"
        "INSERT INTO out CHANGES OF SELECT n FROM totals UNION ALL SELECT n FROM large;"
    )
    old = write(tmp_path / "old.sql", before)
    new = write(tmp_path / "new.sql", before.replace("n FROM orders GROUP", "n, max(amount) AS most FROM orders GROUP"))
    other = write(tmp_path / "other.sql", before.replace("> 3", "> 4"))
    found = process("explain", new, "--upgrade", old, MASTER="local[2]")
    assert found.code == 1
    assert "view totals:\n  refused  aggregate by orders.shop  (totals-" in found.stdout
    assert "    kept count(*)\n    the aggregate 'max(orders.amount)' is new: of groups" in found.stdout
    assert "view large:\n  kept  aggregate of all rows  (totals-" in found.stdout
    assert "the job cannot go on" in found.stdout
    uid = found.stderr.partition("--from-now ")[2].split()[0].rstrip(",")
    found = process("explain", new, "--upgrade", old, "--from-now", uid, "--json", MASTER="local[2]")
    assert found.code == 0
    parts = {part["view"]: part for part in json.loads(found.stdout)["parts"]}
    assert [parts[view]["outcome"] for view in ("view totals", "view large")] == ["extended", "kept"]
    text = f"EXPLAIN UPGRADE '{old}' TO '{other}';\nEXPLAIN UPGRADE '{tmp_path}/none.sql';"
    said = shell(text, old, cwd=tmp_path)
    lines = said.stdout.splitlines()
    assert "  new  aggregate of all rows" in said.stdout
    assert "  lost  aggregate of all rows" in said.stdout
    assert any(line.startswith("    before: WHERE") and "> 3" in line for line in lines)
    assert f"line 2, column 17: there is no file '{tmp_path}/none.sql'" in said.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("EXPLAIN UPGRADE 'old.sql';", ", line 1, column 17: EXPLAIN UPGRADE is for the shell"),
        ("SET nam = 'x';", ", line 1, column 5: there is no setting 'nam': did you mean 'name'?\n    SET nam = 'x';\n        ^\n"),
        (SINK, " inserts nothing into a sink: there is no job\n  next step: write INSERT INTO"),
        (SINK + "SELECT 1;", ", line 2, column 1: a query alone shows its rows only in the shell\n    SELECT 1;\n    ^\n"),
        ("CREATE SINK s USING files OPTIONS (path 'x', existing 'maybe');", "wrong value of 'existing', expected 'refuse', 'keep', 'replace'"),
        (
            "CREATE SINK s USING kafka OPTIONS (servers '${SERVERS}', topic 't'); INSERT INTO s SELECT 1;",
            ", line 1, column 13: sinks.kafka(): servers is '${SERVERS}'",
        ),
    ],
)  # fmt: skip
def test_a_wrong_file_ends_before_spark_starts(process: Command, tmp_path: Path, text: str, message: str) -> None:
    program = write(tmp_path / "totals.sql", text)
    found = process("run", program, SERVERS="no address")
    assert (found.code, found.stdout) == (1, "")
    assert found.stderr.startswith(f"error: {program}")
    assert message in found.stderr
    assert "no address" not in found.stderr


def test_a_file_whose_name_no_job_can_have(process: Command, tmp_path: Path) -> None:
    text = f"{SINK}CREATE STREAM s (a INT) USING files OPTIONS (path 'x'); INSERT INTO out TABLE s;"
    found = process("run", write(tmp_path / "my totals.sql", text))
    assert found.stderr.startswith("error: job name 'my totals': expected letters")


def test_an_sql_file_takes_no_arguments(process: Command, tmp_path: Path) -> None:
    found = process("run", write(tmp_path / "totals.sql", SINK), "today")
    assert found.code == 2
    assert "takes no arguments" in found.stderr


def test_the_shell_stops_at_the_first_error_of_a_pipe(tmp_path: Path) -> None:
    found = shell(SINK + "SET parallelism = 0;\nCREATE SINK out USING nothing", cwd=tmp_path)
    assert (found.code, found.stdout) == (1, "")
    assert found.stderr == (
        "error: standard input, line 2, column 19: parallelism is 0, expected a positive number\n"
        "    SET parallelism = 0;\n                      ^\n"
        "  next step: or FollowExecutors(), to have as many partitions as the cluster runs tasks at once\n"
    )


class Conversation:
    """The shell on a terminal."""

    def __init__(self, directory: Path) -> None:
        ours, theirs = pty.openpty()
        self._ours = ours
        given = environment(XDG_CACHE_HOME=str(directory / "cache"), TERM="dumb", COLUMNS="200")
        command = [sys.executable, "-m", "strandline.cli.main", "sql"]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=given, cwd=directory)
        os.close(theirs)
        self.seen = ""

    def type(self, text: str, until: str) -> str:
        """Type a text; return what comes up to and with another one."""
        os.write(self._ours, text.encode())
        begin = len(self.seen)
        while until not in self.seen[begin:]:
            ready, _, _ = select.select([self._ours], [], [], 60)
            assert ready, self.seen
            self.seen += os.read(self._ours, 65536).decode()
        return self.seen[begin:]

    def end(self) -> int:
        """Type the end of the input, and return the exit code."""
        os.write(self._ours, b"\x04")
        code = self.process.wait(60)
        os.close(self._ours)
        return code


def test_the_shell_on_a_terminal(tmp_path: Path) -> None:
    talk = Conversation(tmp_path)
    talk.type("", "sql> ")
    assert "a preview" in talk.type("help\n", "sql> ")
    assert "did you mean 'console'?" in talk.type("CREATE SINK here USING\nconsol;\n", "sql> ")
    talk.type("CREATE SINK here USING console; -- again\n", "sql> ")
    assert "CREATE SINK here USING files" in talk.type("CREATE SI\t here USING files\n", "  -> ")
    assert "needs the option 'path'" in talk.type(";\n", "sql> ")
    assert "INSERT INTO here" in talk.type("INSERT INTO her\t\n", "  -> ")
    assert "expected a query" in talk.type(";\n", "sql> ")
    assert talk.end() == 0
    history = tmp_path / "cache" / "strandline" / "sql_history"
    assert "CREATE SINK here USING console; -- again" in history.read_text().splitlines()
    assert history.stat().st_mode & 0o777 == 0o600
