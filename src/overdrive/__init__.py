"""Overdrive: an LLM server in which speculation is a gear, not a launch flag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overdrive.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "__version__"]


def __getattr__(name: str) -> Any:
    """LLM is loaded when it is first asked for: torch takes seconds, `overdrive --help` must not."""
    if name == "LLM":
        from overdrive.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
