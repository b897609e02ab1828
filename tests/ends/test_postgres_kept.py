"""Connections to PostgreSQL that are kept between deliveries: what happens to them, and what does not pass from one to the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg
import pytest

import strandline as sl
from strandline.core import failpoints
from strandline.ends.postgres import target as postgres
from strandline.spark.sinks import transactional
from strandline.testing.sinks.trial import TASKS, Trial
from tests.ends import inprocess
from tests.lossy import Proxy
from tests.postgres import DATABASE, Server

LEAVES_TRACES = """
create function leave_traces() returns trigger language plpgsql as $$
begin
  new.found = current_setting('search_path') || ' ' || current_setting('timezone') || ' '
    || current_setting('default_transaction_isolation') || ' ' || current_setting('synchronous_commit') || ' '
    || coalesce(to_regclass('pg_temp.traces')::text, 'none') || ' ' || current_user
    || ' ' || current_setting('statement_timeout') || ' ' || coalesce(current_setting('strandline.trace', true), '');
  set timezone = 'Asia/Tokyo'; set default_transaction_isolation = 'serializable'; set synchronous_commit = 'local';
  perform set_config('strandline.trace', 'left', false);
  perform set_config('search_path', current_setting('search_path') || ', pg_catalog', false);
  perform pg_advisory_lock(4711);
  create temporary table if not exists traces ();
  return new;
end $$;
create trigger traces before insert on results for each row execute function leave_traces()
"""


class Kept:
    """A sink on trial whose table has the session that wrote each row."""

    def __init__(self, server: Server, **given: Any) -> None:
        self.server, self.dsn = server, server.schema()
        self.sql("create table results (n bigint, pid int default pg_backend_pid(), found text)")
        self.trial = Trial(
            inprocess.Session(),  # type: ignore[arg-type]
            make=lambda: sl.sinks.postgres(self.dsn, "results", **given),
            visible=lambda: [n for (n,) in self.sql("select n from results")],
        )
        self.epochs: list[int] = []
        self.sink: Any = None
        self.begin()

    def begin(self, sink: Any = None) -> None:
        """Begin a run, with a sink that waits for its target."""
        self.sink = self.trial.start(sink=sink)
        self.sink.patience_s = 10.0
        self.identity = self.sink._sink

    def sql(self, text: str, *values: Any) -> list[Any]:
        with self.server.connect(self.dsn) as db:
            answer = db.execute(text, values or None)
            return answer.fetchall() if answer.description else []

    def deliver(self, count: int = 1) -> None:
        for _ in range(count):
            self.epochs.append(len(self.epochs) + 1)
            assert self.sink.commit(self.trial.stage(self.sink, self.epochs[-1])) == []

    def sessions(self) -> list[int]:
        """Return the server's processes for the sink."""
        name = f"strandline/{self.identity}/%"
        return [pid for (pid,) in self.sql("select pid from pg_stat_activity where application_name like %s", name)]

    def writers(self) -> int:
        """Return how many sessions wrote the rows, after a check of the rows."""
        self.trial.expect(*self.epochs)
        return int(self.sql("select count(distinct pid) from results")[0][0])

    def end_sessions(self) -> None:
        self.sql("select pg_terminate_backend(pid, 5000) from unnest(%s::int[]) pid", self.sessions())


@pytest.fixture
def kept(postgresql: Server) -> Iterator[Kept]:
    """With a lane for each task."""
    kept = Kept(postgresql)
    yield kept
    kept.sink.close()


@pytest.fixture
def one(postgresql: Server) -> Iterator[Kept]:
    """With one lane."""
    kept = Kept(postgresql, writers=1)
    yield kept
    kept.sink.close()


def test_sessions_write_many_deliveries_and_end_with_the_run(kept: Kept) -> None:
    kept.deliver(6)
    # No more than write at a time: one that has written its lane may write another one.
    assert kept.writers() <= TASKS
    assert 0 < len(kept.sessions()) <= TASKS
    # No transaction is open meanwhile, and no lock is held.
    busy = kept.sql("select state from pg_stat_activity where pid = any(%s) and state <> 'idle'", kept.sessions())
    assert busy == []
    assert kept.sql("select count(*) from pg_locks where pid = any(%s)", kept.sessions()) == [(0,)]
    kept.sink.close()
    _await_none(kept)
    # The next run has sessions of its own.
    sessions = kept.writers()
    kept.begin()
    kept.deliver()
    assert kept.writers() > sessions


def test_a_session_that_ends_between_deliveries_is_replaced_at_once(one: Kept, caplog: Any) -> None:
    one.deliver()
    one.end_sessions()
    one.deliver(2)
    assert one.writers() == 2
    assert not caplog.records


@pytest.mark.parametrize("step", ["sink.deliver.before", "sink.postgres.written", "sink.deliver.after"])
def test_a_session_that_ends_within_a_delivery(one: Kept, step: str) -> None:
    """Before its transaction, in it with all rows, and after it."""
    one.deliver(2)
    failpoints.arm(step, one.end_sessions)
    try:
        one.deliver()
    finally:
        failpoints.disarm_all()
    one.deliver()
    assert one.writers() == 2


