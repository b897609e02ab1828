"""`strandline state`: tables, rows of a key, SQL, in each form of output."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.cli.rows import print_rows
from tests.cli.conftest import Command
from tests.snapshot.stateful import checkpoint_of


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job's folder, with one checkpoint of two partitions."""
    return str(checkpoint_of(tmp_path_factory.mktemp("job")).parent)


def test_tables(strandline: Command, url: str) -> None:
    found = strandline("state", "tables", url)
    assert (found.code, found.stderr) == (0, "")
    (line,) = [line.split() for line in found.stdout.splitlines() if "op.history" in line]
    assert line[:3] == ["op.history", "list", "key_group"]
    first = strandline("state", "tables", url, "--json").json[0]
    assert (first["table"], first["columns"]["value"]) == ("op.value", "bigint")


def test_the_rows_of_a_key(strandline: Command, url: str) -> None:
    found = strandline("state", "show", url, "op.pair", "--key", "k7", "--json")
    assert found.json == [{"key_group": 24, "k": "k7", "value": {"a": 7, "s": "1"}}]
    assert strandline("state", "show", url, "op.pair", "--key", "absent", "--json").stdout == ""
    wrong = strandline("state", "show", url, "op.pair", "--key", "k7", "--key", "1")
    assert wrong.code == 1
    assert "a key has 1 columns, k string; got 2 values" in wrong.stderr


def test_a_table_in_each_form(strandline: Command, url: str, tmp_path: Path) -> None:
    people = strandline("state", "show", url, "top")
    assert sum(" k" in line for line in people.stdout.splitlines()) == 21
    assert "only the first 20 rows" in people.stderr
    assert len(strandline("state", "show", url, "top", "--json").json) == 60
    assert len(strandline("state", "show", url, "top", "--json", "--limit", 7).json) == 7
    csv = strandline("state", "show", url, "op.short", "--csv", "--limit", 1).stdout.splitlines()
    assert csv == ['"key_group","k","value","expires_at"', '4,"k35",35,"2023-11-14 23:13:20.000000Z"']
    out = tmp_path / "top.parquet"
    assert strandline("state", "show", url, "top", "--parquet", out).stderr == f"{out}: 60 rows\n"
    assert pq.read_table(out).num_rows == 60
    again = strandline("state", "show", url, "top", "--parquet", out)
    assert (again.code, "is there already" in again.stderr) == (1, True)
    both = strandline("state", "show", url, "top", "--parquet", out, "--csv")
    assert (both.code, "give one of them" in both.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == [out]


def test_metadata(strandline: Command, url: str) -> None:
    assert strandline("state", "show", url, "metadata.operators", "--json").json[0]["parallelism"] == 2
    assert strandline("state", "show", url, "metadata.operators", "--key", "x").code == 2


def test_sql(strandline: Command, url: str, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    sql = "SELECT count(*) AS n, sum(value.total) AS total FROM op.mean"
    assert strandline("state", "query", url, sql, "--csv").stdout.splitlines() == ['"n","total"', "60,3540"]
    out = tmp_path / "of.parquet"
    assert strandline("state", "query", url, "FROM top LIMIT 3", "--parquet", out).code == 0
    assert pq.read_table(out).num_rows == 3
    wrong = strandline("state", "query", url, "FROM nothing")
    assert wrong.code == 1
    assert wrong.stderr.startswith("error: the query failed: Catalog Error")


def test_values_of_any_type_as_text(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    late = pa.array([(1 << 62), None]).view(pa.timestamp("us", "UTC"))
    rows = pa.record_batch(
        {
            "late": late,
            "bytes": pa.array([b"\xff\0", None]),
            "map": pa.array([[(1, 2.5)], None], pa.map_(pa.int32(), pa.float64())),
            "named": pa.array([[("a", float("nan"))], []], pa.map_(pa.string(), pa.float64())),
            "list": pa.array([[{"x": None}], None]),
            "text": ["a,b", ""],
        }
    )
    print_rows(rows.schema, [rows], json=True, csv=False, parquet=None)
    first, second = capfdbinary.readouterr().out.splitlines()
    assert first == (
        b'{"late": "148108-07-06 14:00:27.387904Z", "bytes": "ff00", "map": [[1, 2.5]], "named": {"a": "NaN"}, '
        b'"list": [{"x": null}], "text": "a,b"}'
    )
    assert second.startswith(b'{"late": null, "bytes": null, "map": null, "named": {}')
    print_rows(rows.schema, [rows], json=False, csv=True, parquet=None)
    found = capfdbinary.readouterr().out.splitlines()
    assert found[1] == (
        b'"148108-07-06 14:00:27.387904Z","ff00","[[1, 2.5]]","{""a"": ""NaN""}","[{""x"": null}]","a,b"'
    )
    assert found[2] == b',,,"{}",,""'
