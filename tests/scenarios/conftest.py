"""The HTTP application over the real engine, with a tiny random model over bytes in float64."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from overdrive.config import DeviceOptions, DraftOptions, EngineOptions, MemoryOptions, ModelOptions, SchedulerOptions
from overdrive.engine import build
from overdrive.engine_process import _Served, run_engine
from overdrive.link import EngineEndpoint
from overdrive.serve.connection import raise_file_limit
from overdrive.wire import Ready
from tests.llm.conftest import CONFIG
from tests.loop.bench import RandomDrafts
from tests.serve.fakes import FakeServer

from .engines import FLIPPING
from .servers import Server

MOST = 7  # of K where it flips
REPEATS_ITSELF = 15  # the seed of deep weights whose greedy text does so, as that of the others does


@pytest.fixture(autouse=True, scope="session")
def many_files() -> None:
    """The servers of a module stay open side by side, each with its sockets: more than some shells allow at first."""
    raise_file_limit()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 2048}))
    return folder


@pytest.fixture(scope="session")
def deep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With as many layers as an EAGLE-3 head needs that reads three of them."""
    folder = tmp_path_factory.mktemp("deep")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 2048, "num_hidden_layers": 7}))
    return folder


@pytest.fixture(scope="module")
def make_server(tiny_folder: Path, deep_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """Servers whose engines have options of their own; equal options share one server."""
    servers: dict[str, Server] = {}

    def make(**options: object) -> Server:
        name = str(sorted(options.items()))
        if name not in servers:
            address = f"ipc://{tmp_path_factory.mktemp('link')}/engine"
            run = run_flipping if options.get("drafts") == FLIPPING else run_engine
            folder = deep_folder if "eagle3" in str(options.get("draft")) else tiny_folder
            serve = partial(run, str(folder), engine_options(folder, **options))
            servers[name] = Server(FakeServer(address, serve_engine=serve))
        return servers[name]

    yield make
    for server in servers.values():
        server.close()


def run_flipping(model: str, options: EngineOptions, address: str) -> None:
    """As `run_engine`, with another K every step."""
    link = EngineEndpoint(address)
    engine = build(model, options, lambda *_: None, controller=RandomDrafts(random.Random(1)))
    link.send(Ready(engine.info))
    try:
        _Served(engine, link).run()
    finally:
        engine.close()
        link.close()


def engine_options(
    folder: Path,
    draft: str = "ngram",
    drafts: int = 3,
    overlap: str = "off",
    kv_tokens: int = 4096,
    max_rows: int = 16,
    max_model_len: int = 256,
    max_queue: int = 1024,
) -> EngineOptions:
    """Small numbers throughout, so that pages, chunks and the step's tokens run out.

    A small model is the model itself, whose drafts are all right at temperature 0; an EAGLE-3 head is a random one.
    drafts: K, or FLIPPING.
    """
    network = "dummy" if "eagle3" in draft else str(folder) if "small" in draft else ""
    most = MOST if drafts == FLIPPING else drafts
    seed = REPEATS_ITSELF if "eagle3" in draft else 0
    return EngineOptions(
        model=ModelOptions(load_format="dummy", precision="float64", max_model_len=max_model_len, seed=seed),
        memory=MemoryOptions(page_size=4, kv_tokens=kv_tokens),
        scheduler=SchedulerOptions(max_rows=max_rows, max_step_tokens=96, chunk=32, max_queue=max_queue),
        draft=DraftOptions(draft=draft, draft_model=network, speculation="fixed", drafts=most, ngram_min=1),
        device=DeviceOptions(threads=1, overlap=overlap),
    )
