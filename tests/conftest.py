"""Shared by all tests: one thread, since tiny models gain nothing from more and lose much to them on a busy machine; an
environment that says nothing of proxies and terminals; and how hypothesis searches."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

import tests.effort  # noqa: F401  (registers the profile that pytest loads before any test is imported)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def environment() -> Iterator[None]:
    """Servers of tests are on this machine, where no proxy can reach them; what is printed goes to no terminal."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost"))))
        yield
