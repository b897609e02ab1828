"""What the demos share: the project on the path, Spark's settings, how one begins and ends, and what is compared."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]


class DemoError(Exception):
    """The demo did not show what it must show."""


def session_settings(home: Path) -> dict[str, str]:
    """Settings that keep what Spark writes inside the demo's directory, and its JVM small."""
    return {
        # For a minute's run, half of a JVM's work would be optimising code that is hardly used again.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(home / "spark"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
    }


def compare(sink: str, found: Counter[Any], expected: Counter[Any]) -> None:
    """Raise DemoError unless a reader of the sink sees what the batch computation says."""
    missing, surplus = expected - found, found - expected
    if missing or surplus:
        examples = "".join(
            f"\n  {what}: {alert}"
            for what, some in (("missing", missing), ("surplus", surplus))
            for alert in list(some.elements())[:3]
        )
        raise DemoError(
            f"the {sink} differs from the batch computation: of {expected.total()} alerts {missing.total()} are "
            f"missing, {surplus.total()} are too many{examples}"
        )
    if not expected:
        raise DemoError("there were no alerts: nothing was shown")


def perform(play: Callable[[Path, contextlib.ExitStack], str]) -> int:
    """Play a demo in a directory of its own; return the exit code."""
    import strandline as sl

    began = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    home = Path(tempfile.mkdtemp(prefix="strandline-demo-"))
    try:
        with contextlib.ExitStack() as cleanup:
            shown = play(home, cleanup)
    except KeyboardInterrupt:
        print("demo: interrupted; everything was stopped and removed", flush=True)
        return 130
    except (DemoError, sl.errors.StrandlineError) as error:
        print(f"FAIL  {error}", flush=True)
        return 1
    print(f"PASS  {shown} ({time.monotonic() - began:.0f} s)", flush=True)
    return 0


def _interrupt(*_: Any) -> NoReturn:
    """Handle SIGTERM as Ctrl-C."""
    raise KeyboardInterrupt
