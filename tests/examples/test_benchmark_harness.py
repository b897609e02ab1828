"""The benchmarks' own arithmetic: a wrong digest or throughput would make every figure worthless."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import _papers, latency
from benchmarks._clients import Reader, client
from benchmarks._counting import KEYS, MULTIPLIER, check_state, expected_digest, state_digest
from benchmarks._ends import Files
from benchmarks._harness import EpochCost, emit, run_epochs, scratch, spark_epochs, steady_rows_per_second
from strandline.checkpoint.history import Phases, SinkStats


@pytest.mark.parametrize("rows", [1, 999_999, 1_000_000, 1_000_001, 2_345_678])
def test_expected_digest_is_that_of_counting_row_by_row(rows):
    values = np.arange(rows, dtype=np.int64)
    row_keys = values * MULTIPLIER % KEYS
    counts = np.bincount(row_keys, minlength=KEYS)
    sums = np.zeros(KEYS, dtype=np.int64)
    np.add.at(sums, row_keys, values)
    there = np.flatnonzero(counts)
    assert state_digest(there, counts[there], sums[there]) == expected_digest(rows)


def test_digest_ignores_order_and_sees_every_column():
    keys, counts, sums = np.array([1, 2, 3]), np.array([4, 5, 6]), np.array([7, 8, 9])
    digest = state_digest(keys, counts, sums)
    assert state_digest(keys[::-1], counts[::-1], sums[::-1]) == digest
    changed = [
        state_digest(keys + 1, counts, sums),
        state_digest(keys, counts[::-1], sums),
        state_digest(keys, counts, sums[::-1]),
        state_digest(keys[:2], counts[:2], sums[:2]),
    ]
    assert len({digest, *changed}) == 5


def test_a_wrong_state_fails_the_benchmark():
    check_state("mine", expected_digest(10), 10)
    with pytest.raises(SystemExit, match="mine: wrong final state after 11 rows"):
        check_state("mine", expected_digest(10), 11)


def test_throughput_leaves_the_warm_up_out():
    epochs = [EpochCost(10, 9_000), EpochCost(1_000, 400), EpochCost(1_000, 600)]
    assert steady_rows_per_second(epochs, 1) == 2_000
    with pytest.raises(ValueError, match="nothing is left"):
        steady_rows_per_second(epochs, 3)


class Query:
    """What the harness uses of a streaming query; a failed one is not active."""

    def __init__(self, rows, active=True):
        self.recentProgress = [{"numInputRows": n, "durationMs": {"triggerExecution": 5}} for n in rows]
        self.isActive = active

    def exception(self):
        return ValueError("the cause")


def test_epochs_without_rows_do_not_count():
    assert spark_epochs(Query([3, 0, 4])) == [EpochCost(3, 5), EpochCost(4, 5)]
    assert run_epochs(Query([3, 0, 4, 5]), 2) == [EpochCost(3, 5), EpochCost(4, 5)]


def test_a_query_that_ends_early_fails_with_its_cause():
    with pytest.raises(RuntimeError, match="after 1 of 2 epochs") as caught:
        run_epochs(Query([3], active=False), 2)
    assert str(caught.value.__cause__) == "the cause"


def test_emit_prints_one_json_object_a_line(capsys):
    emit("b", "s", "m", 1.5, peer="p", unit="x")
    emit("b", "s", "m", 2)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"benchmark": "b", "subject": "s", "peer": "p", "metric": "m", "value": 1.5, "unit": "x"}
    assert second == {"benchmark": "b", "subject": "s", "metric": "m", "value": 2}


def test_scratch_is_gone_even_after_a_failure():
    seen = []

    def work():
        with scratch("t") as directory:
            seen.append(directory)
            (directory / "file").write_text("x")
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert not seen[0].exists()


def row_file(path, ids):
    at = pa.array([1_000_000 + number for number in ids]).cast(pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"id": ids, "at": at, "amount": [1.0] * len(ids)}), path.with_suffix(".hidden"))
    path.with_suffix(".hidden").rename(path)


@pytest.mark.parametrize("more", [[], [2]])
def test_a_reader_beside_the_job_sees_each_row_once_or_says_so(tmp_path, more):
    (tmp_path / "out").mkdir()
    load = latency.Load(0.001, 500, 0.01)
    with client(Reader(Files(tmp_path), tmp_path / "seen.npz")) as reader:
        row_file(tmp_path / "out/part-1.parquet", [0, 1])
        row_file(tmp_path / "out/part-2.parquet", [2, *more])
        reader.tell(3 + len(more))
        assert reader.answer(60) == b""
    with np.load(tmp_path / "seen.npz") as seen:
        assert sorted(seen["ids"]) == [0, 1, 2, *more]
        assert sorted(seen["at"]) == [round(1 + number / 1e6, 6) for number in (0, 1, 2, *more)]
        if not more:
            load.check(seen, 3, "mine")
            return
        with pytest.raises(SystemExit, match="mine: 4 rows, of which 3 were seen, and 4 in all"):
            load.check(seen, 4, "mine")


def test_a_wrong_number_of_changes_fails_the_latency_benchmark():
    load = latency.Load(0.001, 1, 0.01)
    assert (load.keys, load.value_bytes) == (100, 10_000)
    ids = np.arange(101)
    seen = {"ids": ids, "amounts": np.where(ids < 100, 1, 2), "count": np.array(101)}
    load.check(seen, 101, "mine")
    with pytest.raises(SystemExit, match="wrong numbers of changes"):
        load.check(seen | {"amounts": np.ones(101)}, 101, "mine")


def test_latency_is_of_rows_and_checkpoints_of_the_time_that_counts():
    at = np.array([9.0, 10.0, 11.0, 19.0, 20.0])
    seen = {"at": at, "seen": at + np.array([50.0, 1.0, 2.0, 3.0, 50.0])}
    sink = SinkStats("out", 5, 2000)
    taken = [
        SimpleNamespace(uploaded_bytes=n, phases=Phases(n, 20, 30, 4), sinks=(sink,) * (n < 300))
        for n in (100, 200, 300)
    ]
    figures = latency.figures(seen, {"began": 10.0, "epochs": 7, "checkpoints": taken}, 10)
    assert (figures["age_p50_s"], figures["age_max_s"]) == (2, 3)
    assert (figures["rows_per_second"], figures["uploaded_bytes_per_second"]) == (0.2, 60)
    assert (figures["checkpoints"], figures["epochs"]) == (3, 7)
    assert (figures["waits_p50_ms"], figures["shown_p99_ms"], figures["age_of_oldest_p50_ms"]) == (150, 5, 2000)
    with pytest.raises(SystemExit, match="nothing is left"):
        latency.figures(seen, {"began": 30.0, "epochs": 7, "checkpoints": []}, 10)


def test_a_row_waits_in_the_source_until_the_batch_that_reads_it():
    def report(second, before_ms, ends, rows=1):
        return {
            "numInputRows": rows, "timestamp": f"1970-01-01T00:00:{second:02}.500Z",
            "durationMs": {"latestOffset": before_ms, "addBatch": 400},
            "sources": [{"endOffset": json.dumps({"in": {str(n): end for n, end in enumerate(ends)}})}],
        }  # fmt: skip

    reports = [report(2, 100, [1, 1]), report(3, 0, [1, 1], rows=0), report(4, 200, [3, 2])]
    batches = latency.begins(SimpleNamespace(recentProgress=reports))
    assert batches == [(2.6, [1, 1]), (4.7, [3, 2])]
    # The first two rows are in the first batch; row 4 is not of the time that counts.
    seen = {"ids": np.array([1, 0, 2, 3, 4]), "at": np.array([1.6, 1.6, 2.7, 2.7, 9.0])}
    figures = latency.source_figures(seen, {"began": 1.0}, 5.0, batches)
    assert figures == {"source_p50_ms": pytest.approx(1500), "source_p99_ms": pytest.approx(2000)}


def case(**more):
    cut = {"p50": 10.0, "p90": 20.0, "p99": 30.0, "max": 40.0}
    return {
        "rows_per_s": 5_000.0, "epoch_ms": cut, "checkpoints": 4, "duration_ms": cut, "uploaded_each": cut,
        "total_bytes": {name: value * 1e6 for name, value in cut.items()}, "uploaded_per_row": 216.0,
        "uploaded_per_changed": 2.0, "largest_log_bytes": 5e6, "recovery_s": 1.25, "cpu_s_per_million_rows": 30.0,
        "sizes": [(0.2, 1_000_000, 12_000_000), (0.4, 2_000_000, 13_000_000)], "epochs": [(0.1, 90.0), (0.2, 180.0)],
        **more,
    }  # fmt: skip


def test_tables_and_charts_of_the_papers_are_what_was_measured(tmp_path):
    page = tmp_path / "papers.md"
    places = {name: f"<!-- {name} -->old<!-- end of {name} -->" for name in ("figures", "values", "all")}
    page.write_text("before\n" + "\nbetween\n".join(places.values()) + "\nafter\n")
    sized = {f"{mode} 1s 1000 bytes": case(recovery_s=2.5) for mode in _papers.MODES if "tight" not in mode}
    plain = {f"{mode} 1s": case() for mode in _papers.MODES}
    data = {"values": plain | sized, "all": {"changelog loose 1s": case(uploaded_per_changed=None)}}
    for _ in range(2):
        _papers.write(data, tmp_path)
        text = page.read_text()
        assert (text.startswith("before\n"), text.count("between"), text.endswith("after\n")) == (True, 2, True)
        assert "old" not in text
        row = "| values | full 1s | 5,000 | 10 / 30 / 40 | 10 / 20 / 30 | 216 (2.0) | 5.0 MB | 10.0 MB / 40.0 MB | 1.2 s | 30 |"
        assert row in text
        assert "| all | changelog loose 1s | 5,000 | 10 / 30 / 40 | 10 / 20 / 30 | 216 | 5.0 MB |" in text
        assert "| Flink 1.15, changelog | 311 ms | 664 ms | 1 s | 14.8 MB | 24.2 GB | 35-65 s |" in text
        assert text.count("| repeated here, full 1s | 10 ms | 20 ms | 30 ms |") == 1
        data = json.loads((tmp_path / "papers.json").read_text())
    charts = {path.name: ElementTree.parse(path).getroot() for path in tmp_path.glob("*.svg")}
    assert {"papers-size-values.svg", "papers-log-all.svg", "papers-sizes-recovery.svg"} <= charts.keys()
    lines = charts["papers-sizes-recovery.svg"].findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4
    # From 10.8 MB to 100.8, the recovery doubles: half the height above the axis, then all of it but a margin.
    (_, low), (_, high) = (map(float, point.split(",")) for point in lines[0].get("points", "").split())
    assert 300 - high == pytest.approx(2 * (300 - low), abs=0.2)
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="is there 0 times, expected once"):
        _papers.write(data, tmp_path)


def test_the_page_of_the_papers_has_its_datas_tables(tmp_path):
    docs = Path(__file__).parent.parent.parent / "docs"
    shutil.copy(docs / "papers.md", tmp_path)
    _papers.write(json.loads((docs / "papers.json").read_text()), tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text() == (docs / path.name).read_text(), path.name
    named = set(re.findall(r"\((papers-[\w-]+\.svg)\)", (docs / "papers.md").read_text()))
    assert named == {path.name for path in docs.glob("papers-*.svg")}
