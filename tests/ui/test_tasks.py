"""First-time tasks with the page alone: each begins at the list of jobs, goes by labels and by the keyboard, and reads.

One job serves all of them. One of its checkpoints fails, one of its keepers is killed, and, for the last ones, its driver.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from strandline.control.client import call, find_drivers
from strandline.control.commands import RECENT, NoArguments
from strandline.control.recent import Recent
from strandline.control.status import Status
from tests.browser import Visit, chromium, needs_chromium, open_page
from tests.ui.showing import Shop, shown_shop

__all__ = ["chromium"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), needs_chromium]


def is_at_work(status: Status) -> bool:
    """Whether the attempt has keepers, and some epochs and checkpoints are over."""
    return status.state == "running" and len(status.keepers) == 4 and status.checkpoints["completed"] >= 2


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    failpoints = tmp_path_factory.mktemp("failpoints")
    with shown_shop(
        tmp_path_factory.mktemp("shop"),
        STRANDLINE_FAILPOINTS="keeper.upload.before=error@4", STRANDLINE_FAILPOINTS_DIR=str(failpoints),
    ) as made:  # fmt: skip
        # One failed checkpoint is one too many: the job restarts.
        status = made.wait_until(lambda status: status.restarts == 1 and is_at_work(status))
        os.kill(status.keepers[0].pid, signal.SIGKILL)
        made.wait_until(lambda status: status.restarts == 2 and is_at_work(status))
        yield made


@pytest.fixture
def here(chromium: Any, shop: Shop) -> Iterator[Visit]:
    visit = open_page(chromium, shop.address)
    visit.page.get_by_role("link", name="shop", exact=True).press("Enter")
    yield visit
    assert visit.troubles == []
    visit.page.context.close()


def go(here: Visit, view: str) -> Any:
    """Choose a view with the keyboard; return the page's content."""
    here.page.get_by_role("navigation").get_by_role("link", name=view, exact=True).press("Enter")
    here.page.wait_for_selector(f"nav a[aria-current=page]:text-is('{view}')")
    return here.page.get_by_role("main")


def rows(here: Visit, table: str) -> list[dict[str, str]]:
    """Return the visible rows of a table by the names of its columns."""
    found = here.page.get_by_role("table", name=table, exact=True)
    found.get_by_role("row").nth(1).wait_for()
    # All at once: the page may be drawn again meanwhile.
    columns, *bodies = found.evaluate("all => [...all.rows].map((row) => [...row.cells].map((cell) => cell.innerText))")
    return [dict(zip(columns, cells, strict=True)) for cells in bodies]


def status_of(shop: Shop) -> Status:
    status = shop.status()
    assert status is not None
    return status


def recent_of(shop: Shop) -> Recent:
    (driver,) = find_drivers(shop.local_dir)
    return call(driver, RECENT, NoArguments())


def test_why_does_the_watermark_stand(here: Visit) -> None:
    go(here, "Event time")
    answer = here.page.get_by_text("holds the watermark back").inner_text()
    found = re.fullmatch(r"'(\w+)' of source (\w+) holds the watermark back: it is (\d+) min behind .*", answer)
    assert found is not None, answer
    assert found[1] == "kyoto"
    assert int(found[3]) >= 40


def test_what_changed_in_a_key_between_two_checkpoints(here: Visit) -> None:
    go(here, "Key")
    here.page.get_by_label("customer (string)").fill("c-0")
    here.page.keyboard.press("Enter")
    newest, before, *_ = rows(here, "score.total at checkpoints")
    assert int(newest["Checkpoints"]) > int(before["Checkpoints"])
    # Every third order is this customer's.
    after, earlier = (re.search(r'"orders": (\d+)', each["State"]) for each in (newest, before))
    assert after is not None, newest
    assert earlier is not None, before
    assert int(after[1]) > int(earlier[1]) > 100


def test_which_partition_is_slow_and_why(here: Visit, shop: Shop) -> None:
    main = go(here, "Partitions")
    main.get_by_text("Skewed:").or_(main.get_by_text("Somewhat uneven:")).first.wait_for()
    # Every third row is of one customer.
    told = main.get_by_text(re.compile(r"partition \d has \d+ % of the rows")).first.inner_text()
    found = re.search(r"partition (\d) has (\d+) % of the rows, ([\d.]+) times an even share", told)
    assert found is not None, told
    keepers = [each for each in status_of(shop).keepers if each.uid == "score"]
    assert int(found[1]) == max(keepers, key=lambda each: each.all_rows_in).partition
    assert int(found[2]) > 55


