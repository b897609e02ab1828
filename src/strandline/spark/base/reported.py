"""What Spark says of an expression that fails: where we pass it on, PySpark does not log it too, with its stack."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar

from pyspark.logger import PySparkLogger

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_is_reported: ContextVar[bool] = ContextVar("strandline_is_reported", default=False)


@contextlib.contextmanager
def errors_reported() -> Iterator[None]:
    """Whoever asks Spark within this reports what is wrong. What other threads do is logged as ever."""
    for name in _LOGGERS:
        logger = PySparkLogger.getLogger(name)
        if _is_news not in logger.filters:
            logger.addFilter(_is_news)
    before = _is_reported.set(True)
    try:
        yield
    finally:
        _is_reported.reset(before)


def _is_news(record: logging.LogRecord) -> bool:
    return not _is_reported.get()
