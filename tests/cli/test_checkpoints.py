from __future__ import annotations

from pathlib import Path

import pytest

from strandline.checkpoint.check import verify
from strandline.cli.output import moment_text, time_text
from strandline.core.ids import CheckpointId
from tests.cli.conftest import Command
from tests.cli.fabricate import WATERMARKS, FabricatedJob


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# -- list


def test_list_names_every_job_newest_first(strandline: Command, alerts: FabricatedJob) -> None:
    FabricatedJob(alerts.directory, "other").checkpoint()
    found = strandline("checkpoints", "list", alerts.directory, "--json")
    assert found.code == 0
    assert [(c["job"], c["checkpoint"], c["epoch"], c["state"]) for c in found.json] == [
        ("alerts", 3, 30, "complete"), ("alerts", 2, 20, "complete"), ("other", 1, 10, "complete"),
    ]  # fmt: skip
    newest = found.json[0]
    assert newest["mode"] == "incremental"
    assert newest["generation"] == 1
    assert 0 < newest["uploaded_bytes"] < newest["total_bytes"]


def test_list_of_one_job_as_a_table(strandline: Command, alerts: FabricatedJob) -> None:
    FabricatedJob(alerts.directory, "other").checkpoint()
    found = strandline("checkpoints", "list", f"file://{alerts.directory}", "--job", "alerts")
    rows = [line.split()[:3] for line in found.stdout.splitlines() if "incremental" in line]
    assert rows == [["alerts", "3", "complete"], ["alerts", "2", "complete"]]
    assert "other" not in found.stdout


def test_list_shows_damaged_and_void_checkpoints_with_the_reason(strandline: Command, alerts: FabricatedJob) -> None:
    alerts.path_of(CheckpointId(3), 1).unlink()
    (alerts.directory / "alerts" / "chk-2" / "_metadata").write_bytes(b"SLMANIF1 and no more")
    states = {c["checkpoint"]: c for c in strandline("checkpoints", "list", alerts.directory, "--json").json}
    assert [states[n]["state"] for n in (3, 2)] == ["damaged", "damaged"]
    assert "missing" in states[3]["reason"]
    assert "cut off" in states[2]["reason"]
    # A new driver finds nothing to go on from: what is there belongs to a history that it did not choose.
    FabricatedJob(alerts.directory, seed=1)
    states = {c["checkpoint"]: c for c in strandline("checkpoints", "list", alerts.directory, "--json").json}
    assert states[3]["state"] == "void"
    assert "generation 1" in states[3]["reason"]


def test_list_of_a_job_without_checkpoints(strandline: Command, tmp_path: Path) -> None:
    FabricatedJob(tmp_path / "ck")
    found = strandline("checkpoints", "list", tmp_path / "ck", "--json")
    assert (found.code, found.stdout) == (0, "")
    assert "no checkpoint is complete yet" in strandline("checkpoints", "list", tmp_path / "ck").stderr


# -- which directory, which job


def test_a_directory_that_is_not_there_is_not_made(strandline: Command, tmp_path: Path) -> None:
    found = strandline("checkpoints", "list", tmp_path / "typo")
    assert (found.code, found.stdout) == (1, "")
    assert found.stderr.startswith(f"error: {tmp_path / 'typo'}: no such directory\n  next step: ")
    assert not (tmp_path / "typo").exists()


def test_an_unknown_job_is_answered_with_those_there_are(strandline: Command, alerts: FabricatedJob) -> None:
    found = strandline("checkpoints", "list", alerts.directory, "--job", "alert")
    assert found.code == 1
    assert "no job 'alert' there\n  next step: the jobs there are: alerts" in found.stderr


def test_a_jobs_own_folder_is_recognised(strandline: Command, alerts: FabricatedJob) -> None:
    found = strandline("checkpoints", "list", alerts.directory / "alerts")
    assert found.code == 1
    assert "--job alerts" in found.stderr


def test_a_folder_of_other_things_holds_no_job(strandline: Command, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "chk-1.jpg").write_bytes(b"")
    found = strandline("checkpoints", "list", tmp_path)
    assert found.code == 1
    assert "no job there" in found.stderr


def test_several_jobs_need_a_name(strandline: Command, alerts: FabricatedJob) -> None:
    FabricatedJob(alerts.directory, "other").checkpoint()
    found = strandline("checkpoints", "show", alerts.directory, "latest")
    assert found.code == 1
    assert "alerts, other" in found.stderr
    assert "--job NAME" in found.stderr


def test_a_wrong_storage_option_is_not_repeated(strandline: Command, alerts: FabricatedJob) -> None:
    for option in ("hunter2", "=hunter2", "my key=hunter2"):
        found = strandline("checkpoints", "list", alerts.directory, "--option", "a=b", "--option", option)
        assert found.code == 1
        assert "number 2" in found.stderr
        assert "hunter2" not in found.stderr + found.stdout