def test_which_checkpoint_failed_and_why(here: Visit) -> None:
    # The job has restarted twice since: the checkpoint is of an earlier attempt.
    main = go(here, "Checkpoints")
    main.get_by_role("heading", name="Failures").wait_for()
    # On a busy machine, a restart has failed another one.
    answer = main.get_by_role("listitem").filter(has_text="failpoint").inner_text()
    found = re.match(r"Checkpoint (\d+) at [\d:]+, [\d]+ partitions? of 4 had reported: (.*)", answer)
    assert found is not None, answer
    why = r"checkpoint \d+ failed in operator '(score|revenue)', partition \d: upload failed: failpoint '.*' is armed"
    assert re.fullmatch(why, found[2]), answer


def test_which_function_takes_the_time(here: Visit) -> None:
    main = go(here, "Functions")
    flames = main.get_by_role("group", name="Flame graph of score")
    own = flames.get_by_role("button", name=re.compile(r"Score\.on_event, <?\d+ %"))
    # An epoch may be short, and few samples fall into it: who asks once more sees more.
    for _ in range(6):
        main.get_by_role("button", name="Take samples").press("Enter")
        main.get_by_role("button", name="Taking samples…").wait_for()
        main.get_by_role("button", name="Take samples").wait_for()
        if own.count():
            break
    assert own.first.inner_text() == "Score.on_event"
    functions = rows(here, "Functions of score")
    shares = [int(re.sub(r"\D", "", each["Itself"]) or 0) for each in functions]
    assert shares == sorted(shares, reverse=True)
    main.get_by_text("in the program's own functions").first.wait_for()


def test_which_files_does_a_checkpoint_share_with_the_one_before(here: Visit) -> None:
    main = go(here, "Checkpoints")
    main.get_by_text("The files of one checkpoint").press("Enter")
    shown = main.get_by_text(re.compile(r"shares \d+ of its \d+ files with checkpoint"))
    shown.wait_for(state="visible")
    answer = shown.inner_text()
    found = re.match(r"Checkpoint (\d+) shares (\d+) of its (\d+) files with checkpoint (\d+): .* of ", answer)
    assert found is not None, answer
    number, shared, every, before = (int(each) for each in found.groups())
    assert before < number
    assert 0 < shared < every
    files = rows(here, f"Files of checkpoint {number}")
    assert len(files) == min(every, 20)
    for file in files:
        assert (f"shared with checkpoint {before}" == file["New or shared"]) == (
            str(before) in file["Referenced by"].split(", ")
        )


def test_what_is_open_stays_open_when_a_section_appears_above_it(here: Visit) -> None:
    # The failures are known by the log of events, which may be read late.
    held: list[Any] = []
    late = True
    here.page.route("**/history?*", lambda route: held.append(route) if late else route.continue_())
    main = go(here, "Checkpoints")
    main.get_by_text("The files of one checkpoint").press("Enter")
    shown = main.get_by_text(re.compile(r"shares \d+ of its \d+ files with checkpoint"))
    shown.wait_for(state="visible")
    late = False
    for each in held:
        each.continue_()
    main.get_by_role("heading", name="Failures").wait_for()
    assert shown.is_visible()
    assert here.page.evaluate("document.activeElement.innerText") == "The files of one checkpoint"


def test_how_old_rows_are_when_a_sink_shows_them(here: Visit) -> None:
    go(here, "Sources and sinks")
    sinks = {each["Sink"]: each for each in rows(here, "Sinks")}
    assert set(sinks) == {"revenue", "alerts", "failed"}
    for name in ("Rows shown after", "Half within", "99 of 100 within"):
        value, unit = sinks["alerts"][name].split()
        # Checkpoints are two seconds apart.
        assert (unit in ("s", "min"), float(value) > 0) == (True, True), sinks


def test_why_did_the_job_restart_and_what_did_it_cost(here: Visit, shop: Shop) -> None:
    go(here, "Restarts")
    killed, failed = rows(here, "Interruptions")
    assert killed["What"] == failed["What"] == "restart after a failure"
    assert "SIGKILL" in killed["Cause"] or "signal 9" in killed["Cause"]
    assert "failpoint 'keeper.upload.before'" in failed["Cause"]
    for each, known in zip((failed, killed), recent_of(shop).interruptions, strict=True):
        assert abs(float(each["Down for"].removesuffix(" s")) - known.down_ms / 1000) <= 1
        assert int(each["Rows again"].replace(",", "")) == known.repeated_rows
        assert int(each["From checkpoint"]) == known.checkpoint


