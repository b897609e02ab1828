"""The dashboard's server, what it refuses, and what the monitor makes of a job's figures; without Spark and browser."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.payments.audit import Audit, AuditedJob
from examples.payments.books import Books
from examples.payments.dashboard import ActionError, Dashboard, Journal
from examples.payments.files import write_files
from examples.payments.generator import World, payments
from examples.payments.model import KINDS
from examples.payments.monitor import Monitor
from examples.payments.server import Server


class Client:
    """A browser that has come with the token, unless told otherwise."""

    def __init__(self, server: Server) -> None:
        self.port = server.server_port
        self.here = f"127.0.0.1:{self.port}"
        answer = self.ask("GET", f"/?token={server.token}", Cookie="")
        self.cookie = answer.getheader("Set-Cookie", "").partition(";")[0]

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> http.client.HTTPResponse:
        usual = {"Host": self.here, "Origin": f"http://{self.here}", "Cookie": getattr(self, "cookie", "")}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request(method, path, body, {**usual, **headers})
        return connection.getresponse()

    def act(self, action: str, **wanted: Any) -> tuple[int, dict[str, Any]]:
        answer = self.ask("POST", f"/act/{action}", json.dumps(wanted))
        return answer.status, json.loads(answer.read())

    def views(self, card: str = "") -> Iterator[dict[str, Any]]:
        answer = self.ask("GET", f"/events?card={card}")
        assert answer.getheader("Content-Type") == "text/event-stream"
        while line := answer.readline():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    before = {*threading.enumerate()}
    dashboard = Dashboard(tmp_path, Journal())
    server = Server(dashboard)
    yield server
    dashboard.close()
    server.close()
    assert {*threading.enumerate()} <= before


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_first_address_becomes_a_cookie_and_the_page_loads_all_it_names(server: Server, client: Client) -> None:
    answer = client.ask("GET", f"/?token={server.token}", Cookie="")
    assert (answer.status, answer.getheader("Location")) == (303, "/")
    cookie = answer.getheader("Set-Cookie", "")
    assert f"payments-{client.port}=" in cookie
    assert "HttpOnly" in cookie
    wanted, seen = ["/"], set()
    while wanted:
        path = wanted.pop()
        seen.add(path)
        answer = client.ask("GET", path)
        text = answer.read().decode()
        assert answer.status == 200, path
        assert "default-src 'self'" in answer.getheader("Content-Security-Policy", "")
        folder = path.rpartition("/")[0]
        for name in text.split('"')[1::2]:
            if name.removeprefix("./").endswith((".js", ".css", ".svg")) and " " not in name:
                at = f"{folder}/{name.removeprefix('./')}"
                wanted += [at] if at not in seen else []
    assert {"/page.js", "/page.css", "/icon.svg", "/charts.js", "/vendor/preact.js", "/vendor/htm.js"} <= seen
    assert client.ask("GET", "/server.py").status == 404
    assert client.ask("GET", "/../server.py").status == 404


@pytest.mark.parametrize(
    ("method", "path", "headers", "code"),
    [
        ("GET", "/", {"Cookie": ""}, 401),
        ("GET", "/?token=wrong", {"Cookie": ""}, 401),
        ("GET", "/?token=w%C3%B6rter", {"Cookie": ""}, 401),
        ("GET", "/events", {"Cookie": "payments=x"}, 401),
        ("GET", "/", {"Host": "evil.example"}, 403),
        ("GET", "/", {"Host": "[::"}, 403),
        ("POST", "/act/kill", {"Cookie": ""}, 401),
        ("POST", "/act/kill", {"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ("POST", "/act/kill", {"Origin": "http://evil.example"}, 403),
        ("POST", "/act/kill", {"Content-Length": "100000"}, 400),
        ("POST", "/act/kill", {"Content-Length": "-1"}, 400),
        ("PUT", "/", {}, 501),
    ],
)
def test_others_are_refused(client: Client, method: str, path: str, headers: dict[str, str], code: int) -> None:
    assert client.ask(method, path, "{}" if method == "POST" else None, **headers).status == code


def test_another_site_is_refused_even_with_the_token(server: Server, client: Client) -> None:
    assert client.ask("GET", f"/?token={server.token}", Host="evil.example").status == 403


def test_it_listens_on_loopback_only(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_buttons_before_the_job_runs_say_why_not(client: Client) -> None:
    assert client.act("kill") == (409, {"error": "the job has not been started yet"})
    code, answer = client.act("explode")
    assert code == 409
    assert "there are kill, rescale, savepoint, back, fork, end_fork" in answer["error"]
    answer = client.ask("POST", "/act/kill", "[1]")
    assert (answer.status, json.loads(answer.read())) == (409, {"error": "expected a JSON object"})
    assert client.ask("POST", "/act/kill", "{").status == 409


def test_buttons_while_another_one_works_say_so(server: Server, client: Client) -> None:
    with server.dashboard.at_work("rescale"):
        assert client.act("kill") == (409, {"error": "wait a moment: the dashboard is busy with 'rescale'"})
    assert client.act("kill")[1] == {"error": "the job has not been started yet"}


def test_arguments_are_checked(server: Server) -> None:
    dashboard = server.dashboard
    dashboard.main.run = SimpleNamespace(  # type: ignore[assignment]
        glance=lambda: SimpleNamespace(state="running"),
        stop=lambda timeout: None,
        status=lambda: SimpleNamespace(keepers=[]),
    )
    for action, wanted, said in (
        ("rescale", {"parallelism": 9}, "9 partitions are not possible here: 1 to 8 are"),
        ("rescale", {"parallelism": "3"}, "'3' partitions"),
        ("rescale", {"partitions": 3}, "'rescale' has other arguments"),
        ("kill", {"partition": 7}, "there is no partition 7"),
        ("back", {"savepoint": "none"}, "there is no savepoint 'none'"),
        ("back", {"checkpoint": "7"}, "there is no savepoint None"),
        ("fork", {"tests": 0, "deviations": 4}, "expected 1 to 10, and 1 to 20"),
        ("end_fork", {}, "there is no fork"),
    ):
        with pytest.raises(ActionError, match=said):
            dashboard.act(action, wanted)
    assert dashboard.doing == ""


def test_payments_are_seen_as_they_come_and_the_last_event_says_so(server: Server, client: Client) -> None:
    views = client.views()
    first = next(views)
    assert (first["state"], first["arrived"], first["audit"], first["card"]) == ("starting", 0, None, None)
    assert first["alerts"] == dict.fromkeys(KINDS, 0)
    list(write_files(server.dashboard.home / "payments", payments(World(cards=20)), files=3, per_file=50))
    view = next(view for view in views if view["arrived"] == 150)
    assert view["newest_payments"][0]["payment_id"] == 150
    server.dashboard.journal.say("something")
    server.dashboard.outcome = "all is over"
    server.is_over.set()
    last = [*views][-1]
    assert (last["is_last"], last["outcome"]) == (True, "all is over")
    assert last["messages"][-1].endswith("something")


def figures(number: int, status: str = "completed") -> Any:
    return SimpleNamespace(checkpoint=number, status=status, epoch=number)


def test_checkpoints_that_became_void_are_not_known_any_more(tmp_path: Path) -> None:
    taken = [figures(1), figures(2), figures(3), figures(4, "in_progress")]
    status = SimpleNamespace(generation=1, rows_in=5, keepers=[])
    monitor = Monitor(tmp_path)
    monitor.watch(SimpleNamespace(glance=lambda: status, checkpoints=lambda: taken))  # type: ignore[arg-type]
    monitor.sample()
    assert [each.checkpoint for each in monitor.completed()] == [1, 2, 3]
    monitor.forget_after(1)
    monitor.sample()
    taken += [figures(5)]
    monitor.sample()
    assert [each.checkpoint for each in monitor.checkpoints()] == [1, 5]
    monitor.forget_after(0)
    monitor.sample()
    assert monitor.checkpoints() == []


def audit(checkpoint: int, *, missing: int = 0, surplus: int = 0, cents: int = 5) -> Audit:
    return Audit(checkpoint, 0.0, 1, 5, cents, 1, 1, missing, surplus)


def test_numbers_that_differ_are_said_to_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not at once: rows of a checkpoint are visible a moment after it."""
    now = [100.0]
    monkeypatch.setattr("examples.payments.audit.time", SimpleNamespace(monotonic=lambda: now[0]))
    job = AuditedJob("demo", Monitor(tmp_path), Books(tmp_path))
    assert not job.is_due()
    job.monitor._checkpoints = {1: figures(1)}
    assert job.is_due()
    job.conclude(audit(1))
    assert job.audit.agrees
    for number, wrong in ((2, audit(2, missing=1)), (3, audit(3, surplus=1)), (4, audit(4, cents=6))):
        job.monitor._checkpoints[number] = figures(number)
        now[0] += 11
        assert job.is_due()
        job.conclude(wrong)
        assert job.audit.agrees is (number < 4)
        assert wrong.agrees is False
    now[0] += 1
    job.monitor._checkpoints[5] = figures(5)
    # What differs is looked at again with the next checkpoint.
    assert job.is_due()
    job.conclude(audit(5))
    assert job.audit.agrees


