"""Rows into PostgreSQL: a real server that is killed, is away, hangs, refuses; what it holds then, read by its own client."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import strandline as sl
from strandline.core import failpoints
from strandline.core.errors import (
    AccessError,
    ConfigurationError,
    ConflictError,
    CorruptionError,
    FencedError,
    StrandlineError,
)
from strandline.ends.postgres import target as postgres
from strandline.spark.sinks import transactional
from strandline.testing.sinks import conformance
from strandline.testing.sinks.conformance import Check, Promise, Trial, checks, name_of
from tests.ends import inprocess
from tests.ends.test_postgres_rows import writer
from tests.lossy import Proxy
from tests.postgres import DATABASE, PASSWORD, Server


@pytest.fixture
def dsn(postgresql: Server) -> str:
    return postgresql.schema()


@pytest.fixture
def proxy(postgresql: Server) -> Iterator[Proxy]:
    made = Proxy(postgresql.port)
    yield made
    made.close()


def through(proxy: Proxy, server: Server, dsn: str) -> str:
    return dsn.replace(f":{server.port}/", f":{proxy.port}/")


# Not that of READ COMMITTED.
COMMIT = b"COMMIT\0"


def numbers_of(server: Server, dsn: str) -> list[int]:
    with server.connect(dsn) as db:
        return [n for (n,) in db.execute("select n from results")]


@contextmanager
def away(server: Server) -> Iterator[None]:
    """Nobody may connect to the database, and who is connected is not any more."""
    with server.connect() as db:
        db.execute(f"alter database {DATABASE} allow_connections false")
        db.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [DATABASE])
        yield
        db.execute(f"alter database {DATABASE} allow_connections true")


@contextmanager
def mute(proxy: Proxy) -> Iterator[None]:
    proxy.lose(COMMIT, times=1000)
    yield
    proxy.lose(COMMIT, times=0)


def trial_of(server: Server, dsn: str, proxy: Proxy, **given: Any) -> Trial:
    with server.connect(dsn) as db:
        db.execute("create table results (n bigint" + (" primary key)" if "key" in given else ")"))
    return Trial(
        inprocess.Session(),
        make=lambda: sl.sinks.postgres(through(proxy, server, dsn), "results", **given),
        visible=lambda: numbers_of(server, dsn),
        away=lambda: away(server),
        mute=lambda: mute(proxy),
    )


KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "appended by tasks": ({}, 0),
    "appended by the driver": ({}, 4 << 20),
    "by key": ({"key": "n"}, 4 << 20),
}


BREAKING = {
    conformance.a_crash_anywhere_in_a_write, conformance.a_crash_anywhere_in_a_commit_and_in_the_restart,
    conformance.a_target_that_is_away_is_caught_up_with, conformance.an_answer_that_is_lost_is_asked_for,
}  # fmt: skip


def cases() -> list[Any]:
    """What a lane holds is checked of rows that tasks append, which hides least; what breaks in it, of all."""
    found = []
    for check, kind, crashes in itertools.product(checks(Promise.LASTING, Promise.WAITS), KINDS, (3, 30)):
        is_telling = check in BREAKING or (kind == "appended by tasks" and check not in inprocess.OF_WAITING_ROWS)
        marks = () if is_telling and crashes == 3 else pytest.mark.soak
        found.append(pytest.param(check, crashes, *KINDS[kind], id=f"{name_of(check)}-{crashes}-{kind}", marks=marks))
    return found


# A driver that dies leaves its connections open, and its process closes them.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(("check", "crashes", "given", "small_bytes"), cases())
def test_conformance(
    postgresql: Server,
    dsn: str,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    check: Check,
    given: Any,
    crashes: int,
    small_bytes: int,
) -> None:
    monkeypatch.setattr(transactional, "_SMALL_BYTES", small_bytes)
    trial = trial_of(postgresql, dsn, proxy, **given)
    trial.crashes = crashes
    check(trial)


class Table:
    """A table with rows of three columns, and a sink's target for it, without a job."""

    def __init__(self, server: Server, dsn: str, columns: str, **given: Any) -> None:
        self.server, self.dsn = server, dsn
        self.sql(f"create table results ({columns})")
        self.given: Any = {"table": "results", **given}
        self.target = self.target_at(dsn)
        self.mark: str | None = None
        self.target.claim(writer(1))

    def target_at(self, dsn: str, **given: Any) -> Any:
        return sl.sinks.postgres(dsn, **{**self.given, **given}).target

    def sql(self, text: str, *values: Any) -> Any:
        with self.server.connect(self.dsn) as db:
            found = db.execute(text, values or None)
            return found.fetchall() if found.description else None

    def write(self, *batches: pa.RecordBatch, target: Any = None, mark: str = "1", generation: int = 1) -> None:
        with closing((target or self.target).connect(writer(generation), 0)) as lane:
            lane.write(batches, lane.reached(), mark)

    def reached(self) -> str | None:
        with closing(self.target.connect(writer(1), 0)) as lane:
            found: str | None = lane.reached()
            return found


