"""The HTTP application over the real engine, with a tiny random model over bytes in float64."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from overdrive.config import DeviceOptions, DraftOptions, EngineOptions, MemoryOptions, ModelOptions, SchedulerOptions
from overdrive.engine_process import run_engine
from tests.llm.conftest import CONFIG
from tests.serve.fakes import FakeServer

from .servers import Server


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 2048}))
    return folder


@pytest.fixture(scope="module")
def make_server(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """Servers whose engines have options of their own; equal options share one server."""
    servers: dict[str, Server] = {}

    def make(**options: object) -> Server:
        name = str(sorted(options.items()))
        if name not in servers:
            address = f"ipc://{tmp_path_factory.mktemp('link')}/engine"
            serve = partial(run_engine, str(tiny_folder), engine_options(**options))
            servers[name] = Server(FakeServer(address, serve_engine=serve))
        return servers[name]

    yield make
    for server in servers.values():
        server.close()


def engine_options(
    draft: str = "ngram",
    drafts: int = 3,
    overlap: str = "off",
    kv_tokens: int = 4096,
    max_rows: int = 16,
    max_model_len: int = 256,
    max_queue: int = 1024,
) -> EngineOptions:
    """Small numbers throughout, so that pages, chunks and the step's tokens run out."""
    return EngineOptions(
        model=ModelOptions(load_format="dummy", precision="float64", max_model_len=max_model_len),
        memory=MemoryOptions(page_size=4, kv_tokens=kv_tokens),
        scheduler=SchedulerOptions(max_rows=max_rows, max_step_tokens=96, chunk=32, max_queue=max_queue),
        draft=DraftOptions(draft=draft, speculation="fixed", drafts=drafts, ngram_min=1),
        device=DeviceOptions(threads=1, overlap=overlap),
    )
