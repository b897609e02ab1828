from __future__ import annotations

import copy
import gc
import pickle

import pytest

from strandline.core.errors import ConfigurationError
from strandline.types.records import Record, record_type


def test_names_and_positions() -> None:
    kind = record_type(["user", "two words", "class", "_x", "count"])
    record = kind._make(iter([1, 2, 3, 4, 5]))
    assert record == (1, 2, 3, 4, 5)
    assert (record.user, record.count) == (1, 5)
    assert [record[name] for name in kind._fields] == [1, 2, 3, 4, 5]
    assert (record[0], record[-1], record[1:3]) == (1, 5, (2, 3))
    assert not hasattr(record, "_x")
    assert not hasattr(record, "class")
    assert record._asdict() == {"user": 1, "two words": 2, "class": 3, "_x": 4, "count": 5}
    assert repr(record) == "Record(user=1, `two words`=2, class=3, _x=4, count=5)"
    assert isinstance(record, Record)


def test_one_class_for_the_same_names() -> None:
    assert record_type(["a", "b"]) is record_type(("a", "b"))
    assert record_type(["a", "b"]) is not record_type(["b", "a"])


def test_garbage_collection_while_a_class_is_made() -> None:
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for number in range(50):
            assert record_type([f"collected_{number}", "b"])._make([1, 2]).b == 2
    finally:
        gc.set_threshold(*before)


def test_copies_and_pickles() -> None:
    record = record_type(["a", "two words"])._make([1, [2]])
    for other in (pickle.loads(pickle.dumps(record)), copy.deepcopy(record)):
        assert other == record
        assert type(other) is type(record)
        assert hash(record_type(["a"])._make([1])) == hash((1,))


def test_replace() -> None:
    record = record_type(["a", "two words"])._make([1, 2])
    assert record._replace({"two words": 5}, a=0) == (0, 5)
    assert type(record._replace(a=0)) is type(record)
    with pytest.raises(ValueError, match="the record has no b"):
        record._replace(b=1)


def test_mistakes() -> None:
    record = record_type(["a", "b"])._make([1, 2])
    with pytest.raises(KeyError, match="the names are a, b"):
        record["c"]
    with pytest.raises(AttributeError):
        record.a = 5
    with pytest.raises(AttributeError):
        record.c = 5
    with pytest.raises(ConfigurationError, match="one name"):
        record_type(["a", "a"])
