"""Who is let in, and what a page may load."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import strandline.ui
from strandline.core.errors import ConfigurationError
from strandline.ui.server import listen
from tests.ui.conftest import COOKIE, HERE, TOKEN, Open

STATIC = Path(strandline.ui.__file__).with_name("static")
PATHS = ["/", "/app.js", "/api/jobs", "/api/events", "/api/jobs/x/past", "/nowhere"]


def stranger(client: TestClient, host: str = "127.0.0.1:8740") -> TestClient:
    return TestClient(client.app, base_url=HERE, headers={"host": host}, follow_redirects=False)


def test_the_first_address_gives_a_cookie_and_no_address_has_the_token_any_more(page_of: Open) -> None:
    client = stranger(page_of())
    answer = client.get(f"/?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}={TOKEN};")
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("cookie", [None, f"{COOKIE}=", f"{COOKIE}=guess", f"strandline-8741={TOKEN}"])
def test_without_the_token_there_is_nothing(page_of: Open, path: str, cookie: str | None) -> None:
    answer = stranger(page_of()).get(path, headers={"cookie": cookie} if cookie else {})
    assert answer.status_code == 401
    assert "strandline ui" in answer.text


def test_a_wrong_token_is_none(page_of: Open) -> None:
    client = stranger(page_of())
    assert [client.get(f"/{query}").status_code for query in ("?token=", "?token=guess", "?token=é")] == [401] * 3
    # Only the page itself has it in its address.
    assert client.get(f"/api/jobs?token={TOKEN}").status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.7:8740", "", "[", "localhost.:8740"]
)
@pytest.mark.parametrize("path", [*PATHS, f"/?token={TOKEN}"])
def test_a_name_that_leads_here_is_refused(page_of: Open, host: str, path: str) -> None:
    answer = stranger(page_of(), host).get(path, headers={"cookie": f"{COOKIE}={TOKEN}"})
    assert answer.status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8740", "localhost:9999", "LOCALHOST", "[::1]:8740"])
def test_names_of_this_machine_are_let_in(page_of: Open, host: str) -> None:
    client = stranger(page_of(), host)
    assert client.get("/api/jobs", headers={"cookie": f"{COOKIE}={TOKEN}"}).status_code == 200


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://127.0.0.1:9999"])
def test_what_changes_something_must_come_from_the_page(page_of: Open, origin: str | None) -> None:
    client = stranger(page_of())
    headers = {"cookie": f"{COOKIE}={TOKEN}"} | ({"origin": origin} if origin else {})
    answer = client.post("/api/jobs/x/actions/stop", headers=headers, content=b"{}")
    assert (answer.status_code, answer.text) == (403, "this request comes from another page\n")


def test_every_answer_says_what_a_page_may_load(page_of: Open) -> None:
    client = page_of()
    for answer in (client.get("/"), client.get("/app.js"), client.get("/api/jobs"), client.get("/nowhere")):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_needs_nothing_from_elsewhere() -> None:
    files = [path for path in STATIC.rglob("*") if path.suffix in (".html", ".js", ".css", ".svg")]
    assert len(files) > 10
    for path in files:
        text = path.read_text()
        if "vendor" not in path.parts:
            addresses = set(re.findall(r"https?://[^\s\"')]+", text))
            assert addresses <= {"http://www.w3.org/2000/svg"}, path
        assert not re.search(r"@import|@font-face|url\(", text), path
        for module in re.findall(r"""(?m)^import\s*[\w{},*\s]*from\s*"([^"]+)\"""", text):
            assert (path.parent / module).is_file(), (path, module)
    # Neither code nor style is in the page itself: the policy forbids both.
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]* src=)|<style|style=| on[a-z]+=", page)


def test_modules_of_others_are_those_that_were_fetched_with_their_licences() -> None:
    vendor = STATIC / "vendor"
    rows = re.findall(r"^\| (\S+) \| (\S+) \S+ \| \S+ \| ([0-9a-f]{64}) \|$", (vendor / "README.md").read_text(), re.M)
    assert {name for name, _, _ in rows} == {path.name for path in vendor.iterdir() if path.suffix in (".js", ".css")}
    for name, package, checksum in rows:
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == checksum, name
        assert (vendor / f"{package}.LICENSE").stat().st_size > 500


def test_it_listens_on_loopback_alone() -> None:
    with listen(0) as sock:
        host, port = sock.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(
            ConfigurationError, match=f"port {port} of 127.0.0.1 cannot be used: Address already in use"
        ):
            listen(port)
