"""Topics that are deleted and created anew, and transactions that are open, in Spark's log as it writes it. No broker."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.checkpoint.source_log import capture, write_files
from strandline.spark.sources import identity, kafka
from strandline.spark.sources.checks import Relation
from strandline.spark.sources.filechecks import LaterLog
from strandline.spark.sources.identity import IdentityChecks
from strandline.spark.sources.kafka import KafkaSource, KafkaTopics, Offsets, _Topic, check_topics
from tests.spark.harness import eventually

BATCH = 7
HEAD = b"v1\n{}\n-\n"


class Cluster:
    """Stands for Kafka: what it says of its topics."""

    def __init__(self) -> None:
        self.topics: dict[str, _Topic] = {"a": _Topic("id-a", 2), "b": _Topic("id-b", 1)}
        self.ends: dict[tuple[str, int], tuple[int, int]] = {("a", 0): (3, 50), ("a", 1): (4, 50), ("b", 0): (0, 50)}
        self.open: Offsets = {}
        self.is_away = False
        self.asked = 0

    @contextmanager
    def client(self, _: Any, __: Any) -> Iterator[Any]:
        self.asked += 1
        if self.is_away:
            raise sl.errors.UnavailableError("Kafka is away")
        yield self.Client(self)

    class Client:
        def __init__(self, cluster: Cluster) -> None:
            self._cluster = cluster

        def topics(self, names: Collection[str]) -> dict[str, _Topic]:
            return {name: topic for name, topic in self._cluster.topics.items() if name in names}

        def matching(self, source: KafkaSource) -> set[str]:
            pattern = source.relation.options.get("subscribepattern", "-")
            return {name for name in self._cluster.topics if re.fullmatch(pattern, name)}

        def ends(self, wanted: Offsets, topics: Mapping[str, _Topic]) -> dict[tuple[str, int], tuple[int, int]]:
            there = [at for at in wanted if at[0] in topics and at[1] < topics[at[0]].partitions]
            return {at: self._cluster.ends.get(at, (0, 50)) for at in there}

        def open_transactions(self, wanted: Offsets, ends: Any) -> Offsets:
            return {at: offset for at, offset in self._cluster.open.items() if at in ends and offset < wanted[at]}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    monkeypatch.setattr(kafka, "_client", found.client)
    monkeypatch.setattr(identity, "_RETRY_S", 0.01)
    return found


class Job:
    """One that reads files and then topics; the latter are Spark's source 1."""

    def __init__(self, directory: Path, cluster: Cluster, **options: str) -> None:
        self.directory = directory
        self.cluster = cluster
        given = {"kafka.bootstrap.servers": "one:9092", "subscribe": "a,b", **options}
        self.source = KafkaSource("paid", 1, (1,), Relation("kafka", "", options=given))

    def start(self, batch: int = -1) -> Job:
        spark: Any = None
        found = {} if batch < 0 else capture(self.directory, batch)
        files = check_topics(spark, [self.source], found, batch)
        write_files(files, self.directory)
        self.topics = KafkaTopics(spark, [self.source], self.directory, files, batch)
        self.identities = IdentityChecks([self.topics.compare])
        return self

    def log(self, batch: int, **offsets: dict[str, int]) -> None:
        """Have Spark log a batch that is done."""
        found = {f"offsets/{batch}": HEAD + json.dumps(offsets).encode(), f"commits/{batch}": b"v1"}
        found |= {"metadata": b"{}", f"offsets/{batch - 1}": HEAD, f"commits/{batch - 1}": b"v1"}
        for name, data in found.items():
            (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / name).write_bytes(data)

    def checked(self, batch: int = BATCH) -> bool:
        """Wait for the check of a checkpoint of a batch."""
        files, until = capture(self.directory, batch), time.monotonic() + 20
        while not self.identities.check(batch, files):
            assert time.monotonic() < until
            time.sleep(0.002)
        return True

    def offsets(self) -> Any:
        return json.loads((self.directory / f"offsets/{BATCH}").read_text().splitlines()[-1])


@pytest.fixture
def job(tmp_path: Path, cluster: Cluster) -> Job:
    """A job that has read both topics."""
    made = Job(tmp_path, cluster).start()
    made.log(BATCH, a={"0": 10, "1": 11}, b={"0": 12})
    made.topics.begin(BATCH, lambda: False)
    assert made.checked()
    return made


def again(job: Job, **options: str) -> Job:
    """Start the job once more."""
    return Job(job.directory, job.cluster, **options).start(BATCH)


