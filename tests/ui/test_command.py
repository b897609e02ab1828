"""`strandline ui` as a process: its address, its end, and what it says where something is missing."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import Command, environment, strandline

__all__ = ["strandline"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_prints_its_address_and_ends_with_a_signal_while_a_page_is_open(
    local_dir: Path, number: signal.Signals, code: int
) -> None:
    command = [sys.executable, "-m", "strandline.cli.main", "ui", "--port", "0", "--local-dir", str(local_dir)]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        base, _, token = address.partition("?token=")
        assert base.startswith("http://127.0.0.1:")
        assert len(token) >= 32
        cookie = f"strandline-{base.rstrip('/').rpartition(':')[2]}={token}"
        request = urllib.request.Request(f"{base}api/events", headers={"cookie": cookie})
        with urllib.request.urlopen(request, timeout=20) as events:
            assert events.readline().startswith(b'data: {"version":')
            process.send_signal(number)
            assert process.wait(20) == code
        _, said = process.communicate()
    assert "Traceback" not in said
    assert "until Ctrl-C" in said


def test_without_its_packages_it_says_what_to_install(strandline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("strandline.ui.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    monkeypatch.setitem(sys.modules, "starlette", None)
    outcome = strandline("ui")
    assert outcome.code == 1
    assert "`strandline ui` needs starlette, which is not installed" in outcome.stderr
    assert "pip install 'strandline[ui]'" in outcome.stderr
