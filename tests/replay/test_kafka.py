"""Epochs of topics, read again by their offsets."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import strandline as sl
from strandline.core.errors import ConfigurationError
from strandline.replay.breaks import Breaks
from strandline.replay.outcomes import compare_with_job, outcome_alone
from strandline.replay.recorded import find_recorded
from strandline.replay.session import Replay, jobdir_of
from strandline.replay.trial import TrialOptions, recorded_for, run_trial
from tests.kafkaserver import Kafka
from tests.replay.programs import job_of
from tests.seaweed import Seaweed
from tests.spark.test_kafka_jobs import delete_before, put, stream_of, with_kafka

__all__ = ["with_kafka"]
pytestmark = pytest.mark.spark


class Ordered(sl.KeyedProcess):
    """Keeps the order of its events, and the partitions that they came from."""

    seen = sl.List("int")

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.seen.append(event.partition)
        yield event.user, len(list(self.seen)), event.partition


def _user(row: tuple[Any, ...]) -> Any:
    return row[0]


@pytest.mark.long
def test_epochs_of_a_topic_are_read_by_their_offsets(
    with_kafka: Any, kafka: Kafka, tmp_path: Path, local_dir: Path
) -> None:
    topic = kafka.create("replayed", 3)

    def job(sink: Any) -> sl.Job:
        rows = stream_of(with_kafka, kafka, topic).key_by("user")
        return job_of(tmp_path, local_dir, rows.process(Ordered(), "user string, n int, p int", uid="o").to(sink))

    sink = sl.sinks.memory(name="rows")
    run = job(sink).start(with_kafka)
    # Spark may take the partitions of a topic in another order: a user is in one of them in each epoch.
    for users in ("abcab", "cab", "", "bca"):
        for partition, user in enumerate(users):
            put(kafka, topic, user * 3, partition % 3)
        run.process_all_available()
        run.checkpoint()
    run.stop()
    again = job(sl.sinks.memory(name="rows"))
    recorded = find_recorded(jobdir_of(again), "start", None, {})
    with Replay(again, recorded, Breaks(None)) as replay:
        epochs = list(replay)
    rows = [tuple(row.values()) for each in epochs if each.output for row in each.output.sinks["rows"].to_pylist()]
    assert sorted(rows, key=_user) == sorted((tuple(row) for row in sink.rows), key=_user)
    assert [each.differences for each in epochs if each.differences is not None][-1] == ()
    delete_before(kafka, topic, 0, 4)
    with (
        Replay(again, recorded, Breaks(None)) as replay,
        pytest.raises(ConfigurationError, match=r"epoch \d: its rows cannot be read again"),
    ):
        list(replay)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_trial_from_a_bucket_with_a_topic(
    with_kafka: Any, kafka: Kafka, s3: Seaweed, tmp_path: Path, local_dir: Path
) -> None:
    """The same program is equal to its job; the new program has its own checkpoints, on this machine."""
    topic, bucket = kafka.create("tried", 2), s3.url(str(uuid4()))

    def job(root: Any, **checkpoints: Any) -> sl.Job:
        rows = stream_of(with_kafka, kafka, topic).key_by("user")
        out = rows.process(Ordered(), "user string, n int, p int", uid="o").to(sl.sinks.memory(name="rows"))
        return sl.Job(
            "tried", sinks=[out], checkpoints=sl.Checkpoints(root, every=None, retain=10, **checkpoints),
            settings=sl.Settings(parallelism=2, local_dir=local_dir, state_memory="128MB"),
        )  # fmt: skip

    run = job(bucket, storage_options=s3.options).start(with_kafka)
    for users in ("abc", "cab", "bca"):
        put(kafka, topic, users)
        run.process_all_available()
        run.checkpoint()
    run.stop()
    new = job(tmp_path / "mine")
    recorded = recorded_for(new, f"{bucket}/tried/chk-1", s3.options, epochs=True)
    result = run_trial(new, recorded, TrialOptions(), tmp_path / "trial")
    assert (result.rows_in, result.error, result.failed) == (6, "", None)
    outcome = outcome_alone(compare_with_job(result, tmp_path / "trial", s3.options, 10))
    assert (outcome.verdict, result.checkpoint) == ("equal", f"{bucket}/tried/chk-3")
    assert not (tmp_path / "mine").exists()
