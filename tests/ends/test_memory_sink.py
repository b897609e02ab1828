"""The sink in memory: rows of its own are never passed over in silence."""

from __future__ import annotations

from typing import Any

import pytest

import strandline as sl
from strandline.core.errors import CorruptionError
from strandline.core.ids import Epoch
from tests.ends.filesinks import Rows


def stage(sink: Any, epoch: int) -> str:
    staged: str = sink.write(Rows([epoch]), Epoch(epoch))
    return staged


def test_rows_that_it_staged_itself_and_has_no_more_are_an_error() -> None:
    sink = sl.sinks.memory()
    staged = stage(sink, 1)
    sink.recover([], Epoch(0), fresh=True)
    with pytest.raises(CorruptionError, match="epoch 1"):
        sink.recover([staged], Epoch(1), fresh=False)


def test_rows_of_a_driver_that_is_gone_are_gone() -> None:
    staged = stage(sl.sinks.memory(), 1)
    sink = sl.sinks.memory()
    other = stage(sink, 1)
    sink.recover([staged], Epoch(1), fresh=False)
    assert sink.rows == []
    assert other != staged
