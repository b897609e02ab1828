"""`make demo ARGS=--stay` for real: its story, then each button, by HTTP and in a browser, and nothing is left behind.

With STRANDLINE_SHOTS=docs/demo in the environment, the pictures of the docs are taken, too.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from examples.payments.files import read_files
from examples.payments.model import KINDS, USUAL, Rules
from examples.payments.oracle import oracle
from tests.browser import Visit, chromium, needs_chromium, open_page
from tests.examples.test_payments_dashboard import Client, eventually

__all__ = ["chromium"]

ROOT = Path(__file__).parents[2]
SHOTS = os.environ.get("STRANDLINE_SHOTS")
PATIENCE_S = 300.0
LINK = "[aria-label='Newest alerts'] tbody tr:nth-child(4) button"
SECONDS = 10 if not SHOTS else 30

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@dataclass
class Demo:
    """The demo as a process of its own, and its page."""

    process: subprocess.Popen[str]
    temporary: Path
    log: Path
    address: str = ""

    @property
    def client(self) -> Client:
        port = int(re.search(r":(\d+)/", self.address)[1])  # type: ignore[index]
        return Client(SimpleNamespace(server_port=port, token=self.address.partition("token=")[2]))  # type: ignore[arg-type]

    @property
    def home(self) -> Path:
        (home,) = self.temporary.glob("strandline-demo-*")
        return home

    def processes(self) -> list[str]:
        """Return the command lines of all processes that work in the demo's directory."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(self.temporary) in command:
                found.append(command)
        return found

    def wait(self, condition: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        """Return the first view with which a condition is true."""
        deadline = time.monotonic() + PATIENCE_S
        for view in self.client.views():
            if condition(view):
                return view
            assert not view["is_last"], self.log.read_text()
            assert time.monotonic() < deadline, (what, view["messages"], view["audit"], view["fork"])
        raise AssertionError(f"the page's server ended: {self.log.read_text()}")

    def agrees_again(self, line: Callable[[dict[str, Any]], Any] = lambda view: view) -> dict[str, Any]:
        """Wait until numbers of a checkpoint that does not exist yet agree, and return that view."""
        view = next(self.client.views())
        known = max([each["checkpoint"] for each in view["checkpoints"]], default=0)
        if line(view) is not view:
            known = (line(view)["audit"] or {"checkpoint": 0})["checkpoint"]

        def is_new(view: dict[str, Any]) -> bool:
            audit = line(view)["audit"]
            return audit is not None and audit["agrees"] and audit["checkpoint"] > known

        return self.wait(is_new, "numbers that agree")


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    temporary = Path(tempfile.mkdtemp(prefix="sl-"))
    log = temporary / "log"
    # A program of a user's own does not verify each publication byte by byte.
    env = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    with open(log, "w") as out:
        process = subprocess.Popen(
            [sys.executable, "scripts/demo.py", "--plain", "--stay", f"--seconds={SECONDS}"],
            env=env, cwd=ROOT, text=True, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    made = Demo(process, temporary, log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.search(r"the page is (http://127.0.0.1:\d+/\?token=\S+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        made.address = found[1]
        made.wait(lambda view: view["passed"] and view["state"] == "running", "the end of the story")
        yield made
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(temporary, ignore_errors=True)


def test_the_story_passes_and_the_job_goes_on(demo: Demo) -> None:
    view = demo.agrees_again()
    assert view["passed"].startswith("PASS  ")
    assert "alerts from" in view["passed"]
    assert "1 keeper killed, recovered in" in view["passed"]
    assert view["audit"]["payments"] > 0
    assert view["audit"]["alerts"] == view["audit"]["alerts_expected"] > 0
    # Its state is that of its payments: the newest alert's card, by a look-up.
    card = next(demo.client.views(view["newest_alerts"][0]["card"]))["card"]
    step = card["steps"][-1]
    history = [p for p in read_files(demo.home / "payments") if p.card == card["card"]]
    assert step["count"] <= len(history)
    assert step["total"] == sum(p.amount_cents for p in history[: step["count"]])
    assert card["alerts"]


def test_kill_and_rescale(demo: Demo) -> None:
    before = demo.wait(lambda view: len(view["keepers"]) == 2, "two keepers")
    victim = before["keepers"][1]
    code, answer = demo.client.act("kill", partition=victim["partition"])
    assert (code, answer["done"].partition(":")[0]) == (200, "recovered")
    view = demo.agrees_again()
    assert victim["pid"] not in [keeper["pid"] for keeper in view["keepers"]]
    assert view["processed"] >= before["processed"]
    code, answer = demo.client.act("rescale", parallelism=3)
    assert (code, answer["done"].partition(" in ")[0]) == (200, "rescaled to 3 partitions")
    view = demo.wait(lambda view: len(view["keepers"]) == 3, "three keepers")
    assert view["parallelism"] == 3
    demo.agrees_again()


def test_back_to_a_savepoint_and_to_a_checkpoint(demo: Demo) -> None:
    assert demo.client.act("savepoint")[0] == 200
    savepoint = next(demo.client.views())["savepoints"][-1]
    later = demo.wait(lambda view: view["processed"] > savepoint["payments"] + 5_000, "payments after the savepoint")
    code, answer = demo.client.act("back", savepoint=savepoint["name"])
    assert code == 200, answer
    view = next(demo.client.views())
    assert [mark for _, mark in view["marks"]][-1] == f"back to {savepoint['name']}"
    assert not view["kept"] or numbers(view["kept"])[0] > numbers(later["kept"])[-1]
    # The number of partitions stays; all payments are processed again, and the alerts come again.
    view = demo.agrees_again()
    assert view["parallelism"] == later["parallelism"]
    assert demo.wait(lambda view: view["processed"] > later["processed"], "as far as it was")["audit"]["agrees"]

    assert demo.client.act("savepoint")[0] == 200
    view = demo.wait(lambda view: len(view["kept"]) >= 2, "checkpoints to go back to")
    undone = view["savepoints"][-1]
    older = [each for each in view["kept"] if each["epoch"] < undone["epoch"]]
    code, answer = demo.client.act("back", checkpoint=older[-1]["checkpoint"])
    assert code == 200, answer
    view = demo.agrees_again()
    # The job has undone what that savepoint has, and the page does not offer it any more.
    assert [each["name"] for each in view["savepoints"]] == [savepoint["name"]]
    code, answer = demo.client.act("back", checkpoint=99_999)
    assert (code, "99999" in answer["error"]) == (409, True)
    demo.agrees_again()


def test_the_numbers_do_not_agree_if_alerts_are_there_twice_or_not_at_all(demo: Demo) -> None:
    """The proof can fail: somebody copies a file of the sink, and then takes one away."""
    before = demo.agrees_again()
    file = min(demo.home.glob("alerts/part-*.parquet"))
    rows = pq.read_metadata(file).num_rows
    copy = file.with_name(f"part-copy-{file.name}")
    shutil.copy(file, copy)
    differs = demo.wait(lambda view: not view["audit"]["agrees"], "numbers that differ")["audit"]
    assert (differs["surplus"], differs["missing"]) == (rows, 0)
    assert differs["checkpoint"] > before["audit"]["checkpoint"]
    copy.unlink()
    demo.agrees_again()
    file.rename(demo.home / "aside")
    differs = demo.wait(lambda view: not view["audit"]["agrees"], "numbers that differ")["audit"]
    assert (differs["surplus"], differs["missing"]) == (0, rows)
    (demo.home / "aside").rename(file)
    demo.agrees_again()


def test_a_fork_with_other_rules(demo: Demo) -> None:
    rules = Rules(tests=6, deviations=3)
    code, answer = demo.client.act("fork", **rules._asdict())
    assert code == 200, answer
    assert demo.client.act("fork", tests=1, deviations=1) == (409, {"error": "there is a fork already: end it first"})

    def differ(view: dict[str, Any]) -> bool:
        fork = view["fork"]
        return bool(fork["until"] and fork["only_ours"] and fork["only_theirs"] and fork["audit"])

    view = demo.wait(differ, "alerts that differ")
    fork = view["fork"]
    assert (fork["rules"], fork["usual"]) == (rules._asdict(), USUAL._asdict())
    assert fork["audit"]["agrees"]
    assert fork["audit"]["payments"] > fork["since"]
    # Each number beside whole histories, by each rule.
    payments, until = list(read_files(demo.home / "payments")), datetime.fromisoformat(fork["until"])
    for name, rule in (("ours", USUAL), ("theirs", rules)):
        alerts = Counter(oracle(payments, rule)) - Counter(oracle(payments[: fork["since"]], rule))
        seen = [alert for alert in alerts.elements() if alert.ts <= until - timedelta(seconds=1)]
        assert fork[name] == {kind: sum(alert.kind == kind for alert in seen) for kind in KINDS}
    assert fork["ours"] != fork["theirs"]
    # The fork does not notice that the job goes back.
    code, answer = demo.client.act("back", checkpoint=next(demo.client.views())["kept"][-1]["checkpoint"])
    assert code == 200, answer
    demo.agrees_again(lambda view: view["fork"])
    demo.agrees_again()
    assert demo.client.act("end_fork")[0] == 200
    assert next(demo.client.views())["fork"] is None
    demo.agrees_again()


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page(chromium: Any, demo: Demo, width: int, scheme: str) -> None:
    here = open_page(chromium, demo.address, width, scheme)
    page = here.page
    page.wait_for_selector(".proof.ok")
    page.wait_for_selector("circle.payment")
    here.check(f"{width}, {scheme}")
    # At once: the rows change each second.
    card = page.evaluate(
        "(name) => { const it = document.querySelector(name); it.click(); return it.textContent }", LINK
    )
    page.wait_for_selector(f"h2:has-text('{card}')")
    page.fill("input[name=card]", "card-000007")
    page.click("text=Look up")
    page.wait_for_selector("h2:has-text('card-000007')")
    page.wait_for_selector("circle.payment")
    here.check(f"a card at {width}, {scheme}")
    if SHOTS and (width, scheme) in ((1280, "light"), (390, "dark")):
        page.evaluate("(name) => document.querySelector(name).click()", LINK)
        page.wait_for_timeout(12_000)
        shot(here, f"payments-{width}-{scheme}", 1560 if width == 1280 else 1500)
    page.context.close()


@needs_chromium
def test_buttons_say_first_what_they_will_do(chromium: Any, demo: Demo) -> None:
    here = open_page(chromium, demo.address)
    page = here.page
    page.wait_for_selector(".proof.ok")
    for button, says in (
        ("Kill a keeper", "Sends kill -9"), ("Rescale", "divides the cards' state"), ("Go back in time", "void for ever"),
        ("Savepoint", "a folder of Parquet tables"),
    ):  # fmt: skip
        page.click(f".actions button:has-text('{button}')")
        assert says in page.inner_text("dialog")
        here.check(button)
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")
    page.click(".actions button:has-text('Rescale')")
    page.fill("dialog input", "9")
    page.click("dialog button.main")
    assert not page.evaluate("document.querySelector('dialog input').checkValidity()")
    page.fill("dialog input", "2")
    page.click("dialog button.main")
    page.wait_for_selector("dialog .done:has-text('rescaled to 2 partitions')")
    here.check("what was done")
    page.click("dialog >> text=Close")
    page.wait_for_selector("dt:text-is('Keepers') + dd:text-is('2')")
    page.click(".actions button:has-text('Fork with other rules')")
    assert "same state and other rules" in page.inner_text("dialog")
    page.click("dialog button.main")
    page.wait_for_selector("dialog .done:has-text('goes on from payment')")
    page.click("dialog >> text=Close")
    page.wait_for_selector(".fork tr.differs")
    page.wait_for_selector(".fork .proof.ok")
    here.check("side by side")
    if SHOTS:
        page.wait_for_timeout(20_000)
        shot(here, "fork-1280-light", 0, page.query_selector(".fork"))
    page.click(".actions button:has-text('End the fork')")
    page.click("dialog button.main")
    page.wait_for_selector("dialog .done:has-text('was stopped')")
    page.click("dialog >> text=Close")
    page.wait_for_selector(".fork", state="detached")
    here.check("after the fork")
    page.context.close()


def test_ctrl_c_ends_all_and_nothing_is_left(demo: Demo) -> None:
    """The last test: it ends the demo, while a fork runs."""
    if next(demo.client.views())["fork"] is None:
        assert demo.client.act("fork", tests=6, deviations=3)[0] == 200
    assert demo.processes()
    views = demo.client.views()
    next(views)
    demo.process.send_signal(signal.SIGINT)
    last = [*views][-1]
    assert last["is_last"]
    assert last["outcome"].startswith("PASS")
    assert demo.process.wait(60) == 0
    said = demo.log.read_text()
    assert re.search(r"^PASS  .* equal the batch computation, row for row; 1 keeper killed", said, re.MULTILINE), said
    assert "Traceback" not in said
    # The JVM ends a moment after the program.
    eventually(lambda: demo.processes() == [])
    # Spark's log stays where all programs have theirs.
    left = {path.name for path in demo.temporary.iterdir()} - {f"strandline-{os.getuid()}", "log"}
    assert left == set()


def numbers(checkpoints: list[dict[str, Any]]) -> list[int]:
    return [each["checkpoint"] for each in checkpoints]


def shot(here: Visit, name: str, height: int, part: Any = None) -> None:
    """Take a picture of the page's upper part, or of one part."""
    path = Path(str(SHOTS)) / f"{name}.png"
    if part is not None:
        part.screenshot(path=path)
        return
    here.page.evaluate("scrollTo(0, 0)")
    width = here.page.viewport_size["width"]
    here.page.screenshot(path=path, clip={"x": 0, "y": 0, "width": width, "height": height}, full_page=True)
