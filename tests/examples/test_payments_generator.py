"""The payments generator and its files."""

import json
from collections import Counter, defaultdict
from itertools import islice, pairwise

import pytest

from examples.payments.files import list_files, read_files, write_files
from examples.payments.generator import COUNTRIES, World, payments
from examples.payments.model import CARD_TESTING, IMPOSSIBLE_TRAVEL, PAYMENT_SCHEMA, Payment
from examples.payments.oracle import oracle

WORLD = World(seed=7, cards=200)


def some(count: int, world: World = WORLD) -> list[Payment]:
    return list(islice(payments(world), count))


def test_same_seed_gives_the_same_payments_and_another_seed_others():
    assert some(2_000) == some(2_000)
    assert some(2_000) != some(2_000, World(seed=8, cards=200))


def test_first_payments_do_not_depend_on_how_many_follow():
    assert some(3_000)[:500] == some(500)


def test_payments_are_numbered_and_those_of_a_card_strictly_ordered_in_time():
    made = some(10_000)
    assert [payment.payment_id for payment in made] == list(range(1, 10_001))
    by_card = defaultdict(list)
    for payment in made:
        by_card[payment.card].append(payment.ts)
    assert all(a < b for times in by_card.values() for a, b in pairwise(times))


def test_a_card_belongs_to_one_account_and_values_are_sane():
    made = some(10_000)
    accounts = defaultdict(set)
    for payment in made:
        accounts[payment.card].add(payment.account)
        assert payment.amount_cents > 0
        assert payment.country in COUNTRIES
    assert all(len(names) == 1 for names in accounts.values())
    assert len({name for names in accounts.values() for name in names}) < len(accounts)


def test_fraud_of_both_kinds_is_in_it_and_none_without():
    kinds = Counter(alert.kind for alert in oracle(some(10_000, World(seed=3, cards=200, fraud=0.01))))
    assert kinds[CARD_TESTING] > 10
    assert kinds[IMPOSSIBLE_TRAVEL] > 10
    clean = {alert.kind for alert in oracle(some(10_000, World(seed=3, cards=200, fraud=0)))}
    assert CARD_TESTING not in clean
    assert IMPOSSIBLE_TRAVEL not in clean


def test_record_fields_are_the_schema():
    assert list(Payment._fields) == [column.split()[0] for column in PAYMENT_SCHEMA.split(", ")]


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_files_give_back_what_was_written(tmp_path, format):
    paths = list(write_files(tmp_path, payments(WORLD), files=5, per_file=100, format=format))
    assert [path.name for path in paths] == [f"payments-{n:06d}.{format}" for n in range(1, 6)]
    assert list(read_files(tmp_path)) == some(500)
    assert sorted(tmp_path.iterdir()) == paths


def test_numbering_continues_and_modification_times_increase(tmp_path):
    stream = payments(WORLD)
    list(write_files(tmp_path, stream, files=3, per_file=10))
    list(write_files(tmp_path, stream, files=3, per_file=10))
    there = list_files(tmp_path)
    assert [path.name[9:15] for path in there] == ["000001", "000002", "000003", "000004", "000005", "000006"]
    # A file source sees milliseconds.
    times_ms = [path.stat().st_mtime_ns // 1_000_000 for path in there]
    assert all(a < b for a, b in pairwise(times_ms))
    assert list(read_files(tmp_path)) == some(60)


def test_a_file_is_complete_when_it_appears(tmp_path):
    for path in write_files(tmp_path, payments(WORLD), files=4, per_file=50):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(rows) == 50
        assert rows[0]["ts"].endswith("+00:00")


def test_an_unfinished_file_is_not_listed(tmp_path):
    (tmp_path / ".payments-000001.json.tmp").write_text('{"payment_id": 1')
    assert list_files(tmp_path) == []


def test_a_stream_that_ends_ends_the_files(tmp_path):
    paths = list(write_files(tmp_path, iter(some(25)), files=10, per_file=10))
    assert len(paths) == 3
    assert len(list(read_files(tmp_path))) == 25


def test_the_pace_is_kept_between_files_only(tmp_path):
    slept = []
    list(write_files(tmp_path, payments(WORLD), files=4, per_file=1, pace_s=3.0, sleep=slept.append))
    assert len(slept) == 3
    assert all(0 <= seconds <= 9.0 for seconds in slept)