def test_the_cause_of_a_restart_is_on_a_narrow_screen(here: Visit) -> None:
    here.page.set_viewport_size({"width": 390, "height": 900})
    go(here, "Restarts")
    assert len(rows(here, "Interruptions")) == 2
    for cell in here.page.get_by_role("table", name="Interruptions", exact=True).get_by_role("cell").all():
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390, cell.inner_text()
    here.check("restarts on a narrow screen")


def test_plot_the_state_by_a_query(here: Visit) -> None:
    main = go(here, "State")
    here.page.get_by_label("SQL", exact=True).fill(
        "SELECT map_key AS shop, sum(value) AS orders FROM score.shops GROUP BY shop ORDER BY shop"
    )
    here.page.keyboard.press("Control+Enter")
    bars = main.get_by_role("table", name="orders by shop")
    bars.wait_for()
    assert [each.inner_text() for each in bars.get_by_role("rowheader").all()] == ["bergen", "kyoto", "lima", "oslo"]


def test_where_did_the_time_go_before_the_job_was_killed(here: Visit, shop: Shop) -> None:
    """The last but one: from here on, the job is dead, and what it left on disk answers."""
    status = status_of(shop)
    os.kill(shop.job.pid, signal.SIGKILL)
    here.page.get_by_text("killed", exact=True).wait_for()
    main = go(here, "Epochs")
    main.get_by_role("heading", name="Where its epochs' time went").wait_for()
    steps = rows(here, "Epochs in steps of time")
    legend = " ".join(main.get_by_role("listitem").all_inner_texts())
    shares = [int(each) for each in re.findall(r"(\d+) %", legend)]
    assert re.search(r"plan .* operator score .* operator revenue .* Spark reads", legend), legend
    assert 97 <= sum(shares) <= 103
    assert sum(int(each["Rows"].replace(",", "")) for each in steps) > 0
    # At most the last ten seconds are missing.
    last = int(main.get_by_role("term").filter(has_text="Last epoch").locator("xpath=..").inner_text().split()[2])
    assert status.epoch - 30 <= last
    here.check("epochs of a killed job")


def test_what_a_killed_job_had_failed_at(here: Visit) -> None:
    main = go(here, "Checkpoints")
    main.get_by_role("listitem").filter(has_text="failpoint 'keeper.upload.before'").wait_for()
    here.check("checkpoints of a killed job")
    go(here, "Restarts")
    assert len(rows(here, "Interruptions")) == 2
    here.check("restarts of a killed job")


def test_which_event_changed_a_key_last_and_what_did_it_give(here: Visit) -> None:
    main = go(here, "Key")
    here.page.get_by_label("customer (string)").fill("c-0")
    here.page.keyboard.press("Enter")
    newest = re.search(r'"orders": (\d+), "last": "([^"]+)"', rows(here, "score.total at checkpoints")[0]["State"])
    assert newest is not None
    main.get_by_role("button", name="Each change").press("Enter")
    step = main.get_by_role("heading", name=re.compile(r"Step (\d+) of \1: epoch"))
    step.wait_for(timeout=300_000)
    name = re.match(r"Step (\d+) of", step.inner_text())
    assert name is not None
    parts = {each["Part"]: each for each in rows(here, f"State before and after step {name[1]}")}
    assert parts["total.orders"] == {
        "Part": "total.orders", "Before": str(int(newest[1]) - 1), "After": newest[1], "Change": "changed",
    }  # fmt: skip
    at = parts["total.last"]["After"]
    assert at.replace("T", " ").removesuffix("+00:00") == newest[2].removesuffix("Z")
    # The event and the row that it gave have the same columns.
    assert main.get_by_role("definition").filter(has_text=at).count() == 3, "by, gave, and what it last gave"
    # Back, by the keyboard: the event before.
    changes = main.get_by_role("listbox")
    changes.press("ArrowLeft")
    main.get_by_role("heading", name=f"Step {int(name[1]) - 1} of {name[1]}").wait_for()
    (before,) = [
        each for each in rows(here, f"State before and after step {int(name[1]) - 1}") if each["Part"] == "total.orders"
    ]
    assert before["After"] == str(int(newest[1]) - 1)
    here.check("steps of a key of a killed job")