def numbers(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(values, pa.int64())})


@pytest.fixture
def table(postgresql: Server, dsn: str) -> Table:
    return Table(postgresql, dsn, "n bigint")


def test_the_answer_to_a_commit_is_lost(postgresql: Server, dsn: str, proxy: Proxy) -> None:
    """The rows are there, and the next connection sees that they are."""
    trial = trial_of(postgresql, dsn, proxy, writers=1)
    sink = trial.start()
    for epoch in range(1, 4):
        proxy.lose(COMMIT, times=epoch)
        assert sink.commit(trial.stage(sink, epoch)) == []
    trial.expect(1, 2, 3)
    # Nobody committed a second time.
    assert proxy.asked == 3


def test_a_server_that_never_answers_is_given_up_in_time(
    postgresql: Server, dsn: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_SPARE_S", 0.0)
    trial = trial_of(postgresql, dsn, proxy, writers=1, timeout="1s")
    sink = trial.start()
    sink.patience_s = 10.0
    proxy.lose(COMMIT, fate="held")
    assert sink.commit(trial.stage(sink, 1)) == []
    assert proxy.asked == 1
    proxy.lose(b"copy ", fate="held")
    assert sink.commit(trial.stage(sink, 2)) == []
    trial.expect(1, 2)
    assert proxy.asked == 2


def test_a_server_that_is_killed_in_a_transaction_and_comes_back(postgresql: Server, dsn: str, proxy: Proxy) -> None:
    """It crashes before the commit, and right after the answer to it: that one must be on disk."""
    trial = trial_of(postgresql, dsn, proxy, writers=1)
    sink = trial.start()
    first = trial.stage(sink, 1)
    failpoints.arm("sink.postgres.written", postgresql.kill)
    assert sink.commit(first) == first
    second = trial.stage(sink, 2)
    assert sink.commit([*first, *second]) == [*first, *second]
    with pytest.raises(sl.errors.UnavailableError, match="does not answer"):
        trial.start([*first, *second], 2)
    postgresql.start()
    failpoints.arm("sink.deliver.after", postgresql.kill)
    # What waits comes in several transactions, and it was the first of them.
    assert sink.commit([*first, *second]) == [*first, *second]
    postgresql.start()
    assert sink.commit([*first, *second]) == []
    trial.expect(1, 2)
    trial.start([*first, *second], 2)
    trial.expect(1, 2)


def test_an_older_driver_that_was_stopped_in_a_transaction_does_not_hold_up_the_next(table: Table) -> None:
    older = table.target.connect(writer(1), 0)
    claimed = threading.Event()

    def take_over() -> None:
        table.target.claim(writer(2))
        claimed.set()

    failpoints.arm("sink.postgres.written", lambda: (take_over(), None)[1])
    with closing(older), pytest.raises(psycopg.OperationalError, match="terminat"):
        older.write([numbers(1)], None, "1")
    assert claimed.is_set()
    with (
        closing(table.target.connect(writer(1), 0)) as again,
        pytest.raises(FencedError, match="a newer driver writes"),
    ):
        again.write([numbers(1)], None, "1")
    with pytest.raises(
        ConfigurationError, match="has a record of sink 'out' of job 'job', life  under the same identity"
    ):
        table.target.claim(replace(writer(3), life="another"))
    with pytest.raises(FencedError, match="a newer driver writes"):
        table.target.claim(writer(1))
    table.write(numbers(2), generation=2)
    assert table.sql("select n from results") == [(2,)]


def test_whoever_holds_up_a_lane_is_found_by_its_claim(table: Table) -> None:
    """An older driver was stopped as soon as it had locked its lane's record."""
    with closing(table.target.connect(writer(1), 0)) as older, older._db.transaction(force_rollback=True):
        older._check(None)
        holds = "select count(*) from pg_locks where pid = %s and relation = 'strandline_deliveries'::regclass and mode = %s"
        pid = older._db.info.backend_pid
        assert table.sql(holds, pid, "RowExclusiveLock") == [(1,)]
        table.target.claim(writer(2))
        table.write(numbers(1), generation=2)
        assert table.sql(holds, pid, "RowExclusiveLock") == [(0,)]
        older._db.close()
    assert table.sql("select n from results") == [(1,)]


def test_each_lock_of_a_lane_comes_after_that_of_the_claim(table: Table) -> None:
    """So that there is no moment in which a stopped driver holds a lane, and a newer one cannot see that."""
    with closing(table.target.connect(writer(1), 0)) as lane:
        said: list[str] = []
        execute = lane._db.execute
        lane._db.execute = lambda query, *args: (said.append(query), execute(query, *args))[1]
        lane.write([numbers(1)], None, "1")
    locks = [
        query for query in said if "for share" in query or "for update" in query or query.startswith("insert into")
    ]
    assert ["for share" in query for query in locks] == [True, False, False]


def test_two_tasks_write_the_same_lane(table: Table) -> None:
    with closing(table.target.connect(writer(1), 0)) as one, closing(table.target.connect(writer(1), 0)) as other:
        assert one.reached() is other.reached() is None
        one.write([numbers(1)], None, "1")
        with pytest.raises(ConflictError, match="another task writes lane 0"):
            other.write([numbers(1)], None, "1")
        one.write([numbers(2)], "1", "2")
    assert table.sql("select n from results order by n") == [(1,), (2,)]


def test_a_record_that_is_gone_or_older_is_not_guessed_at(table: Table) -> None:
    table.write(numbers(1))
    table.sql("delete from strandline_deliveries")
    with pytest.raises(CorruptionError, match="this run's claim is not in strandline_deliveries any more"):
        table.write(numbers(2))
    table.sql("drop table strandline_deliveries")
    with pytest.raises(CorruptionError, match="the table strandline_deliveries is gone"):
        table.write(numbers(2))
    with pytest.raises(CorruptionError, match="has no record of the sink, and rows that the checkpoint lists may be"):
        table.target.claim(replace(writer(2), has_claimed=True))
    # It may only be renamed: no other one is in its way.
    assert table.sql("select to_regclass('strandline_deliveries')") == [(None,)]
    table.target.claim(writer(2))
    table.target.claim(replace(writer(3), has_claimed=True))
    assert table.sql("select n from results") == [(1,)]


def test_commits_are_on_disk_whatever_the_server_is_set_to(table: Table) -> None:
    (on_server,) = table.sql("show synchronous_commit")[0]
    assert on_server == "off"
    table.sql("create table seen (setting text)")
    table.sql(
        "create function note() returns trigger language plpgsql as "
        "$$ begin insert into seen select current_setting('synchronous_commit'); return null; end $$"
    )
    table.sql("create trigger note after insert on results execute function note()")
    table.write(numbers(1))
    assert table.sql("select setting from seen") == [("on",)]


class OutOfIdsError(psycopg.errors.ProgramLimitExceeded):
    """What the server says when all transaction ids are in use, until it has done VACUUM."""

    diag: Any = SimpleNamespace(source_function="GetNewTransactionId")


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure, psycopg.errors.AdminShutdown,
        psycopg.errors.CannotConnectNow, psycopg.errors.TooManyConnections, psycopg.errors.DiskFull,
        psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable, psycopg.errors.ReadOnlySqlTransaction,
        psycopg.errors.IdleInTransactionSessionTimeout, psycopg.OperationalError, psycopg.InterfaceError,
        ConnectionResetError, TimeoutError, OutOfIdsError,
    ],
)  # fmt: skip
def test_what_may_pass_is_tried_again(table: Table, error: type[Exception]) -> None:
    assert table.target.may_pass(error())


