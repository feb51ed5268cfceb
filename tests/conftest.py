"""Shared by all tests: tiny models gain nothing from threads, and lose much to them on a busy machine."""

from __future__ import annotations

import pytest
import torch

import tests.effort  # noqa: F401  (registers the profile that pytest loads before any test is imported)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
