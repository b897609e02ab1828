"""Every error: one root, a message with the next step, and fields that survive pickling."""

from __future__ import annotations

import copy
import inspect
import pickle

import cloudpickle
import msgspec
import pytest

from strandline.core import errors
from strandline.core.errors import StrandlineError, UserCodeError
from strandline.core.failure import Failure, from_failure, to_failure

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]


def test_there_is_one_root() -> None:
    assert len(KINDS) > 10
    assert all(issubclass(kind, StrandlineError) for kind in KINDS)
    assert all(kind.__doc__ for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("through", [pickle, cloudpickle, copy])
def test_errors_pickle_with_their_fields(kind: type[StrandlineError], through: object) -> None:
    error = kind("what went wrong", hint="do this", operator="op", key="'k'", size_bytes=5)
    again = copy.copy(error) if through is copy else through.loads(through.dumps(error))  # type: ignore[attr-defined]
    assert type(again) is kind
    assert (again.message, again.hint, again.fields) == (error.message, error.hint, error.fields)
    assert (again.operator, again.size_bytes) == ("op", 5)
    assert str(again) == "what went wrong\n  next step: do this"


def test_an_error_without_a_hint_is_its_message() -> None:
    assert str(StrandlineError("it")) == "it"
    assert not hasattr(StrandlineError("it"), "operator")


@pytest.mark.parametrize("kind", KINDS)
def test_errors_travel_to_the_driver(kind: type[StrandlineError]) -> None:
    error = kind("it", hint="that", operator="op", count=3, share=0.5, none=None, key=("a", 1))
    data = msgspec.msgpack.encode(to_failure(error))
    again = from_failure(msgspec.msgpack.decode(data, type=Failure))
    assert type(again) is kind
    assert (again.message, again.hint) == ("it", "that")
    assert again.fields == {"operator": "op", "count": 3, "share": 0.5, "none": None, "key": "('a', 1)"}


def test_an_error_with_text_or_numbers_that_cannot_be_sent_is_sent_all_the_same() -> None:
    error = UserCodeError("half of a pair: \ud800", hint="\udfff", event="\ud800", large=1 << 70)
    again = from_failure(msgspec.msgpack.decode(msgspec.msgpack.encode(to_failure(error)), type=Failure))
    assert again.message.startswith("half of a pair: ")
    assert str(1 << 70) in str(again.fields["large"])
