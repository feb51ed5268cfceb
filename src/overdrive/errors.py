"""Errors whose message is for a person: shown as one line, never with a traceback."""

from __future__ import annotations

import os


class OverdriveError(Exception):
    """Something the user can mend: the message names what is wrong and what would be right."""


class OutOfDeviceMemory(RuntimeError):
    """A launch found too little memory on the device. What it was to do is undone; less at once may fit."""


class HostFault(Exception):
    """The host's own bookkeeping broke off: how far requests are is not known any more, and no text may go on from it.

    Unlike a device's fault, which costs the steps under way, it ends the engine.
    """


def first_line(error: BaseException) -> str:
    """What an error says, in one line: drivers add advice in further ones. Its type where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def system_reason(error: BaseException) -> str:
    """Why the system refused a file or a connection, in its words without its number; `first_line` of other errors.

    HTTP libraries wrap the system's error, and say less than it does.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            of_the_system = type(cause).__module__ == "builtins"  # name lookup and TLS have numbers of their own
            return os.strerror(cause.errno).lower() if of_the_system else cause.strerror or first_line(cause)
        if isinstance(cause, TimeoutError):
            return "timed out"
        cause = cause.__cause__ or cause.__context__
    return first_line(error)


def one_line(error: Exception) -> str:
    """Why something could not be set up, for people."""
    if isinstance(error, OverdriveError):
        return first_line(error)
    said = first_line(error) if str(error) else "not enough memory"
    return f"the engine cannot be set up with these options: {said}"


class BadRequest(OverdriveError):
    """A request that cannot be served as it is. `param` names the parameter at fault ("" when none is)."""

    def __init__(self, message: str, param: str = "", code: str = "invalid_value", status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
