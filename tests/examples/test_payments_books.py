"""The books of the dashboard, file by file, beside the oracle over whole histories."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from examples.payments.books import Books
from examples.payments.files import read_files, write_files
from examples.payments.generator import World, payments
from examples.payments.model import KINDS, USUAL, Rules
from examples.payments.oracle import oracle

PER_FILE = 2_000
FILES = 5


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("payments")
    list(write_files(made, payments(World(seed=3, cards=150, fraud=0.01)), files=FILES, per_file=PER_FILE))
    return made


def read(directory: Path, rules: Rules = USUAL) -> Books:
    books = Books(directory, rules)
    while books.read():
        pass
    return books


@pytest.mark.parametrize("rules", [USUAL, Rules(tests=6, deviations=3)], ids=["usual", "other"])
def test_after_each_file_the_books_are_what_the_oracle_says(directory: Path, rules: Rules) -> None:
    books, all_payments = read(directory, rules), list(read_files(directory))
    assert books.payments == len(all_payments) == FILES * PER_FILE
    for end in range(0, books.payments + 1, PER_FILE):
        assert books.expected(end) == Counter(oracle(all_payments[:end], rules))
        assert books.cents(end) == sum(payment.amount_cents for payment in all_payments[:end])
    assert {alert.kind for alert in books.expected(books.payments)} == {*KINDS}


def test_a_fork_is_to_give_the_alerts_of_later_payments_only(directory: Path) -> None:
    books = read(directory)
    begin, end = 2 * PER_FILE, 4 * PER_FILE
    assert books.expected(end, begin) == books.expected(end) - books.expected(begin)
    assert books.expected(end, begin)


def test_payments_that_end_no_file_are_not_known(directory: Path) -> None:
    books = read(directory)
    assert books.cents(PER_FILE + 1) is None
    assert books.cents(books.payments + PER_FILE) is None
    with pytest.raises(LookupError):
        books.expected(PER_FILE + 1)


def test_rules_differ(directory: Path) -> None:
    usual, other = read(directory).expected(FILES * PER_FILE), read(directory, Rules(6, 3)).expected(FILES * PER_FILE)
    assert usual - other
    assert other - usual


def test_the_generator_goes_on_after_payments_that_are_there(directory: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    def write(*more: str) -> None:
        command = [sys.executable, "-m", "examples.payments.files", str(tmp_path), "--seed=3", "--cards=150"]
        subprocess.run([*command, "--pace=0", *more], check=True, stdout=subprocess.DEVNULL)

    write("--files=2", "--per-file=100")
    write("--files=3", "--per-file=40", "--after=200")
    assert [payment.payment_id for payment in read_files(tmp_path)] == [*range(1, 321)]
    one = next(write_files(tmp_path / "one", payments(World(seed=3, cards=150)), files=1, per_file=320))
    assert [*read_files(tmp_path)] == [*read_files(one.parent)]