def test_what_will_not_pass_is_not(table: Table) -> None:
    for error in (
        psycopg.errors.UniqueViolation, psycopg.errors.UndefinedTable, psycopg.errors.ProgramLimitExceeded,
        psycopg.DataError, ValueError,
    ):  # fmt: skip
        assert not table.target.may_pass(error())


def test_a_server_that_became_a_replica_is_waited_for(postgresql: Server, dsn: str, proxy: Proxy) -> None:
    """Its record may lag behind what the primary server had: that says nothing until it can be written to."""
    trial = trial_of(postgresql, dsn, proxy, writers=1)
    sink = trial.start()
    assert sink.commit(trial.stage(sink, 1)) == []
    with postgresql.connect(dsn) as db:
        (mark,) = db.execute("select mark from strandline_deliveries where lane = 0").fetchone()
        db.execute("update strandline_deliveries set mark = null where lane = 0")
    pending = trial.write(sink, 2, trial.rows(2))
    with postgresql.connect() as db:
        db.execute(f"alter database {DATABASE} set default_transaction_read_only = on")
        # No session outlives a failover.
        db.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [DATABASE])
        assert sink.commit(pending) == pending
        db.execute(f"alter database {DATABASE} reset default_transaction_read_only")
    with pytest.raises(CorruptionError, match="the target has less on record than it had"):
        sink.commit(pending)
    with postgresql.connect(dsn) as db:
        db.execute("update strandline_deliveries set mark = %s where lane = 0", [mark])
    assert sink.commit(pending) == []
    trial.expect(1, 2)


