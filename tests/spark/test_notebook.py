"""Jobs in a notebook, by a real kernel: live panels, interrupts, and what objects look like."""

from __future__ import annotations

import html
import os
import queue
import re
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.spark, pytest.mark.long]

SETUP = """
    import threading, time
    from pathlib import Path

    import strandline as sl
    from tests import jvm

    home, hold = Path({home!r}), Path({home!r}) / "hold"
    spark = sl.session("notebook", "local[2]", **jvm.executors())

    class Count(sl.KeyedProcess):
        n = sl.Value("bigint", default=0)

        def on_event(self, event, ctx):
            while hold.exists():
                time.sleep(0.05)
            self.n.value += 1
            yield {{"key": ctx.key, "n": self.n.value}}

    rate = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    numbers = sl.stream(rate.selectExpr("concat('<u>k', value % 5) AS key", "timestamp AS at"), name="rate")
    counts = numbers.key_by("key").process(Count(), output="key string, n bigint", uid="count")

    def make():
        return sl.Job(
            "nb", sinks=[counts.to(sl.sinks.files(str(home / "out"), format="json", name="out"))],
            checkpoints=sl.Checkpoints(home / "ck", every="2s"), trigger="200ms",
            settings=sl.Settings(local_dir=str(home / "l"), parallelism=2),
        )

    def threads():
        return sorted(each.name for each in threading.enumerate() if "strandline" in each.name)

    job = make()
"""


@dataclass
class Cell:
    """What a cell has shown."""

    shown: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)
    """Kind of message, data by mime type, and display id."""
    printed: str = ""
    error: str = ""

    @property
    def html(self) -> str:
        return str(self.shown[-1][1].get("text/html", "")) if self.shown else ""

    @property
    def panel(self) -> str:
        """The last HTML as text."""
        return text_of(self.html)

    @property
    def value(self) -> str:
        return str(self.shown[-1][1]["text/plain"])