def test_storage_options_of_a_store_that_refuses_them_are_not_repeated(process: Command) -> None:
    found = process(
        "checkpoints", "list", "s3://bucket/ck", "--option", "secret_access_key=hunter2", "--option", "nonsense=hunter3"
    )
    assert found.code == 1
    assert found.stderr.startswith("error: ")
    assert "hunter" not in found.stderr + found.stdout
    assert "Traceback" not in found.stderr


def test_storage_options_come_from_the_environment_too(process: Command) -> None:
    found = process("checkpoints", "list", "s3://bucket/ck", STRANDLINE_STORAGE_OPTIONS="region=x nonsense=hunter2")
    assert found.code == 1
    assert "nonsense" in found.stderr
    assert "hunter2" not in found.stderr
    help_ = process("checkpoints", "list", "--help", STRANDLINE_STORAGE_OPTIONS="region=hunter2")
    assert help_.code == 0
    assert "hunter2" not in help_.stdout


# -- show


def test_show_as_data(strandline: Command, alerts: FabricatedJob) -> None:
    found = strandline("checkpoints", "show", alerts.directory, "3", "--json")
    (shown,) = found.json
    assert (shown["job"], shown["checkpoint"], shown["epoch"]) == ("alerts", 3, 30)
    (operator,) = shown["operators"]
    assert [(s["name"], s["kind"], s["key_type"], s["value_type"]) for s in operator["states"]] == [
        ("seen", "value", "", "bigint"), ("by_kind", "map", "string", "array<double>"),
    ]  # fmt: skip
    assert operator["states"][0]["ttl"] == {"duration_ms": 90_000, "refresh": "read", "time": "event"}
    assert "ttl" not in operator["states"][1]
    assert [(p["first_key_group"], p["last_key_group"]) for p in operator["partitions"]] == [(0, 63), (64, 127)]
    for partition in operator["partitions"]:
        assert {f["name"] for f in partition["files"]} >= {"CURRENT", f"{partition['partition']}-3.sst"}
        assert partition["total_bytes"] == sum(f["size_bytes"] for f in partition["files"]) == 3 * 5000 + 16
        assert partition["uploaded_bytes"] == 5016
        assert (partition["sync_ms"], partition["async_ms"]) == (1.5, 40.0)
    assert shown["source"]["total_bytes"] > 190_000
    assert shown["source"]["names"] == ["clicks", "orders"]
    assert shown["watermarks"] == WATERMARKS
    assert shown["sinks"] == [{"name": "out", "pending": 2, "committables": ["epoch-1", "epoch-2"]}]


@pytest.mark.parametrize("name", ["3", "chk-3", "latest"])
def test_show_as_tables(strandline: Command, alerts: FabricatedJob, name: str) -> None:
    found = strandline("checkpoints", "show", alerts.directory, name)
    assert found.code == 0
    lines = [" ".join(line.split()) for line in found.stdout.splitlines()]
    assert "operator detect: backend rocksdb, key user string, parallelism 2 (at most 128)" in lines
    assert "by_kind map string → array<double>" in lines
    assert "seen value bigint, expires 90.0 s after each read" in lines
    assert "1 64-127 4 14.7 KB 4.9 KB 1.5 ms 40 ms" in lines
    assert "out 2" in lines
    for what, at_s in (("", 0), ("newest event of source 0", 10), ("newest event of source 1, eu", 20)):
        assert f"{what or 'watermark'} {time_text((1_700_000_000 + at_s) * 1000)}" in lines
    assert any(
        line.startswith("source progress 19") and line.endswith("KB of clicks, orders, after batch 30")
        for line in lines
    )


def test_show_a_checkpoint_that_is_not_there(strandline: Command, alerts: FabricatedJob) -> None:
    found = strandline("checkpoints", "show", alerts.directory, "7", "--json")
    assert (found.code, found.stdout) == (1, "")
    assert "there is no checkpoint 7\n  next step: the checkpoints there are: 3, 2" in found.stderr
    assert "expected a number" in strandline("checkpoints", "show", alerts.directory, "last").stderr


def test_show_a_damaged_manifest(strandline: Command, alerts: FabricatedJob) -> None:
    damage(alerts.directory / "alerts" / "chk-3" / "_metadata")
    found = strandline("checkpoints", "show", alerts.directory, "latest")
    assert found.code == 1
    assert "chk-3/_metadata: its checksum does not match" in found.stderr


# -- verify


def test_verify_an_intact_checkpoint(strandline: Command, alerts: FabricatedJob) -> None:
    found = strandline("checkpoints", "verify", alerts.directory, "--json")
    assert found.code == 0
    (report,) = found.json
    assert (report["job"], report["checkpoint"], report["ok"], report["problems"]) == ("alerts", 3, True, [])
    truth = verify(alerts.jobdir, CheckpointId(3))
    assert (report["files"], report["bytes"]) == (truth.files, truth.bytes)
    assert "intact" in strandline("checkpoints", "verify", alerts.directory).stdout


