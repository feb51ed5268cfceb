"""Errors whose message is for a person: shown as one line, never with a traceback."""

from __future__ import annotations


class OverdriveError(Exception):
    """Something the user can mend: the message names what is wrong and what would be right."""


class OutOfDeviceMemory(RuntimeError):
    """A launch found too little memory on the device. What it was to do is undone; less at once may fit."""


def one_line(error: Exception) -> str:
    """Why something could not be set up, for people."""
    if isinstance(error, OverdriveError):
        return str(error)
    said = next(iter(str(error).splitlines()), "") or "not enough memory"
    return f"the engine cannot be set up with these options: {said}"


class BadRequest(OverdriveError):
    """A request that cannot be served as it is. `param` names the parameter at fault ("" when none is)."""

    def __init__(self, message: str, param: str = "", code: str = "invalid_value", status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