def test_a_deadlock_is_tried_again(table: Table) -> None:
    """The other one holds what the sink needs, and waits for what the sink holds."""
    table.sql("alter table results add primary key (n)")
    table.sql("insert into results values (1), (2)")
    other = table.server.connect(table.dsn)
    other.autocommit = False
    other.execute("update results set n = n where n = 2")
    target = table.target_at(table.dsn, key="n", delete="gone")
    waits = threading.Thread(
        target=lambda: other.execute("set deadlock_timeout = '1h'; update results set n = n where n = 1")
    )
    batch = pa.RecordBatch.from_pydict({"n": pa.array([1, 2], pa.int64()), "gone": [True, True]})
    with closing(target.connect(writer(1), 0)) as lane:
        lane._db.execute("set deadlock_timeout = '100ms'")
        put = lane._put

        def then_waits(batches: Any) -> None:
            lane._db.execute("select from results where n = 1 for update")
            waits.start()
            put(batches)

        lane._put = then_waits
        with pytest.raises(psycopg.errors.DeadlockDetected) as caught:
            lane.write([batch], None, "1")
    assert target.may_pass(caught.value)
    waits.join()
    other.commit()
    other.close()
    table.write(batch, target=target)
    assert table.sql("select count(*) from results") == [(0,)]


def test_rows_that_are_refused_are_dead_letters(postgresql: Server, dsn: str, proxy: Proxy, tmp_path: Path) -> None:
    trial = trial_of(postgresql, dsn, proxy, writers=1, on_error="dead-letter", dead_letters=tmp_path / "dead")
    with postgresql.connect(dsn) as db:
        db.execute("alter table results add check (n % 6 <> 3)")
    sink = trial.start()
    assert sink.commit(trial.stage(sink, 1)) == []
    assert sorted(trial.visible()) == [n for n in range(1_000_000, 1_000_006) if n % 6 != 3]
    letters = [
        json.loads(line)
        for path in (tmp_path / "dead").rglob("*")
        if path.is_file()
        for line in path.read_text().splitlines()
    ]
    assert len(letters) == 1
    assert "violates check constraint" in str(letters[0])


RAISE = """create function refuse() returns trigger language plpgsql as $$ begin {} return new; end $$;
create trigger refuse before insert on results for each row execute function refuse()"""