def test_ids_are_in_what_a_checkpoint_has(job: Job) -> None:
    files = capture(job.directory, BATCH)
    assert json.loads(files["sources/1/topics"]) == {"a": "id-a", "b": "id-b"}
    again(job).checked()


def test_of_checkpoints_that_fail_while_kafka_is_away_only_the_last_is_asked_for(job: Job) -> None:
    def asking() -> int:
        return sum(thread.name == "strandline-source-ids" for thread in threading.enumerate())

    job.cluster.is_away = True
    files = capture(job.directory, BATCH)
    for batch in range(BATCH + 1, BATCH + 5):
        job.log(batch, a={"0": 10, "1": 11}, b={"0": 12})
        assert not job.identities.check(batch, files | capture(job.directory, batch))
    eventually(lambda: asking() == 1, "one thread asks")
    job.cluster.is_away = False
    assert job.checked(BATCH + 4)
    eventually(lambda: asking() == 0, "no thread asks")


def test_a_topic_that_was_created_anew_is_not_read_from_the_offset_of_the_old_one(job: Job) -> None:
    job.cluster.topics["a"] = _Topic("id-c", 2)
    with pytest.raises(sl.errors.ConfigurationError) as error:
        again(job)
    assert "source 'paid': a topic of Kafka at one:9092 was deleted and recreated" in str(error.value)
    assert "topic 'a' (its id was id-a, and is id-c)" in str(error.value)
    assert "option('failOnDataLoss', 'false')" in error.value.hint
    assert "option('strandline.same.offsets', 'true')" in error.value.hint
    assert job.offsets() == {"a": {"0": 10, "1": 11}, "b": {"0": 12}}


def test_a_topic_that_was_created_anew_is_read_from_its_first_row_where_rows_may_be_gone(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """The new one has one partition less, and its oldest rows are gone."""
    job.cluster.topics["a"] = _Topic("id-c", 1)
    (job.directory / "sources/1/0").write_bytes(b'\0v1\n{"a":{"0":5,"1":5},"b":{"0":6}}')
    with caplog.at_level(logging.WARNING):
        started = again(job, failondataloss="false")
    assert job.offsets() == {"a": {"0": 3}, "b": {"0": 12}}
    assert (job.directory / "sources/1/0").read_bytes() == b'\0v1\n{"b": {"0": 6}, "a": {"0": 3}}'
    assert "reads the new topic from its first row" in caplog.text
    assert started.checked()
    assert again(job).checked(), "a checkpoint of it names the new topic"


def test_a_replica_is_read_on_where_the_program_says_that_it_is_one(job: Job) -> None:
    job.cluster.topics["a"] = _Topic("id-c", 2)
    assert again(job, **{kafka.SAME_OFFSETS: "true"}).checked()
    assert job.offsets()["a"] == {"0": 10, "1": 11}
    assert again(job).checked()


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, sl.errors.ConfigurationError), ({"failondataloss": "false"}, sl.errors.ConflictError)],
)
def test_no_checkpoint_names_offsets_of_a_topic_that_was_not_read(
    job: Job, options: dict[str, str], kind: type[Exception]
) -> None:
    started = again(job, **options)
    job.cluster.topics["b"] = _Topic("id-c", 1)
    job.log(BATCH + 1, a={"0": 10, "1": 11}, b={"0": 20})
    started.topics.begin(BATCH + 1, lambda: False)
    with pytest.raises(kind, match="topic 'b'"):
        started.checked(BATCH + 1)


def test_a_topic_that_comes_while_the_job_runs_is_known_before_its_rows_are_read(
    tmp_path: Path, cluster: Cluster
) -> None:
    made = Job(tmp_path, cluster, subscribe="", subscribepattern=".*")
    del cluster.topics["b"]
    made.start()
    cluster.topics["b"] = _Topic("id-b", 1)
    made.log(BATCH, a={"0": 10}, b={"0": 12})
    made.topics.begin(BATCH, lambda: False)
    # As its first rows are read, it is created anew.
    cluster.topics["b"] = _Topic("id-c", 1)
    with pytest.raises(sl.errors.ConfigurationError, match="its id was id-b, and is id-c"):
        made.checked()


def test_a_checkpoint_waits_for_kafka(job: Job) -> None:
    started = again(job)
    job.cluster.is_away = True
    files = capture(job.directory, BATCH)
    before = job.cluster.asked
    until = time.monotonic() + 20
    while job.cluster.asked < before + 3:
        assert not started.identities.check(BATCH, files)
        assert time.monotonic() < until
    job.cluster.is_away = False
    assert started.checked()
    # What was found of a batch holds: nobody asks again.
    before = job.cluster.asked
    assert started.identities.check(BATCH, files)
    assert job.cluster.asked == before


