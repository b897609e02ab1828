from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from strandline.ui.app import Page
from strandline.ui.browse import Browser
from strandline.ui.jobs import Jobs
from tests.cli.fabricate import alerts
from tests.cli.snapshots import Made, make
from tests.control.serving import serve

__all__ = ["alerts", "serve"]

TOKEN = "the-token"
COOKIE = "strandline-8740"
HERE = "http://127.0.0.1:8740"

Open = Callable[..., TestClient]


@pytest.fixture
def page_of(local_dir: Path) -> Iterator[Open]:
    """A browser that has come with the token, at a page of these jobs and directories."""
    clients: list[TestClient] = []

    def start(*wanted: object, values: bool = False, of: Path = local_dir, **more: Any) -> TestClient:
        page = Page(Jobs(of, [str(each) for each in wanted]), Browser({}, values), **more)
        client = TestClient(page.app(TOKEN, COOKIE), base_url=HERE, headers={"origin": HERE})
        clients.append(client)
        assert client.get(f"/?token={TOKEN}").status_code == 200
        return client

    yield start
    for client in clients:
        client.close()


@pytest.fixture(scope="session")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("snapshots"))


def only_job(client: TestClient) -> dict[str, Any]:
    (job,) = client.get("/api/jobs").json()["jobs"]
    assert isinstance(job, dict)
    return job
