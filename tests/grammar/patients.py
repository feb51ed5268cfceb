"""A compiler for the vetter's process that does what grammars may do to one."""

from __future__ import annotations

import os
import signal
from itertools import count
from types import SimpleNamespace

import numpy as np


class Patients:
    """Kinds: endless, growing, crashing, panicking, stopped, killing (the vetter), and any other, which is fine."""

    def compose(self, kind: str, source: str) -> str:
        return source.upper()

    def build(self, kind: str, source: str, grammar: str):
        if kind == "endless":
            for _ in count():
                pass
        if kind == "growing":
            return [np.empty(64 << 20, np.uint8) for _ in count()]
        if kind == "crashing":
            os.abort()
        if kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "killing":
            os.kill(os.getpgrp(), signal.SIGKILL)  # the vetter leads its group
            signal.pause()
        if kind == "panicking":
            raise BaseException("index out of bounds")
        return SimpleNamespace()