def test_a_thread_that_fails_is_not_overlooked(tmp_path: Path) -> None:
    dashboard = Dashboard(tmp_path, Journal())
    dashboard.main.run = SimpleNamespace(await_termination=lambda timeout: False, stop=lambda timeout: None)  # type: ignore[assignment]
    (tmp_path / "payments").mkdir()
    (tmp_path / "payments" / "payments-000001.json").write_text("no payment")
    with pytest.raises(ValueError, match="Expecting value"):
        dashboard.wait_for(lambda: False, "nothing")
    dashboard.close()


@pytest.mark.parametrize(
    ("pid", "said"),
    # Names that are the same in each process that collects the tests.
    [
        pytest.param(os.getpid(), "is no keeper", id="another process"),
        pytest.param(2**22 + 1, "has just ended by itself", id="none"),
    ],
)
def test_only_keepers_are_killed(server: Server, pid: int, said: str) -> None:
    keepers = [SimpleNamespace(partition=0, pid=pid)]
    server.dashboard.main.run = SimpleNamespace(  # type: ignore[assignment]
        glance=lambda: SimpleNamespace(state="running"), stop=lambda timeout: None,
        status=lambda: SimpleNamespace(keepers=keepers, epoch=1),
    )  # fmt: skip
    with pytest.raises(ActionError, match=said):
        server.dashboard.act("kill", {"partition": 0})
