"""Laws of the kernel threads: every piece of work is done once, whoever comes, and nobody stays behind."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
from numba import cfunc

from overdrive.device.cpu.memory import load_int, load_ints, store_int, take
from overdrive.device.cpu.team import Call, Team
from tests.patience import wait_until


@cfunc("void(int64, int64)")
def count_up(a, thread):
    """Add one to each of `n` integers."""
    n, out = load_ints(a + 8, 2)
    i = take(a)
    while i < n:
        store_int(out + 8 * i, load_int(out + 8 * i) + 1)
        i = take(a)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_piece_of_work_is_done_once(threads: int) -> None:
    call = Call(Team(threads), count_up, "qq")
    counts = np.zeros(500, dtype=np.int64)
    for round_ in range(2000):
        call(500 if round_ % 2 else 3, counts.ctypes.data)
    assert (counts[:3] == 2000).all()
    assert (counts[3:] == 1000).all()


def test_workers_that_slept_come_back() -> None:
    call = Call(Team(3), count_up, "qq")
    counts = np.zeros(500, dtype=np.int64)
    for _ in range(20):
        time.sleep(0.002)  # longer than a worker spins
        call(500, counts.ctypes.data)
    assert (counts == 20).all()


def test_a_small_call_stays_on_its_thread() -> None:
    call = Call(Team(2), count_up, "qq")
    counts = np.zeros(9, dtype=np.int64)
    call.alone(9, counts.ctypes.data)
    assert (counts == 1).all()


def test_workers_leave_with_their_team() -> None:
    before = set(threading.enumerate())
    team = Team(4)
    workers = set(threading.enumerate()) - before
    assert len(workers) == 3
    del team
    gc.collect()
    wait_until(lambda: not any(worker.is_alive() for worker in workers))
