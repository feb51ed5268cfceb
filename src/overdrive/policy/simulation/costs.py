"""What a step takes on machines that the simulator knows: seconds by tokens, context, rows and drafts.

Knows a few measured tables and formulas. Must never know a controller or the engine's events. A controller gets none of
this: at most the table that `arms.py` "measures" from it, as a server would at its start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

MILLI = 1e-3
MICRO = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A model on a device, and what it may hold.

    sizes, products: [n] tokens in a step, and seconds of everything that grows with them. A step pays for the next
        size up (a recorded graph, a tile); beyond the last size it pays in proportion.
    floor: seconds of every step. context: seconds to read one token of context for one query of a row; each further
        query of that row costs `query` of it.
    pass_floor, pass_share: a pass of the drafter takes pass_floor + pass_share x the target's products, in seconds.
    max_rows, chunk, max_step_tokens: as in the scheduler. prompt, output: usual lengths of requests, in tokens.
    """

    name: str
    sizes: tuple[int, ...]
    products: tuple[float, ...]
    floor: float
    context: float
    query: float
    pass_floor: float
    pass_share: float
    max_rows: int
    chunk: int
    max_step_tokens: int
    prompt: int
    output: int

    def multiply(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """Seconds of the products for `tokens` in a step; nothing for none."""
        tokens = np.asarray(tokens, np.float64)
        last = len(self.sizes) - 1
        at = np.minimum(np.searchsorted(self.sizes, tokens), last)
        return np.asarray(self.products)[at] * np.maximum(tokens / self.sizes[last], 1.0) * (tokens > 0)

    def step(self, tokens: ArrayLike, context: ArrayLike, drafts: ArrayLike) -> NDArray[np.float64]:
        """Seconds of a pass of the target with all around it.

        tokens: fed in all. context: tokens that the decode rows attend to, each row's counted once. drafts: K.
        """
        reading = self.context * np.asarray(context) * (1 + self.query * np.asarray(drafts))
        return self.floor + self.multiply(tokens) + reading

    def draft(self, drafts: ArrayLike, rows: ArrayLike, behind: ArrayLike) -> NDArray[np.float64]:
        """Seconds to draft K tokens for each of `rows`: K passes, the first over all `behind` tokens they lack."""
        drafts = np.asarray(drafts)
        first, later = (self.pass_floor + self.pass_share * self.multiply(tokens) for tokens in (behind, rows))
        return np.where(drafts > 0, first + (drafts - 1) * later, 0.0)


_DENSE_SIZES = (1, 8, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
_DENSE_MS = (3.68, 3.72, 3.84, 3.86, 4.15, 5.4, 5.0, 5.6, 8.7, 9.8, 14.4, 18.4, 41.0)
_HEAD = 1.075  # the output head beside the layers' products, by its share of the weights

DENSE_8B = Machine(
    name="dense-8b",
    sizes=_DENSE_SIZES,
    products=tuple(MILLI * _HEAD * ms for ms in _DENSE_MS),
    floor=0.3 * MILLI,
    context=0.033 * MICRO,
    query=0.03,
    pass_floor=0.03 * MILLI,
    pass_share=0.045,
    max_rows=256,
    chunk=2048,
    max_step_tokens=2048,
    prompt=256,
    output=256,
)
"""8B parameters in 16 bits on one H200: products and attention as measured there, EAGLE-3 at 5 % of a pass. Products
at 128 tokens take longer than at 192: what was measured is kept."""

LONG_CONTEXT = replace(DENSE_8B, name="long-context", max_rows=48, prompt=16384)
"""The same with prompts of 16K tokens, as many rows as the keys and values of 800K tokens allow."""

_CPU_SIZES = (1, 2, 3, 4, *range(6, 64, 2), *range(64, 1025, 8))
_CPU_MS = np.interp(_CPU_SIZES, (1, 2, 4, 8, 16, 64, 1024), (4.8, 4.8, 5.7, 8.7, 14.0, 43.2, 640.0))

CPU_SMOLLM2 = Machine(
    name="cpu-smollm2",
    sizes=_CPU_SIZES,
    products=tuple(MILLI * float(ms) for ms in _CPU_MS),
    floor=0.6 * MILLI,
    context=1.0 * MICRO,
    query=0.15,
    pass_floor=0.05 * MILLI,
    pass_share=0.11,
    max_rows=64,
    chunk=256,
    max_step_tokens=1024,
    prompt=128,
    output=128,
)
"""SmolLM2-135M in 4 bits on two cores: products as measured, the head's passes at about 0.6 ms for one row."""

_EXPERTS, _ACTIVE = 128, 8
_MOE_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)


def _experts_ms(tokens: int) -> float:
    """Experts touched x 13 ms for the weights of all, or arithmetic, whichever is longer; the layers' rest is 1 ms.

    A token is given 8 of 128 experts at random, so the expected share touched is 1 - (1 - 8/128)^tokens.
    """
    touched = 1 - (1 - _ACTIVE / _EXPERTS) ** tokens
    return 1.0 + max(13.0 * touched, 0.012 * tokens)


MIXTURE = Machine(
    name="moe",
    sizes=_MOE_SIZES,
    products=tuple(MILLI * _experts_ms(tokens) for tokens in _MOE_SIZES),
    floor=0.3 * MILLI,
    context=0.02 * MICRO,
    query=0.03,
    pass_floor=0.15 * MILLI,
    pass_share=0.02,
    max_rows=256,
    chunk=2048,
    max_step_tokens=2048,
    prompt=256,
    output=256,
)
"""30B parameters, 3B active, by formula: each draft of a few rows wakes further experts, and of many rows none."""

MACHINES = {machine.name: machine for machine in (DENSE_8B, LONG_CONTEXT, CPU_SMOLLM2, MIXTURE)}
