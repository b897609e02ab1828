"""Skew in words: one key that is the reason is named, and uneven key groups are told from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import to_builtins

from strandline.control.skew import key_text, merged_keys, skew_text, without_keys
from strandline.control.status import KeeperStatus, Status
from strandline.core.heavykey import HeavyKey
from tests.control.fake import KEEPER, FakeRun


def keepers(*rows: int, keys: Sequence[tuple[str, int, float]] = ()) -> list[KeeperStatus]:
    """Return partitions with so many rows; keys have a share of those of their partition."""
    return [
        replace(
            KEEPER, uid="op", partition=at, all_rows_in=count, recent_rows=float(count), state_bytes=None,
            heaviest_keys=[HeavyKey({"card": card}, share, 0.01, at) for card, place, share in keys if place == at],
        )
        for at, count in enumerate(rows)
    ]  # fmt: skip


def status(*rows: int, keys: Sequence[tuple[str, int, float]] = ()) -> Status:
    return replace(FakeRun().status(), keepers=keepers(*rows, keys=keys))


def test_shares_of_partitions_become_shares_of_the_operator() -> None:
    merged = merged_keys(keepers(600, 200, 200, keys=[("17", 0, 0.5), ("3", 1, 0.9), ("4", 2, 0.05), ("5", 0, 0.02)]))
    assert [(key_text(key), key.share, key.error, key.partition) for key in merged] == [
        ("card=17", 0.3, 0.006, 0), ("card=3", 0.18, 0.002, 1), ("card=5", 0.012, 0.006, 0), ("card=4", 0.01, 0.002, 2),
    ]  # fmt: skip
    assert merged_keys([]) == merged_keys(keepers(0, 0, keys=[("17", 0, 0.5)]))[1:] == []
    many = [(str(n), n % 2, 0.03) for n in range(10)]
    assert len(merged_keys(keepers(10, 10, keys=many))) == 5


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (status(0, 0), "No rows since the last start or restart."),
        (status(500, 510), "Rows are spread evenly."),
        (
            status(480, 180, 170, 170, keys=[("17", 0, 0.646)]),
            "Skewed: partition 0 has 48 % of the rows, 1.9 times an even share. One key, card=17, has about 31 % "
            "(± 1 %) of this operator's rows lately: more partitions do not divide a key, all of whose rows go to one "
            "of them.",
        ),
        (
            status(620, 380, keys=[("oslo", 0, 0.5), ("lima", 0, 0.4), ("bergen", 1, 0.97)]),
            "Somewhat uneven: partition 0 has 62 % of the rows, 1.2 times an even share. 3 keys have about 93 % of "
            "this operator's rows lately, the heaviest, card=bergen, about 37 % (± 1 %): more partitions do not "
            "divide a key, all of whose rows go to one of them.",
        ),
        (
            status(500, 500, keys=[("a", 0, 0.99), ("b", 1, 0.2)]),
            "Rows are spread evenly. One key, card=a, has about 50 % (± 1 %) of this operator's rows lately: more "
            "partitions do not divide a key, all of whose rows go to one of them.",
        ),
        (
            status(480, 180, 170, 170, keys=[("17", 0, 0.04)]),
            "Skewed: partition 0 has 48 % of the rows, 1.9 times an even share. No single key is heavy, the heaviest "
            "has about 2 % of the rows: key groups are uneven, and another parallelism may divide them better.",
        ),
        (
            status(480, 180, 170, 170),
            "Skewed: partition 0 has 48 % of the rows, 1.9 times an even share. No single key has many rows: key "
            "groups are uneven, and another parallelism may divide them better.",
        ),
        # Of so few rows of a partition, nothing is known of its keys.
        (status(99, 40, 39, 38), "Skewed: partition 0 has 46 % of the rows, 1.8 times an even share."),
        (status(1000), "One partition: it has all rows."),
        (
            status(1000, keys=[("17", 0, 0.4)]),
            "One partition: it has all rows. One key, card=17, has about 40 % (± 1 %) of this operator's rows lately: "
            "among more partitions, one would still have all rows of such a key.",
        ),
    ],
)
def test_words(state: Status, text: str) -> None:
    assert skew_text(state, "op") == text
    hidden = skew_text(without_keys(state), "op")
    assert "card" not in hidden
    assert hidden == text.replace(" card=17,", "").replace(" card=bergen,", "").replace(" card=a,", "").replace(
        "key, has", "key has"
    ).replace("heaviest, about", "heaviest about")


def test_state_may_be_skewed_where_rows_are_not() -> None:
    first, second = keepers(500, 500)
    uneven = replace(status(), keepers=[replace(first, state_bytes=100), replace(second, state_bytes=900)])
    assert skew_text(uneven, "op") == "Rows are spread evenly. Partition 1 has 90 % of the state."


def test_without_keys_everything_else_stays() -> None:
    whole = FakeRun().status()
    hidden = without_keys(whole)
    assert "ann" in str(to_builtins(whole.keepers))
    assert "ann" not in str(to_builtins((hidden.keepers, hidden.operators)))
    assert hidden.operators[0].heaviest_keys[0].share == whole.operators[0].heaviest_keys[0].share
    assert replace(hidden, keepers=whole.keepers, operators=whole.operators) == whole
