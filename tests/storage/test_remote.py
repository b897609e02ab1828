from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from strandline.core.errors import ConfigurationError, ConflictError, StrandlineError, UnavailableError
from strandline.core.failure import without_secrets
from strandline.storage.remote import open_store
from strandline.storage.retrying import RetryingStore

SECRET = "sEcReT-0123456789"


def test_urls_of_one_directory_are_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store(f"file://{tmp_path}/a%20b").put("k", b"1")
    assert open_store(str(tmp_path / "a b")).get("k") == b"1"
    assert open_store("a b").get("k") == b"1"
    assert open_store("a b").url == f"file://{tmp_path}/a%20b"


@pytest.mark.parametrize("name", ["a#b", "a?b=c", "50%20off", "a%b", "é ü"])
def test_a_directory_of_any_name_is_the_same_one_by_the_stores_url(tmp_path: Path, name: str) -> None:
    store = open_store(str(tmp_path / name))
    store.put("k", b"1")
    again = open_store(store.url)
    assert again.get("k") == b"1"
    assert again.url == store.url
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("url", ["", "file://", "file://host/path", "hdfs://x/y", "s4://b", "://"])
def test_urls_that_cannot_work(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert caught.value.hint


def test_unknown_option_is_named() -> None:
    with pytest.raises(ConfigurationError, match="bogus"):
        open_store("s3://bucket/x", {"bogus": "1"})


def test_no_secret_in_urls_and_errors() -> None:
    options = {
        "access_key_id": "AKIA-IS-ALSO-SECRET",
        "secret_access_key": SECRET,
        "session_token": SECRET + "token",
        "region": "nowhere",
        "endpoint": f"http://user:{SECRET}@127.0.0.1:9",
        "allow_http": "true",
        "timeout": "1s",
        "connect_timeout": "1s",
    }
    with pytest.raises(StrandlineError) as caught:
        open_store("s3://bucket/dir", {**options, "nonsense": SECRET})
    assert SECRET not in f"{caught.value!s}{caught.value!r}{caught.value.__cause__}"
    with pytest.raises(ConfigurationError, match=r"s3://\*\*\*@bucket/dir…: a url of a folder ends") as caught:
        open_store(f"s3://me:{SECRET}@bucket/dir?sig={SECRET}", options)
    assert SECRET not in str(caught.value)
    assert open_store(f"s3://me:{SECRET}@bucket/dir", options).url == "s3://bucket/dir"


def test_a_service_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from strandline.storage import remote

    store = remote._ObstoreStore(
        remote.from_url(
            "s3://bucket/dir",
            config={"access_key_id": "a", "secret_access_key": SECRET, "endpoint": "http://127.0.0.1:9", "region": "x"},
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        ),
        "s3://bucket/dir",
        hide=partial(without_secrets, secrets=[SECRET]),
    )
    for operation in (
        lambda: store.get("k"),
        lambda: store.create("k", b""),
        lambda: list(store.list("")),
        lambda: store.delete(["k"]),
    ):
        with pytest.raises(UnavailableError, match="s3://bucket/dir/") as caught:
            operation()
        assert caught.value.__cause__ is None, "the original may print what we hide"


class MeetingWrites(BaseHTTPRequestHandler):
    """A little S3, which refuses the first create of each object since another was under way, and has done neither."""

    objects: dict[str, bytes]
    refused: set[str]

    def log_message(self, *_: object) -> None:
        pass

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path not in self.refused:
            self.refused.add(self.path)
            self.answer(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>")
        elif self.path in self.objects:
            self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            self.objects[self.path] = data
            self.answer(200)

    def do_GET(self) -> None:
        data = self.objects.get(self.path)
        self.answer(404) if data is None else self.answer(200, data)

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (("ETag", '"e"'), ("Last-Modified", formatdate(usegmt=True)), ("Content-Length", len(body))):
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def test_creates_that_meet_are_no_conflict_where_none_was_done() -> None:
    """A claim that was passed over for one would fence nobody: its number was never taken."""
    handler = type("Handler", (MeetingWrites,), {"objects": {}, "refused": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {"endpoint": f"http://127.0.0.1:{server.server_port}", "allow_http": "true", "region": "r"}
        store = open_store("s3://bucket/dir", {**options, "access_key_id": "AKIA", "secret_access_key": SECRET})
        with pytest.raises(UnavailableError, match="another write of it was under way"):
            store.create("k", b"1")
        with pytest.raises(UnavailableError, match="ConditionalRequestConflict"):
            store.put("plain", b"1")
        RetryingStore(store, sleep=lambda s: None).create("other", b"2")
        with pytest.raises(ConflictError):
            store.create("other", b"3")
        assert store.get("other") == b"2"
        server.shutdown()


def test_hiding() -> None:
    text = without_secrets(f"PUT https://u:p@h/x?sig=1&t=2 {SECRET} abc", [SECRET, "abc"])
    assert text == "PUT https://***@h/x?*** *** abc"


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="file/below"):
        open_store(str(tmp_path / "file" / "below"))


def test_a_directory_that_is_in_the_way(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    (tmp_path / "root" / "chk-1").write_text("a file where a folder must be")
    with pytest.raises(UnavailableError, match="root/chk-1/x"):
        store.put("chk-1/x", b"1")


def test_download_to_an_absent_directory(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    store.put("k", b"1")
    with pytest.raises(UnavailableError, match="absent/target"):
        store.get_file("k", tmp_path / "absent" / "target")


FULL = """
import resource, signal, sys
from strandline.core.errors import UnavailableError
from strandline.core.failure import without_secrets
from strandline.storage.remote import open_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = open_store(sys.argv[1])
store.put("small", b"x")
try:
    store.put("chk-1/large", b"x" * 1_000_000)
except UnavailableError as error:
    assert "chk-1/large" in str(error) and "disk" in str(error), error
    assert [i.path for i in store.list("")] == ["small"]
    print("refused")
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on file sizes")
def test_a_full_disk_is_unavailable_and_leaves_nothing_visible(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "refused", done
