"""One server for all tests of the endpoints; each test finds its engine as new."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import openai
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `fakes`, wherever pytest was started

from fakes import FakeServer

from tests.patience import PATIENCE


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory):
    server = FakeServer(f"ipc://{tmp_path_factory.mktemp('link')}/engine")
    yield server
    server.close()


@pytest.fixture
def server(shared_server):
    shared_server.engine.reset()
    return shared_server


@pytest.fixture
def make_server(tmp_path):
    """Servers with options of their own."""
    servers = []

    def make(**options):
        servers.append(FakeServer(f"ipc://{tmp_path}/{len(servers)}", **options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def shared_http(shared_server):
    with httpx.Client(base_url=shared_server.url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def http(server, shared_http):
    return shared_http


@pytest.fixture(scope="session")
def shared_client(shared_server):
    with openai.OpenAI(base_url=f"{shared_server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def client(server, shared_client):
    return shared_client