def test_a_server_that_is_restarted_between_deliveries(one: Kept, postgresql: Server) -> None:
    one.deliver(2)
    postgresql.kill()
    postgresql.start()
    one.deliver(2)
    assert one.writers() == 2


def test_a_session_that_does_not_answer_any_more_is_given_up_soon(
    one: Kept, postgresql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a firewall that has forgotten the connection."""
    monkeypatch.setattr(postgres, "_RENEWAL_S", 1.5)
    with closing(Proxy(postgresql.port)) as proxy:
        one.begin(sl.sinks.postgres(one.dsn.replace(f":{postgresql.port}/", f":{proxy.port}/"), "results", writers=1))
        one.deliver(2)
        proxy.lose(b"current_setting('synchronous_commit')", fate="held")
        one.deliver()
        assert (proxy.asked, one.writers()) == (1, 2)
        # It had committed, and is not kept.
        proxy.lose(b"discard all", fate="held")
        one.deliver(2)
        assert (proxy.asked, one.writers()) == (2, 3)
        one.sink.close()


def test_nothing_that_a_trigger_leaves_in_the_session_reaches_the_next_delivery(one: Kept) -> None:
    one.sql(LEAVES_TRACES)
    for _ in range(3):
        one.deliver()
        assert one.sql("select count(*) from pg_locks where locktype = 'advisory'") == [(0,)]
    # Later rows of a transaction see what its first one has left.
    first = one.sql("select distinct on (n / 1000000) found from results order by n / 1000000, n")
    assert len(first) == 3
    assert len({found for (found,) in first}) == 1, first
    assert len(one.sql("select distinct found from results")) > 1
    assert one.writers() == 1


def test_a_table_that_is_made_anew_is_written_as_it_is(one: Kept) -> None:
    """Its columns are in another order, and of other types."""
    one.deliver(2)
    one.sql("alter table results rename to older")
    one.sql("create table results (found text, n numeric(20), pid int default pg_backend_pid())")
    one.sql("insert into results (n, pid) select n, pid from older")
    one.deliver()
    assert one.writers() == 1
    one.sql("alter table results alter n type integer")
    pending = one.trial.stage(one.sink, 4)
    with pytest.raises(sl.errors.ConfigurationError, match="too narrow"):
        one.sink.commit(pending)


def test_a_newer_run_fences_a_session_that_is_kept(one: Kept) -> None:
    one.deliver(2)
    pending = one.trial.stage(one.sink, 3)
    one.sink.target.claim(replace(one.sink._writer, generation=9))
    with pytest.raises(sl.errors.FencedError):
        one.sink.commit(pending)
    assert one.writers() == 1


def test_a_server_with_older_data_is_noticed(one: Kept) -> None:
    """The session goes on, as through a proxy that has turned to a server that was restored."""
    one.deliver()
    ((mark,),) = one.sql("select mark from strandline_deliveries where lane = 0")
    one.deliver()
    one.sql("update strandline_deliveries set mark = %s where lane = 0", mark)
    pending = one.trial.stage(one.sink, 3)
    with pytest.raises(sl.errors.CorruptionError, match="the target has less on record than it had"):
        one.sink.commit(pending)
    one.sql("drop table strandline_deliveries")
    with pytest.raises(sl.errors.CorruptionError, match="is gone"):
        one.sink.commit(pending)
    assert one.writers() == 1


def test_where_deliveries_are_rare_no_session_waits_for_the_next_one(
    one: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.deliver(2)
    assert len(one.sessions()) == 1
    monkeypatch.setattr(one.sink.target.idle, "_idle_s", 0.0)
    monkeypatch.setattr(postgres, "_IDLE_S", 0.0)
    one.deliver()
    _await_none(one)
    assert one.writers() == 2


def test_a_session_does_not_live_for_ever(one: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    one.deliver()
    monkeypatch.setattr(postgres, "_LIFE_S", 0.0)
    one.deliver()
    assert one.writers() == 2


def test_a_sink_that_nobody_closes_leaves_no_session(one: Kept) -> None:
    one.deliver(2)
    assert one.sessions()
    one.sink = None
    _await_none(one)
    one.begin()


def test_tasks_keep_no_session(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their processes outlive the run."""
    monkeypatch.setattr(transactional, "_SMALL_BYTES", 0)
    kept.deliver(3)
    _await_none(kept)
    assert kept.writers() == 3 * TASKS


def _await_none(kept: Kept) -> None:
    """A server's process ends some moments after its connection."""
    with psycopg.connect(kept.server.dsn(DATABASE), autocommit=True) as db:
        for _ in range(200):
            if not kept.sessions():
                return
            db.execute("select pg_sleep(0.05)")
    raise AssertionError(kept.sessions())
