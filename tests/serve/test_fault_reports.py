"""Whoever runs the server reads in the log why the device lost steps: clients only see that answers take longer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from overdrive.errors import first_line
from overdrive.serve.server import report_faults
from overdrive.wire import Stats


class Client:
    """An engine that tells these statistics, and then is gone."""

    failure = ""

    def __init__(self, *told: Stats) -> None:
        self._told = list(told)

    async def next_stats(self) -> Stats:
        stats = self._told.pop(0)
        if not self._told:
            self.failure = "the engine process ended"
        return stats


def test_every_loss_of_steps_is_logged_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    short, illegal = "out of memory", "an illegal memory access was encountered"
    client: Any = Client(
        Stats(), Stats(faults=1, fault=short), Stats(faults=1, fault=short), Stats(faults=3, fault=illegal)
    )
    with caplog.at_level("WARNING", "overdrive.serve"):
        asyncio.run(report_faults(client))
    found = [getattr(record, "fields", {}) for record in caplog.records]
    assert found == [{"reason": short, "faults": 1}, {"reason": illegal, "faults": 3}]


def test_an_error_of_many_lines_is_told_by_its_first_one() -> None:
    error = RuntimeError(
        "\nCUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA` ..."
    )
    assert first_line(error) == "CUDA error: an illegal memory access was encountered"
    assert first_line(MemoryError()) == "MemoryError"
