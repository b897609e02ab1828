"""`strandline state patch`: what it can say, and that nothing is there unless all of it fits."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from strandline.cli.rowfiles import value_from
from strandline.format.manifest import MANIFEST, Manifest, StateInfo
from strandline.snapshot.savepoints.builder import SavepointBuilder
from strandline.types.datatypes import parse_schema, parse_type
from tests.cli.conftest import Command
from tests.snapshot.exporting import exported_here
from tests.snapshot.stateful import checkpoint_of
from tests.snapshot.strategies import operator_of
from tests.snapshot.test_building import OPERATOR, SEEN, place, seen

__all__ = ["exported_here"]
KINDS = [
    "boolean", "int", "double", "decimal(20,2)", "string", "binary", "date", "timestamp", "timestamp_ntz", "array<int>",
    "map<int,string>", "struct<a:double,b:array<date>>",
]  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint of two partitions."""
    return str(checkpoint_of(tmp_path_factory.mktemp("job")))


def made(out: Path) -> Manifest:
    return MANIFEST.decode((out / "_metadata").read_bytes(), "")


def test_all_kinds_of_change_at_once(strandline: Command, url: str, tmp_path: Path) -> None:
    found = strandline(
        "state", "patch", url, tmp_path / "out", "--json", "--max-parallelism", 512, "--drop", "op.tags",
        "--rename", "op=detect", "--rename", "op.top=best", "--delete", "op.short=value >= 50 -- of these",
        "--transform", "op.value=SELECT k, r.value + p.value.a + 0.0 AS value FROM rows r JOIN op.pair p USING (k)",
    )  # fmt: skip
    assert (found.code, found.stderr) == (0, "")
    (data,) = found.json
    assert data["operators"] == [{"uid": "detect", "max_parallelism": 512}]
    states = {one["table"]: (one["was"], one["action"], one["rows"]) for one in data["states"]}
    assert states["detect.value"] == ("op.value", "changed", 60)
    assert states["detect.best"] == ("op.top", "regrouped", 60)
    assert states["detect.short"] == ("op.short", "changed", 50)
    assert "detect.tags" not in states
    assert data["bytes"] == made(tmp_path / "out").total_bytes
    out = str(tmp_path / "out")
    (row,) = strandline("state", "show", out, "detect.value", "--key", "k7", "--json").json
    assert row["value"] == 14
    assert strandline("snapshots", "verify", out).code == 0
    assert "is there already" not in strandline("state", "tables", out).stdout


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_what_show_has_written_can_be_given_back(strandline: Command, url: str, tmp_path: Path, form: str) -> None:
    given = []
    for state in ("pair", "history", "by_kind", "short", "mean"):
        path = tmp_path / f"{state}.{form}"
        if form == "parquet":
            strandline("state", "show", url, f"op.{state}", "--parquet", path)
        else:
            path.write_text(strandline("state", "show", url, f"op.{state}", f"--{form}").stdout)
        given += ["--rows", f"op.{state}={path}"]
    assert strandline("state", "patch", url, tmp_path / "out", *given).code == 0
    assert strandline("snapshots", "diff", url, tmp_path / "out", "--exit-code").code == 0


def test_every_type_is_read_as_it_is_shown(strandline: Command, tmp_path: Path) -> None:
    fields = ",".join(f"c{n}:{kind}" for n, kind in enumerate(KINDS))
    state = StateInfo(name="all", kind="value", value_type=f"struct<{fields}>")
    operator = operator_of(parse_schema("k int"), state)
    values = [
        {"c0": True, "c1": -5, "c2": float("inf"), "c3": "-1.50", "c4": "ü,\"\n", "c5": "00ff", "c6": "2024-02-29",
         "c7": "2024-02-29 12:00:00.000001Z", "c8": "1999-01-01 00:00:00", "c9": [1, None], "c10": {"7": "x"},
         "c11": {"a": 1, "b": ["2024-01-01"]}},
        dict.fromkeys(f"c{n}" for n in range(len(KINDS))),
    ]  # fmt: skip
    lines = [json.dumps({"k": n, "value": value}) for n, value in enumerate(values)]
    (tmp_path / "all.json").write_text("\n".join(lines))
    with SavepointBuilder(place(tmp_path, "empty"), "job", [operator]) as builder:
        builder.finish()
    for form, source in (("json", "all.json"), ("csv", "again.json"), ("parquet", "again.csv")):
        out = tmp_path / f"from-{form}"
        found = strandline("state", "patch", tmp_path / "empty", out, "--rows", f"op.all={tmp_path / source}")
        assert found.code == 0, found.stderr
        shown = strandline("state", "show", out, "op.all", "--json").stdout
        (tmp_path / "again.json").write_text(shown)
        (tmp_path / "again.csv").write_text(strandline("state", "show", out, "op.all", "--csv").stdout)
    (first, second) = (json.loads(line)["value"] for line in shown.splitlines())
    assert first["c3"] == "-1.50"
    assert (first["c5"], first["c10"], first["c11"]) == ("00ff", [[7, "x"]], {"a": 1.0, "b": ["2024-01-01"]})
    assert set(second.values()) == {None}
    assert len({json.dumps(one.operators[0].tables, default=str) for one in map(made, tmp_path.glob("from-*"))}) == 1