@pytest.mark.parametrize("code", ["45000", "MY001", "42501", "0A000", "28000"])
def test_a_trigger_may_refuse_a_row_with_any_code(
    postgresql: Server, dsn: str, proxy: Proxy, tmp_path: Path, code: str
) -> None:
    trial = trial_of(postgresql, dsn, proxy, writers=1, on_error="dead-letter", dead_letters=tmp_path / "dead")
    with postgresql.connect(dsn) as db:
        db.execute(RAISE.format(f"if new.n % 6 = 3 then raise exception 'no' using errcode = '{code}'; end if;"))
    sink = trial.start()
    assert sink.commit(trial.stage(sink, 1)) == []
    assert sorted(trial.visible()) == [n for n in range(1_000_000, 1_000_006) if n % 6 != 3]
    assert len(list((tmp_path / "dead").rglob("*.json"))) == 1


def test_a_row_of_another_writer_under_the_same_key_is_no_refusal(postgresql: Server, dsn: str, proxy: Proxy) -> None:
    """While an index is built concurrently, PostgreSQL may refuse to replace a row, once."""
    trial = trial_of(postgresql, dsn, proxy, key="n")
    taken = "raise unique_violation using detail = 'Key (n)=(1000000) already exists.';"
    with postgresql.connect(dsn) as db:
        db.execute("create sequence tries")
        db.execute(RAISE.format(f"if nextval('tries') = 1 then {taken} end if;"))
    sink = trial.start()
    assert sink.commit(trial.stage(sink, 1)) == []
    trial.expect(1)


def test_rows_that_refer_to_those_of_an_earlier_sink_wait_for_them(
    postgresql: Server, dsn: str, proxy: Proxy, tmp_path: Path
) -> None:
    trial = trial_of(postgresql, dsn, proxy, writers=1, on_error="dead-letter", dead_letters=tmp_path / "dead")
    with postgresql.connect(dsn) as db:
        db.execute("create table parents (n bigint primary key)")
        db.execute("alter table results add foreign key (n) references parents")
    sink = trial.start()
    sink.patience_s = 0.0
    staged = trial.stage(sink, 1)
    sink.is_behind = True
    assert sink.commit(staged) == staged
    status = sink.status()
    assert status.failure.endswith("table results refuses rows: ForeignKeyViolation (results_n_fkey)")
    with postgresql.connect(dsn) as db:
        db.execute("insert into parents select generate_series(1000000, 1000004)")
    assert sink.commit(staged) == staged
    sink.is_behind = False
    assert sink.commit(staged) == []
    assert sorted(trial.visible()) == list(range(1_000_000, 1_000_005))
    assert len(list((tmp_path / "dead").rglob("*.json"))) == 1


@pytest.mark.parametrize(
    ("change", "back", "words"),
    [
        ("alter table results rename to away", "alter table away rename to results", "table results does not exist"),
        ("revoke insert on results from etl", "grant insert on results to etl", "user etl may not insert"),
    ],
)  # fmt: skip
def test_a_table_that_is_gone_or_forbidden_for_a_while_ends_no_job(
    postgresql: Server, dsn: str, proxy: Proxy, tmp_path: Path, change: str, back: str, words: str
) -> None:
    """It is no row's fault either."""
    schema = dsn.rpartition("%3D")[2]
    with postgresql.connect(dsn) as db:
        db.execute("create role etl login password 'of-etl'")
        db.execute(f"grant all on schema {schema} to etl")
        try:
            as_etl = dsn.replace(f"tests:{PASSWORD}@", "etl:of-etl@")
            trial = trial_of(postgresql, as_etl, proxy, writers=1, on_error="dead-letter", dead_letters=tmp_path)
            sink = trial.start()
            staged = trial.stage(sink, 1)
            db.execute(change)
            with pytest.raises(StrandlineError, match=words) as caught:
                sink.commit(staged)
            assert isinstance(caught.value, AccessError) or not isinstance(caught.value, ConfigurationError)
            assert not list(tmp_path.iterdir())
            db.execute(back)
            trial.start(staged, 1)
            trial.expect(1)
        finally:
            db.execute("drop owned by etl; drop role etl")
