"""How work that takes seconds says how far it is: to bars, to lines of the log, or to the other end of a link."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""progress(label, done, total): called as work proceeds, from one thread. label: the phase, in a word or two; done and
total are in its own unit, and total is 0 while it is not known."""
