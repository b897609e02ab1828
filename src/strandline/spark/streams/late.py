"""Late events of built-in aggregation: told from the others in Spark's JVM, before rows become accumulators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from strandline.runtime.rowlayout import FIRED, ORIGIN, TIME
from strandline.spark.base.hidden import end_of
from strandline.spark.streams.nodes import Node


@dataclass(frozen=True, eq=False)
class LateNode(Node):
    """The rows that keepers will drop since all of their windows are done, and those without a time.

    Which these are depends on an epoch's watermark alone, which keepers have from the driver. Like what an operator
    gives, they move no watermark and are not the source's rows once more.
    """

    kind: Any = None
    """Tumbling or Sliding."""
    lateness_us: int = 0
    uid: str = ""
    """The operator whose late events they are."""

    def pick(self, df: DataFrame, watermark_us: int | None, fired_us: int | None) -> DataFrame:
        """Keep late rows. What timers gave further up comes before the watermark moves on from `fired_us`."""
        reached = _literal(watermark_us)
        if FIRED in df.columns:
            reached = f"if(coalesce({FIRED}, false), {_literal(fired_us)}, {reached})"
        kind = self.kind
        end = end_of(kind.offset_us, kind.every_us, kind.size_us)
        # With gaps between windows, a row may be in none: that is not late.
        late = df.where(f"{TIME} is null or ({TIME} < {end} and {end} + {self.lateness_us}L <= {reached})")
        return late.drop(ORIGIN)


def _literal(time_us: int | None) -> str:
    return "cast(null as bigint)" if time_us is None else f"cast({time_us} as bigint)"