def test_a_checkpoint_of_a_topic_that_is_gone_is_published_only_where_rows_may_be(job: Job) -> None:
    started, files = again(job), capture(job.directory, BATCH)
    gone = job.cluster.topics.pop("a")
    before = job.cluster.asked
    until = time.monotonic() + 20
    while job.cluster.asked < before + 3:
        assert not started.identities.check(BATCH, files)
        assert time.monotonic() < until
    started.identities.close()
    job.cluster.topics["a"] = gone
    unworried = again(job, failondataloss="false")
    del job.cluster.topics["a"]
    assert unworried.checked()


def test_brokers_without_ids_are_believed(job: Job) -> None:
    job.cluster.topics = {"a": _Topic("", 2), "b": _Topic("", 1)}
    assert again(job).checked()


def test_a_job_does_not_go_on_behind_a_transaction_that_is_open(job: Job) -> None:
    """It has read what was not committed; from now on, it is to read what is."""
    job.cluster.open = {("a", 1): 8}
    assert again(job).checked()
    with pytest.raises(sl.errors.UnavailableError, match=r"partition 1: .* at offset 11, and .* open since offset 8"):
        again(job, **{"kafka.isolation.level": "read_committed"})


def test_a_topic_that_is_not_there_is_named(tmp_path: Path, cluster: Cluster) -> None:
    with pytest.raises(sl.errors.ConfigurationError, match=r"Kafka at one:9092 has no topic 'c'(.|\n)*--topic c"):
        Job(tmp_path, cluster, subscribe="a, c").start()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "a"}, "topic 'b', partition 0, but its options omit it"),
        ({"subscribe": "", "subscribepattern": "a"}, "topic 'b', partition 0, but its options omit it"),
        ({"subscribe": "", "assign": '{"a":[0],"b":[0]}'}, "topic 'a', partition 1, but its options omit it"),
        ({"subscribe": "c"}, "topic 'a', partition 0, and 2 other partitions, but its options omit it"),
    ],
)
def test_a_topic_that_was_read_is_not_left_out_without_a_word(
    job: Job, options: dict[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    job.cluster.topics["c"] = _Topic("id-c", 1)
    with pytest.raises(sl.errors.ConfigurationError, match=words):
        again(job, **options)
    with caplog.at_level(logging.WARNING):
        again(job, **options, failondataloss="false")
    assert words in caplog.text


def test_a_topic_that_is_named_again_is_said_to_come_again(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    again(job, subscribe="a", failondataloss="false")
    job.log(BATCH, a={"0": 10, "1": 11})
    job.cluster.topics["c"] = _Topic("id-c", 1)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        again(job, subscribe="a,c")
        again(job, subscribe="a,c")
        assert not caplog.records
        again(job)
    assert "topic 'b' was not read for a while, and is read again from its first row" in caplog.text


def test_what_is_named_for_the_first_time_is_read_from_its_oldest_row(job: Job) -> None:
    """Spark takes rows of before for lost, and would end the job at each start."""
    job.cluster.topics["c"] = _Topic("id-c", 2)
    job.cluster.ends["c", 0] = (4, 9)
    started = again(job, subscribe="a,b,c")
    assert job.offsets() == {"a": {"0": 10, "1": 11}, "b": {"0": 12}, "c": {"0": 4}}
    assert started.checked()
    job.cluster.topics["c"] = _Topic("id-d", 2)
    with pytest.raises(sl.errors.ConfigurationError, match="its id was id-c, and is id-d"):
        again(job, subscribe="a,b,c")
    job.log(BATCH, a={"0": 10})
    again(job, subscribe="", assign='{"a":[0,1]}')
    assert job.offsets() == {"a": {"0": 10, "1": 4}}


def test_what_a_later_checkpoint_has_read_is_not_named_for_the_first_time(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that goes back behind it needs the rows that it took back, and Kafka may have none of them any more."""
    job.cluster.topics["c"] = _Topic("id-c", 1)
    job.cluster.ends["c", 0] = (4, 9)
    files = capture(job.directory, BATCH)
    later = {f"offsets/{BATCH + 5}": b'v1\n{}\n{"logOffset":3}\n-\n{"a":{"0":10},"c":{"0":2}}'}
    assert LaterLog([], later, BATCH + 5).partitions == {("a", 0), ("c", 0)}
    source = Job(job.directory, job.cluster, subscribe="a,b,c").source
    spark: Any = None
    with pytest.raises(
        sl.errors.ConfigurationError,
        match="topic 'c', partition 0: the job continues at offset 0, but the oldest row has offset 4",
    ):
        check_topics(spark, [source], files, BATCH, {("c", 0)})
    with caplog.at_level(logging.INFO):
        check_topics(spark, [source], files, BATCH)
    assert "new partitions are read from their oldest row on: c/0 at offset 4" in caplog.text


@pytest.mark.parametrize("options", [{"subscribe": "a"}, {"subscribe": "", "subscribepattern": ".*"}])
def test_rows_of_what_came_while_the_job_was_away_may_be_gone(job: Job, options: dict[str, str]) -> None:
    job.log(BATCH, a={"0": 10})
    with pytest.raises(
        sl.errors.ConfigurationError,
        match="partition 1: the job continues at offset 0, but the oldest row has offset 4",
    ):
        again(job, **options)
    again(job, **options, failondataloss="false")
    assert job.offsets() == {"a": {"0": 10}}


@pytest.mark.parametrize(
    "when", ["before a start", "after a start", "without a start", "a broker does not know it yet"]
)
def test_a_topic_that_went_and_comes_again_is_another_one(tmp_path: Path, cluster: Cluster, when: str) -> None:
    """The job went on without it. What comes under its name is read from its first row."""
    options = {"subscribe": "", "subscribepattern": ".*", "failondataloss": "false"}
    made = Job(tmp_path, cluster, **options).start()
    made.log(BATCH, a={"0": 10, "1": 11}, b={"0": 12})
    made.topics.begin(BATCH, lambda: False)
    assert made.checked()
    del cluster.topics["b"]
    starts = when.endswith("start") and not when.startswith("without")
    if starts:
        made = again(made, **options)
    made.log(BATCH + 1, a={"0": 11, "1": 11})
    made.topics.begin(BATCH + 1, lambda: False)
    assert made.checked(BATCH + 1)
    if when == "before a start":
        cluster.topics["b"] = _Topic("id-c", 1)
    if starts:
        made = Job(tmp_path, cluster, **{**options, "failondataloss": "true"}).start(BATCH + 1)
    if not when.startswith("a broker"):
        cluster.topics["b"] = _Topic("id-c", 1)
    made.log(BATCH + 2, a={"0": 11, "1": 11}, b={"0": 5})
    made.topics.begin(BATCH + 2, lambda: False)
    cluster.topics["b"] = _Topic("id-c", 1)
    for batch in (BATCH + 2, BATCH + 3):
        assert made.checked(batch)
        made.log(batch + 1, a={"0": 11, "1": 11}, b={"0": 6})
        made.topics.begin(batch + 1, lambda: False)
    cluster.topics["b"] = _Topic("id-d", 1)
    with pytest.raises(sl.errors.StrandlineError, match="its id was id-c, and is id-d"):
        made.checked(BATCH + 4)


def test_a_checkpoint_of_before_a_topic_came_again_does_not_take_its_id_for_what_was_read(
    tmp_path: Path, cluster: Cluster
) -> None:
    """Its files may be read some batches later, while a commit takes long: it would go on at offsets of the old one."""
    options = {"subscribe": "", "subscribepattern": ".*", "failondataloss": "false"}
    made = Job(tmp_path, cluster, **options).start()
    made.log(BATCH, a={"0": 10}, b={"0": 12})
    made.topics.begin(BATCH, lambda: False)
    made.log(BATCH + 1, a={"0": 11})
    made.topics.begin(BATCH + 1, lambda: False)
    cluster.topics["b"] = _Topic("id-c", 1)
    made.log(BATCH, a={"0": 10}, b={"0": 12})
    made.log(BATCH + 2, a={"0": 11}, b={"0": 0})
    made.topics.begin(BATCH + 2, lambda: False)
    with pytest.raises(sl.errors.ConflictError, match="its id was id-b, and is id-c"):
        made.checked()
    assert made.checked(BATCH + 2)


@pytest.mark.parametrize("line", [b'{"logOffset":4}', b"17", b'{"sourceVersion":1,"reservoirId":"a"}'])
def test_what_was_read_was_no_kafka(line: bytes) -> None:
    """A source of the same name, or the only one, that was another kind of source before."""
    source = KafkaSource("paid", 1, (1,), Relation("kafka", ""))
    files = {"offsets/3": b"\n".join([b"v1", b"{}", b"-", line])}
    with pytest.raises(sl.errors.ConfigurationError, match="source 'paid' reads Kafka, but was another kind of source"):
        source.reached(files, 3)
    files["offsets/3"] = b'v1\n{}\n-\n{"t":{"0":7,"1":-1}}'
    assert source.reached(files, 3) == {("t", 0): 7}
    assert KafkaSource("other", 0, (0,), Relation("kafka", "")).reached(files, 3) == {}
