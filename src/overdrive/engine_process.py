"""The engine behind the link: a process of its own that loads, says so, serves, and never dies of a request."""

from __future__ import annotations

import os
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from overdrive.commit import Delta
from overdrive.config import EngineOptions
from overdrive.device.cpu.precompile import Precompiler
from overdrive.errors import BadRequest, HostFault, OverdriveError, one_line
from overdrive.heap import freeze_heap
from overdrive.link import EngineEndpoint
from overdrive.types import Finish, FinishReason
from overdrive.wire import Abort, Batch, Drain, Failed, Loading, Logprobs, Ready, Shift, Stop, Submit, ToEngine, Tokens

if TYPE_CHECKING:
    from overdrive.engine import Engine

STATS_SECONDS = 0.5
IDLE_SECONDS = 0.2


class _Served:
    """An engine behind the link."""

    def __init__(self, engine: Engine, link: EngineEndpoint) -> None:
        self._engine = engine
        self._link = link
        self._draining = False
        self._stopped = False
        self._told = 0.0

    def run(self) -> None:
        """Serve until told to stop, or drained, or until the engine can run nothing any more: see `Engine.failure`."""
        while not (self._stopped or (self._draining and self._engine.idle)):
            for message in self._link.poll(IDLE_SECONDS if self._engine.idle else 0.0):
                self._take(message)
            if not self._engine.idle:
                self._publish(self._engine.advance())
                if self._engine.idle:
                    self._told = 0.0  # what stands when the last answer ends is not left untold
            if self._engine.failure:
                self._publish(self._engine.advance())
                return
            self._tell_stats()

    def _take(self, message: ToEngine) -> None:
        match message:
            case Submit():
                waited = min(max(0.0, time.time() - message.arrival), message.deadline)  # the system's clock may jump
                try:
                    self._engine.submit(message.id, message.prompt, message.params, message.deadline, waited)
                except BadRequest as error:
                    refusal = Tokens(message.id, finish=FinishReason.ERROR, error=str(error), status=error.status)
                    self._link.send(Batch([refusal]))
            case Abort():
                self._publish(self._engine.abort(message.id))
            case Shift():
                with suppress(BadRequest):  # it was checked where it came from
                    self._engine.shift(message.speculation)
                self._told = 0.0
            case Drain():
                self._draining = True
            case Stop():
                self._publish(self._engine.abort_all(Finish(FinishReason.ABORT)))
                self._stopped = True

    def _publish(self, deltas: list[Delta]) -> None:
        if deltas:
            self._link.send(Batch([as_message(delta) for delta in deltas]))

    def _tell_stats(self) -> None:
        now = time.monotonic()
        if now - self._told > STATS_SECONDS:
            self._told = now
            self._link.send(self._engine.stats())


def as_message(delta: Delta) -> Tokens:
    """A delta as it crosses the link."""
    finish = delta.finish
    scores, prompt_scores = delta.logprobs, delta.prompt_logprobs
    return Tokens(
        id=delta.request.id,
        ids=list(delta.tokens),
        accepted=delta.accepted,
        offered=delta.offered,
        source=delta.source,
        logprobs=Logprobs.of(scores, len(scores.chosen)) if scores else None,
        prompt_logprobs=Logprobs.of(prompt_scores, len(prompt_scores.chosen)) if prompt_scores else None,
        cached_tokens=max(delta.request.cached_tokens, 0),
        queued=delta.request.queued,
        finish=finish.reason if finish else None,
        stop_string=finish.stop_string if finish else -1,
        stop_token=finish.stop_token if finish else -1,
        error=finish.message if finish else "",
        status=finish.status if finish else 500,
        code=finish.code if finish else "",
    )


def run_engine(model: str, options: EngineOptions, address: str) -> None:
    """The engine process: load, say so, serve."""
    precompiler = Precompiler()
    from overdrive.engine import build  # seconds of imports, under which the other process compiles already

    link = EngineEndpoint(address)

    def progress(label: str, done: int, total: int) -> None:
        link.send(Loading(label, done, total))

    try:
        engine = build(model, options, progress, precompiler=precompiler)
    except (OverdriveError, MemoryError, RuntimeError) as error:  # torch's word for too little memory is RuntimeError
        link.send(Failed(one_line(error)))
        link.close()
        return
    freeze_heap()
    link.send(Ready(engine.info))
    try:
        _Served(engine, link).run()
    except HostFault:
        traceback.print_exc()  # the line that is sent says what broke, this where
    finally:
        failure = engine.failure
        if failure:
            link.send(Failed(failure))
        engine.close()
        link.close()
    if failure:
        os._exit(1)  # a device that waits for a rank that is gone would keep the interpreter from ending
