"""The process in which a grammar is tried before the engine compiles it: what is hostile dies here.

Sources come from strangers, and the library cannot be interrupted. So each is compiled in a child of its own, forked
from a process that holds nothing but the vocabulary, under limits that the kernel keeps: processor time, memory and a
deadline. A child costs a few milliseconds; a crash or a stack that overflows is its own.

    engine (vetting.py)  -- kind, source -->  vetter  -- fork -->  child: composes, compiles, tries
             <-- begun, Vetted or why not --          <-- pipe --

Children run by levels (`levels.py`): those that need more time than theirs gives begin again on the next. Knows sources
and the compiler that it is given; never requests. One thread, so that forking is safe.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from overdrive.errors import BadRequest, system_reason
from overdrive.grammar.base import Compiler, NotNow, Vetted
from overdrive.grammar.crew import STACK_BYTES, start_deep
from overdrive.grammar.levels import Job, Level, Turns

MEMORY_BYTES = 512 << 20
"""Of a child, beyond what the vetter has. Ordinary grammars take a hundredth."""

TOO_LONG = "the grammar cannot be used: compiling it takes more than {:g} seconds of a processor"
TOO_LARGE = "the grammar cannot be used: compiling it takes too much memory"
TOO_LATE = "the grammar's turn to be compiled did not come in time: there are too many at once"

LOST = "the grammar could not be compiled: the process that tried it ended"

LOOK_SECONDS = 1.0
"""From one look for jobs that are too late to the next."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that waits for its one job, or is at it."""

    pid: int
    pipe: Connection


class Vetter:
    """Owns the children. `run` serves until the other end of `asks` is closed."""

    def __init__(self, asks: Connection, compiler: Compiler, levels: Sequence[Level]) -> None:
        self._asks = asks
        self._compiler = compiler
        self._turns = Turns(levels)
        self._running: dict[Connection, tuple[Child, Job]] = {}
        self._spare: list[Child] = []  # none, or one: forking takes longer than what most grammars take
        self._looked = 0.0

    def run(self) -> None:
        try:
            while True:
                self._start_children()
                ready = wait([self._asks, *self._running], LOOK_SECONDS)
                self._look(time.monotonic())
                for pipe in [pipe for pipe in self._running if pipe in ready]:
                    self._ended(*self._running.pop(pipe))
                while self._asks.poll():
                    number, kind, source, seconds = self._asks.recv()
                    self._turns.add(Job(number, kind, source, time.monotonic() + seconds))
        except (EOFError, OSError):  # the engine is gone
            for child, _ in self._running.values():
                os.kill(child.pid, signal.SIGKILL)

    def _start_children(self) -> None:
        while jobs := self._turns.begin():
            for job in jobs:
                try:
                    self._start(job)
                except OSError as error:  # the system has no process to give
                    self._settle(job, NotNow(f"the grammar could not be compiled: {system_reason(error)}"))
        if not self._spare:
            with suppress(OSError):
                self._spare.append(self._fork())

    def _look(self, now: float) -> None:
        """Give up what is too late by now: jobs whose turn never came, and children whose alarm does not end them,
        since somebody has stopped them."""
        if now < self._looked + LOOK_SECONDS:
            return
        self._looked = now
        for job in self._turns.give_up(now):
            self._answer(job, NotNow(TOO_LATE))
        for child, job in self._running.values():
            if now > job.until + LOOK_SECONDS:
                os.kill(child.pid, signal.SIGKILL)

    def _start(self, job: Job) -> None:
        if time.monotonic() > job.until:
            self._settle(job, NotNow(TOO_LATE))
            return
        self._asks.send((job.number, None))  # should this process not outlive it, the engine knows whom to suspect
        child = self._given(self._spare.pop(), job) if self._spare else None
        child = child or self._given(self._fork(), job)
        if child is None:
            self._settle(job, NotNow(LOST))
        else:
            self._running[child.pipe] = child, job

    def _given(self, child: Child, job: Job) -> Child | None:
        """The child, at the job; None where it has died while it waited for one."""
        try:
            child.pipe.send((job, self._turns.levels[job.level]))
        except ConnectionError:
            child.pipe.close()
            os.waitpid(child.pid, 0)
            return None
        return child

    def _fork(self) -> Child:
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._asks.close()  # or the engine would take the child for the vetter, where that has died
            _child(theirs, self._compiler)
        theirs.close()
        return Child(pid, ours)

    def _ended(self, child: Child, job: Job) -> None:
        try:
            self._settle(job, child.pipe.recv())
            os.waitpid(child.pid, 0)
        except (EOFError, ConnectionError):
            self._killed(job, os.waitpid(child.pid, 0)[1])
        child.pipe.close()

    def _killed(self, job: Job, status: int) -> None:
        """A child ended without a verdict. status: as `os.waitpid` has it."""
        by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if by == signal.SIGPROF:
            self._turns.end(job)
            if not self._turns.advance(job):
                self._answer(job, BadRequest(TOO_LONG.format(self._turns.levels[-1].seconds)))
        elif by in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS):  # the library aborts where it gets no memory
            self._settle(job, BadRequest(TOO_LARGE))
        else:
            self._settle(job, NotNow(TOO_LATE if by == signal.SIGALRM or time.monotonic() > job.until else LOST))

    def _settle(self, job: Job, verdict: Vetted | BadRequest) -> None:
        """The answer on a job whose turn it was."""
        self._turns.end(job)
        self._answer(job, verdict)

    def _answer(self, job: Job, verdict: Vetted | BadRequest) -> None:
        self._asks.send((job.number, verdict))


def _child(pipe: Connection, compiler: Compiler) -> None:
    """Never returns. The timers' signals end the process where it stands."""
    verdicts: list[Vetted | BadRequest] = []
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where the library writes its last words
        job, level = pipe.recv()
        before = _peak_bytes()
        _limit(level, job.until - time.monotonic())
        start_deep(lambda: verdicts.append(_verdict(compiler, job, before))).join()
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send(verdicts[0])
    finally:
        os._exit(0)


def _limit(level: Level, seconds: float) -> None:
    """Of the calling process, from now on."""
    with suppress(OSError):
        os.nice(level.nice)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # where there is no /proc, and where less is allowed already
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + STACK_BYTES + MEMORY_BYTES,) * 2)
    signal.setitimer(signal.ITIMER_PROF, level.seconds)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))


def _verdict(compiler: Compiler, job: Job, before: int) -> Vetted | BadRequest:
    """before: bytes that the process had held."""
    try:
        grammar = compiler.compose(job.kind, job.source)
        compiler.build(job.kind, job.source, grammar)
    except BadRequest as error:
        return error.with_traceback(None)
    except MemoryError:
        return BadRequest(TOO_LARGE)
    except BaseException as error:  # what a panic in native code raises is no Exception
        return BadRequest(f"the grammar cannot be compiled: {error}")
    return Vetted(grammar, time.process_time(), _peak_bytes() - before)


def _peak_bytes() -> int:
    """Most memory that the process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (0 if sys.platform == "darwin" else 10)


def serve(descriptor: int) -> None:
    """The vetter's main function. descriptor: of its end of a pipe, on which the compiler's maker comes first."""
    asks = Connection(descriptor)
    make: Callable[[], Compiler]
    try:
        make, levels = asks.recv()
    except (EOFError, OSError):  # the engine is gone already
        return
    compiler = make()
    with suppress(BadRequest):  # has the vocabulary read once, and not by every child
        compiler.build("regex", "a", compiler.compose("regex", "a"))
    gc.freeze()  # collecting would copy what children share
    Vetter(asks, compiler, levels).run()
