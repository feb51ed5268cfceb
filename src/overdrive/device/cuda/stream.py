"""A CUDA stream behind the engine's `Stream`: launches enqueue, events are the device's own."""

from __future__ import annotations

import torch

from overdrive.device.stream import Launch, Wait, launch_error, let_go, synchronize


class CudaEvent:
    """A point in a CUDA stream."""

    def __init__(self, stream: torch.cuda.Stream, error: BaseException | None, wait: Wait) -> None:
        self._error = error
        self._wait = wait
        self._event = torch.cuda.Event()
        if error is None:
            self._event.record(stream)

    def wait(self) -> None:
        if self._error is None:
            try:
                self._wait(self._event)
            except RuntimeError as error:
                self._error = let_go(error)
        if self._error is not None:
            raise launch_error(self._error) from self._error


class SideStream:
    """Copies to the device beside what the engine's stream is doing: they need not wait for it, it waits for them."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def run(self, work: Launch) -> None:
        """Enqueue `work` now, whatever the current stream still has to do, which goes on behind it.

        It must write only what nothing enqueued before it still reads: that is the caller's to know.
        """
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


def run_here(work: Launch) -> None:
    """In place of `SideStream.run`: in turn."""
    work()


class CudaStream:
    """Runs each launch at once in the caller's thread, where it only enqueues work on the device.

    After a failure launches are skipped until the error has been cleared, as on every stream.
    """

    def __init__(self, device: torch.device, wait: Wait = synchronize) -> None:
        """wait: for work that may need other devices too."""
        self._wait = wait
        self.stream = torch.cuda.Stream(device)
        self._error: BaseException | None = None

    def launch(self, work: Launch) -> None:
        if self._error is not None:
            return
        try:
            with torch.cuda.stream(self.stream):
                work()
        except Exception as error:
            self._error = let_go(error)

    def record(self) -> CudaEvent:
        return CudaEvent(self.stream, self._error, self._wait)

    def clear_error(self) -> None:
        """What failed was the launch; what it may have left running, on a side stream too, is waited for."""
        torch.cuda.synchronize(self.stream.device)
        self._error = None
        torch.cuda.empty_cache()  # what failed may have been for want of memory

    def close(self) -> None:
        self.stream.synchronize()
