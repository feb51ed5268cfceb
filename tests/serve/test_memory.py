"""Laws of memory: what clients send is not kept, and what is given back can be used by all."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from overdrive.serve.protocol import ChatRequest

REQUESTS = 20_000
GLIBC = hasattr(ctypes.CDLL(None), "mallinfo2")
THREADS = """
import ctypes, sys, threading
from overdrive.serve.allocator import keep_whole

if sys.argv[2] == "shared":
    keep_whole()
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


LARGE = """
import ctypes, sys
from overdrive.serve.allocator import keep_whole

if sys.argv[1] == "whole":
    keep_whole()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

class Told(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks mapped b c d e f g".split()]

libc.mallinfo2.restype = Told
libc.free(ctypes.c_void_p(libc.malloc(1 << 20)))  # upon which glibc takes what is smaller from its heap
before = libc.mallinfo2().mapped
libc.malloc(256 << 10)
print(libc.mallinfo2().mapped - before)
"""


def untuned() -> dict[str, str]:
    """The environment without what would set the C library's allocator otherwise."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}


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


@pytest.mark.skipif(not GLIBC, reason="the C library is not glibc")
@pytest.mark.parametrize(("how", "several"), [("shared", False), ("apart", True)])
def test_threads_share_one_arena(tmp_path: Path, how: str, several: bool) -> None:
    told = tmp_path / "malloc.xml"
    subprocess.run([sys.executable, "-c", THREADS, str(told), how], check=True, env=untuned())
    assert (told.read_text().count("<heap") > 1) == several


@pytest.mark.skipif(not GLIBC, reason="the C library is not glibc")
@pytest.mark.parametrize(("how", "mapped"), [("whole", 1), ("in holes", 0)])
def test_large_pieces_go_back_to_the_system(how: str, mapped: int) -> None:
    """Else what is left of one keeps all behind it from being given back."""
    told = subprocess.run([sys.executable, "-c", LARGE, how], check=True, env=untuned(), capture_output=True, text=True)
    assert int(told.stdout) == mapped
