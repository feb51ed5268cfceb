"""Errors whose message is for a person: shown as one line, never with a traceback."""

from __future__ import annotations


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