def test_texts_that_stand_for_nothing() -> None:
    for value, kind in (
        ("x", "int"),
        ("yes", "boolean"),
        ("2024", "date"),
        ("zz", "binary"),
        ({"b": 1}, "struct<a:int>"),
    ):
        with pytest.raises((ValueError, KeyError)):
            value_from(value, parse_type(kind))


def test_dots_in_names(strandline: Command, tmp_path: Path) -> None:
    other = structs.replace(OPERATOR, uid="op.seen", states=[SEEN])
    with SavepointBuilder(place(tmp_path, "in"), "job", [OPERATOR, other]) as builder:
        builder.write("op.seen", "seen", [seen(("a", 1, 1))])
        builder.finish()
    asked = ["state", "patch", tmp_path / "in"]
    unclear = strandline(*asked, tmp_path / "no", "--drop", "op.seen")
    assert (
        "drop names 'op.seen', which may be the state 'seen' of operator 'op' or the operator 'op.seen'"
        in unclear.stderr
    )
    assert '''next step: write it with quotes: "op"."seen" or "op.seen"''' in unclear.stderr
    assert strandline(*asked, tmp_path / "a", "--drop", '"op.seen"').code == 0
    assert [op.uid for op in made(tmp_path / "a").operators] == ["op"]
    assert strandline(*asked, tmp_path / "b", "--drop", '"op"."seen"').code == 0
    assert [(op.uid, len(op.states)) for op in made(tmp_path / "b").operators] == [("op", 1), ("op.seen", 1)]
    assert strandline(*asked, tmp_path / "c", "--delete", "op.seen.seen=true").code == 0
    assert made(tmp_path / "c").operators[1].tables == {}


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        ([], 1, "nothing is to be changed"),
        (["--delete", "op.gone=true"], 1, "there is no state 'op.gone'"),
        (["--delete", "op.value=nope > 1"], 1, "'op.value': the query failed: Binder Error"),
        (["--delete", "op.value"], 2, "expected NAME="),
        (["--delete", "op.value=true", "--rows", "op.value=x.csv"], 1, "no such file"),
        (["--delete", "op.value=true", "--transform", "op.value=FROM rows"], 1, "is to be changed in two ways"),
        (["--transform", "op.value=SELECT k, 0.5 AS value FROM rows"], 1, "column 'value' is .* cannot become int64"),
        (["--transform", "op.pair=SELECT k, {'a': 1, 'text': 'x'} AS value FROM rows"], 1, "are a, text, and are to be a, s "),
        (["--transform", "op.value=SELECT k, 1 AS value FROM rows UNION ALL FROM rows SELECT k, 2"], 1, "more than one row"),
        (["--transform", "op.value=SELECT * REPLACE (k || 'x' AS k) FROM rows"], 1, "leave the column out: key groups"),
        (["--max-parallelism", "4x"], 2, "expected one number for all, or UID=N"),
        (["--max-parallelism", "4", "--max-parallelism", "op=4"], 2, "expected one number for all"),
    ],
)  # fmt: skip
def test_what_does_not_fit(
    strandline: Command, url: str, tmp_path: Path, given: list[str], code: int, why: str
) -> None:
    found = strandline("state", "patch", url, tmp_path / "out", *given)
    assert found.code == code
    assert re.search(why, " ".join(found.stderr.split()))
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.json", '{"k": "a", "value": 1}\n{"k": "b", "value": "x"}', "a.json: line 2, column 'value' (a bigint) does not fit: 'x'"),
        ("a.json", '{"k": "a", "value": 1.5}', "line 1, column 'value' (a bigint) does not fit: 1.5"),
        ("a.json", "[1]", "line 1 is no JSON object"),
        ("a.csv", "k,value\na,1\nb", "line 3 has 1 values, expected 2: k, value"),
        ("a.csv", "k,value,more\na,1,2", "its table has the columns key_group, k, value; the rows have k, value, more"),
        ("a.json", '{"k": "a", "value": 1}\n{"k": "a", "value": 2}', "the key k='a' does not fit: there is more than one row"),
        ("a.parquet", "no", "cannot be read as Parquet"),
        ("a.csv", "k,value\n\udcff,1", "a.csv: cannot be read: 'utf-8' codec"),
        ("a.txt", "no", "expected a file that ends with .parquet, .csv, .json"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit(strandline: Command, url: str, tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_text(text, errors="surrogateescape")
    found = strandline("state", "patch", url, tmp_path / "out", "--rows", f"op.value={tmp_path / name}")
    assert (found.code, why in found.stderr) == (1, True), found.stderr
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [name]


def test_a_parquet_file_of_somebody_else(strandline: Command, url: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"value": pa.array([5], pa.int8()), "k": ["new"]}), tmp_path / "rows.parquet")
    found = strandline("state", "patch", url, tmp_path / "out", "--rows", f"op.value={tmp_path / 'rows.parquet'}")
    assert found.code == 0
    assert strandline("state", "show", tmp_path / "out", "op.value", "--json").json[0]["value"] == 5


def test_a_cell_may_be_large(strandline: Command, url: str, tmp_path: Path) -> None:
    (tmp_path / "tags.csv").write_text(f'k,value\na,"{list(range(40_000))}"\n')
    assert strandline("state", "patch", url, tmp_path / "out", "--rows", f"op.tags={tmp_path / 'tags.csv'}").code == 0
    (row,) = strandline("state", "show", tmp_path / "out", "op.tags", "--json").json
    assert row["value"] == list(range(40_000))
