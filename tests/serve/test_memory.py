"""Laws of memory: what clients send is not kept, and threads leave nothing behind that others cannot use."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from overdrive.serve.protocol import ChatRequest

REQUESTS = 20_000
THREADS = """
import ctypes, sys, threading
from overdrive.serve.allocator import share_arena

if sys.argv[2] == "shared":
    share_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
barrier = threading.Barrier(8)

def work():
    libc.malloc(1000)
    barrier.wait()

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


def test_bodies_leave_nothing_behind() -> None:
    """Neither texts nor names: a parser's cache of strings would keep thousands of them."""

    def read(count: int) -> None:
        for i in range(count):
            body = {"model": f"m{i}", "messages": [{"role": "user", "content": f"text {i}"}]}
            body["chat_template_kwargs"] = {f"name {i}": f"value {i}"}
            ChatRequest.model_validate_json(json.dumps(body))

    read(100)
    gc.collect()
    before = sys.getallocatedblocks()
    read(REQUESTS)
    gc.collect()
    assert sys.getallocatedblocks() - before < REQUESTS / 20


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="the C library is not glibc")
@pytest.mark.parametrize(("how", "several"), [("shared", False), ("apart", True)])
def test_threads_share_one_arena(tmp_path: Path, how: str, several: bool) -> None:
    told = tmp_path / "malloc.xml"
    subprocess.run([sys.executable, "-c", THREADS, str(told), how], check=True, timeout=60)
    assert (told.read_text().count("<heap") > 1) == several