def test_verify_names_what_is_damaged_and_what_is_missing(strandline: Command, alerts: FabricatedJob) -> None:
    bad, lost = alerts.path_of(CheckpointId(3), 0), alerts.path_of(CheckpointId(3), 1)
    damage(bad)
    lost.unlink()
    found = strandline("checkpoints", "verify", alerts.directory, "3", "--json")
    assert found.code == 1
    (report,) = found.json
    assert report["ok"] is False
    problems = {Path(p["path"]).name: p["problem"] for p in report["problems"]}
    assert problems.keys() == {bad.name, lost.name}
    assert "damaged" in problems[bad.name]
    assert "missing" in problems[lost.name]
    shown = strandline("checkpoints", "verify", alerts.directory)
    assert shown.code == 1
    assert bad.name in shown.stdout
    assert lost.name in shown.stdout


def test_verify_does_not_pass_over_a_damaged_newest_manifest(strandline: Command, alerts: FabricatedJob) -> None:
    damage(alerts.directory / "alerts" / "chk-3" / "_metadata")
    found = strandline("checkpoints", "verify", alerts.directory, "--json")
    assert found.code == 1
    assert [(r["checkpoint"], r["problems"][0]["path"]) for r in found.json] == [(3, "chk-3/_metadata")]


def test_verify_all_of_all_jobs(strandline: Command, alerts: FabricatedJob) -> None:
    FabricatedJob(alerts.directory, "other").checkpoint()
    damage(alerts.path_of(CheckpointId(3), 0))
    found = strandline("checkpoints", "verify", alerts.directory, "--all", "--json")
    assert found.code == 1
    assert [(r["job"], r["checkpoint"], r["ok"]) for r in found.json] == [
        ("alerts", 3, False), ("alerts", 2, True), ("other", 1, True),
    ]  # fmt: skip


def test_verify_what_is_not_there(strandline: Command, alerts: FabricatedJob, tmp_path: Path) -> None:
    assert "there is no checkpoint 9" in strandline("checkpoints", "verify", alerts.directory, "9").stderr
    assert strandline("checkpoints", "verify", alerts.directory, "9", "--all").code == 2
    FabricatedJob(tmp_path / "new")
    found = strandline("checkpoints", "verify", tmp_path / "new")
    assert found.code == 1
    assert "has no checkpoint" in found.stderr


# -- gc


def test_gc_plans_then_deletes_only_garbage(strandline: Command, alerts: FabricatedJob) -> None:
    lost = alerts.leave_garbage()
    args = ("checkpoints", "gc", alerts.directory, "--job", "alerts")

    young = strandline(*args, "--json").json[0]
    assert (young["garbage"], young["too_young"], young["deleted"]) == ([], 1, 0)

    planned = strandline(*args, "--grace", "0s", "--dry-run")
    assert "0 objects" in planned.stdout, "it may be of a checkpoint in progress"
    alerts.checkpoint()
    planned = strandline(*args, "--grace", "0s", "--dry-run")
    assert lost.name in planned.stdout
    assert "nothing was deleted" in planned.stdout
    assert lost.exists()

    (done,) = strandline(*args, "--grace", "0s", "--json").json
    assert [Path(item["path"]).name for item in done["garbage"]] == [lost.name]
    assert (done["deleted"], done["total_bytes"], done["live"], done["dry_run"]) == (1, 5000, [3, 4], False)
    assert not lost.exists()
    assert strandline("checkpoints", "verify", alerts.directory, "--all").code == 0


def test_gc_refuses_when_a_needed_file_is_missing(strandline: Command, alerts: FabricatedJob) -> None:
    lost = alerts.leave_garbage()
    alerts.path_of(CheckpointId(3), 0).unlink()
    found = strandline("checkpoints", "gc", alerts.directory, "--job", "alerts", "--grace", "0s")
    assert (found.code, found.stdout) == (1, "")
    assert "nothing is deleted" in found.stderr
    assert lost.exists()


def test_gc_needs_a_job_and_a_sensible_grace(strandline: Command, alerts: FabricatedJob) -> None:
    assert strandline("checkpoints", "gc", alerts.directory).code == 2
    found = strandline("checkpoints", "gc", alerts.directory, "--job", "alerts", "--grace", "soon")
    assert found.code == 1
    assert "--grace is 'soon'" in found.stderr


def test_event_times_may_be_any_that_a_timestamp_can_be() -> None:
    assert moment_text(1_700_000_000_123_456) == time_text(1_700_000_000_123)
    assert moment_text(0) == moment_text(999_999) != time_text(0)
    assert moment_text(1_700_000_000_000_000_000) == "after the year 9999"
    assert moment_text(-(1 << 63)) == "before the year 1"
