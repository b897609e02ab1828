"""What PySpark logs of errors that somebody else reports. Without Spark."""

from __future__ import annotations

import threading
from typing import Any

from pyspark.logger import PySparkLogger

from strandline.spark.base.quiet import errors_reported


def test_only_what_is_reported_is_not_logged(caplog: Any) -> None:
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    inside, done = threading.Event(), threading.Event()

    def report() -> None:
        with errors_reported():
            inside.set()
            done.wait(10)
            logger.error("reported")

    other = threading.Thread(target=report)
    other.start()
    inside.wait(10)
    with errors_reported(), errors_reported():
        logger.error("reported, too")
    logger.error("of a user's own, meanwhile")
    done.set()
    other.join()
    logger.error("of a user's own, afterwards")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, said
    assert "meanwhile" in said[0]
    assert "afterwards" in said[1]