def text_of(markup: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", markup)))


class Kernel:
    def __init__(self, home: Path) -> None:
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "IPYTHONDIR": str(home / "ipython"),
        }
        self._manager = KernelManager(transport="ipc", ip=str(home / "k"))
        self._manager.start_kernel(env=env, cwd=str(home))
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)

    def run(self, code: str, *, interrupts: Sequence[Callable[[Cell], bool]] = ()) -> Cell:
        """Execute a cell; interrupt the kernel as soon as the cell has shown what each function waits for."""
        request, cell, due = self._client.execute(textwrap.dedent(code)), Cell(), list(interrupts)
        deadline = time.monotonic() + 200
        while True:
            assert time.monotonic() < deadline, cell
            try:
                message = self._client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind in ("display_data", "update_display_data", "execute_result"):
                cell.shown.append((kind, content["data"], content.get("transient", {}).get("display_id", "")))
                if due and due[0](cell):
                    due.pop(0)
                    self._manager.interrupt_kernel()
            elif kind == "stream":
                cell.printed += content["text"]
            elif kind == "error":
                cell.error = "\n".join([content["ename"], *content["traceback"]])
            elif (
                kind == "status"
                and content["execution_state"] == "idle"
                and message["parent_header"].get("msg_id") == request
            ):
                assert not due, cell
                return cell

    def end(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nb")


@pytest.fixture(scope="module")
def kernel(home: Path) -> Iterator[Kernel]:
    kernel = Kernel(home)
    try:
        cell = kernel.run(SETUP.format(home=str(home)))
        assert not cell.error, cell
        yield kernel
    finally:
        kernel.end()
    deadline = time.monotonic() + 60
    while left := processes(home):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def processes(home: Path) -> list[str]:
    """The processes that have something to do with the test: keepers and the kernel."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(home) in words:
            lines.append(words)
    return lines


def has_rows(cell: Cell) -> bool:
    return "● running" in cell.panel and bool(re.search(r"epoch ([3-9]|\d\d)", cell.panel))


def test_an_interrupt_stops_the_job_in_order_and_the_kernel_can_run_it_again(kernel: Kernel) -> None:
    cell = kernel.run("before = threads()\njob.run(spark)", interrupts=[has_rows])
    kinds = [kind for kind, _, _ in cell.shown]
    assert kinds[0] == "display_data"
    assert set(kinds[1:]) == {"update_display_data"}
    assert len({display_id for _, _, display_id in cell.shown}) == 1
    assert {*cell.shown[0][1]} == {"text/html", "text/plain"}
    assert "● starting" in text_of(cell.shown[0][1]["text/html"])
    # What the job ends with stays, and says that nothing is repeated.
    assert "nb ● stopped" in cell.panel
    assert re.search(r"checkpoint \d+ has everything", cell.panel)
    assert (
        cell.error
        == "KeyboardInterrupt\nKeyboardInterrupt: job 'nb' was stopped, and its last checkpoint has everything"
    )
    assert kernel.run("threads() == before").value == "True"
    newest = int(re.findall(r"checkpoint (\d+) has everything", cell.panel)[0])
    again = kernel.run("job.run(spark)", interrupts=[has_rows])
    assert again.shown[0][2] != cell.shown[0][2]
    assert int(re.findall(r"checkpoint (\d+) has everything", again.panel)[0]) > newest
    assert kernel.run("threads() == before").value == "True"


def test_a_second_interrupt_does_not_wait_for_the_last_checkpoint(kernel: Kernel, home: Path) -> None:
    kernel.run("before = threads()")

    epochs: list[str] = []

    def is_held(cell: Cell) -> bool:
        """Have the function wait, and see that no epoch ends any more."""
        if has_rows(cell):
            (home / "hold").touch()
            epochs.extend(re.findall(r"epoch (\d+)", cell.panel))
        return len(epochs) > 3 and len(set(epochs[-3:])) == 1

    cell = kernel.run("job.run(spark)", interrupts=[is_held, lambda cell: "takes a last checkpoint" in cell.panel])
    assert "was stopped without a last checkpoint" in cell.error
    assert "● stopped" in cell.panel
    kernel.run("hold.unlink()")
    assert kernel.run("threads() == before").value == "True"
    again = kernel.run("job.run(spark)", interrupts=[has_rows])
    assert re.search(r"checkpoint \d+ has everything", again.panel)


def test_an_interrupt_while_the_job_starts(kernel: Kernel) -> None:
    cell = kernel.run("before = threads()\njob.run(spark)", interrupts=[lambda cell: "● starting" in cell.panel])
    assert re.search(r"KeyboardInterrupt: job 'nb' was (not started|stopped while it started)$", cell.error)
    # It may not have begun at all; its panel then ends within moments.
    kernel.run("while threads() != before: time.sleep(0.05)")
    assert "● stopped" in kernel.run("job.run(spark)", interrupts=[has_rows]).panel


def test_a_run_is_a_panel_that_lives_until_the_job_ends(kernel: Kernel) -> None:
    shown = kernel.run("before = threads(); run = job.start(spark); run")
    assert [kind for kind, _, _ in shown.shown] == ["display_data"]
    display_id = shown.shown[0][2]
    later = kernel.run("while run.status().epochs < 3: time.sleep(0.1)\ntime.sleep(2)")
    assert {(kind, of) for kind, _, of in later.shown} == {("update_display_data", display_id)}
    assert "● running" in later.panel
    # A second one is the same, renewed by the same thread.
    second = kernel.run("run")
    assert ("display_data", display_id) in {(kind, of) for kind, _, of in second.shown}
    assert kernel.run("[name for name in threads() if name == 'strandline-panel']").value == "['strandline-panel']"
    # An interrupt of something else does not concern it.
    waiting = kernel.run("while True: time.sleep(0.1)", interrupts=[lambda cell: True])
    assert waiting.error.startswith("KeyboardInterrupt")
    assert kernel.run("run.status().state").value == "'running'"
    kernel.run("run.stop(checkpoint=True)\nwhile threads() != before: time.sleep(0.05)")


def test_what_objects_look_like(kernel: Kernel, home: Path) -> None:
    def shown(code: str) -> str:
        cell = kernel.run(code)
        assert not cell.error, cell
        assert "text/html" in cell.shown[-1][1], code
        assert len(cell.html) < 6000, "it is short"
        assert "<u>" not in cell.html
        return cell.panel

    assert "a stream sources rate column type key string at timestamp" in shown("numbers")
    assert "sources rate operators count" in shown("counts")
    assert "event time at" in shown("numbers.watermark('at', delay='1s')")
    assert "a keyed stream key key" in shown("numbers.key_by('key')")
    assert "windows Tumbling" in shown("numbers.watermark('at', delay='1s').key_by('key').window(sl.Tumbling('1 min'))")
    query = "SELECT key, count(*) AS `<u>k` FROM t GROUP BY key HAVING count(*) > 1"
    view = shown(f"sl.sql({query!r}, t=numbers)")
    assert "GROUP BY key HAVING count(*) > 1" in view
    assert "changes, of rows by key" in view
    assert "operator what it does keeps until" in view
    assert "key key ordered by at" in shown("sl.table(numbers, key='key', order_by='at')")
    assert f"job nb checkpoints file://{home}/ck every 2s" in shown("job")
    kernel.run("run = job.start(spark); run.checkpoint()")
    assert "nb ● running" in shown("run.status()")
    assert "checkpoint state epoch mode triggered took new size" in shown("run.checkpoints()")
    assert " ● completed " in shown("run.checkpoint()")
    assert "savepoint" in shown("run.savepoint(home / 'sp')")
    kernel.run("run.stop()")
    assert "count.n value" in shown("sl.state.tables(home / 'sp')")
    assert "nb , canonical savepoint file://" in shown("opened = sl.state.opened(home / 'sp'); opened")
    kernel.run("opened.close()")


def test_an_error_of_the_job_is_raised_and_the_panel_says_so(kernel: Kernel) -> None:
    cell = kernel.run(
        """
        class Broken(sl.KeyedProcess):
            def on_event(self, event, ctx):
                raise ValueError("<u>k is wrong")

        broken = numbers.key_by("key").process(Broken(), output="key string", uid="broken")
        sl.Job(
            "broken", sinks=[broken.to(sl.sinks.memory())], checkpoints=sl.Checkpoints(home / "ck2"),
            settings=sl.Settings(local_dir=str(home / "l"), parallelism=1), restart=sl.Restart(attempts=0),
        ).run(spark)
        """
    )
    assert "UserCodeError" in cell.error
    assert "broken ● failed" in cell.panel
    assert "<u>k" not in cell.html
    assert kernel.run("1 + 1").value == "2"
