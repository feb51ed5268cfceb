"""The rows of a simulated engine, as arrays over slots: what the device has done of each request, and what the host
knows of that. Never costs, never a controller.

    prompt: fed .. prompt_len            answer: told <= made <= output
                                         told: settled on the host; made: exists on the device, cut at the answer's end
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from overdrive.types import Admission, Outcome, Row, SamplingParams

WINDOW = 256
"""Most tokens of a row that a drafter keeps to catch up on."""

ROUNDING = 16
"""`Row.upper_len` in steps of so many tokens."""


class Rows:
    """Slots 0 .. n - 1; `request` is -1 in those that are free. All arrays are [n] int64, in tokens but for it.

    flying, bound: tokens that launched steps will add at least and at most. behind: what the drafter lacks; read: what
    it has of a row for certain, as the host knows it.
    """

    def __init__(self, n: int) -> None:
        def zeros() -> NDArray[np.int64]:
            return np.zeros(n, np.int64)

        self.request = zeros() - 1
        self.kind, self.prompt, self.output = zeros(), zeros(), zeros()
        self.fed, self.made, self.told = zeros(), zeros(), zeros()
        self.flying, self.bound, self.behind = zeros(), zeros(), zeros()
        self.read = zeros()
        self._free = list(range(n))[::-1]
        self._decoding: list[dict[tuple[int, int], Row]] = [{} for _ in range(n)]
        self._admissions: dict[int, Admission] = {}

    @property
    def inside(self) -> int:
        """Requests that hold a slot."""
        return len(self.request) - len(self._free)

    @property
    def full(self) -> bool:
        return not self._free

    def admit(self, request: int, kind: int, prompt: int, output: int, sampled: bool) -> None:
        """Give a request a slot. The caller has seen that one is free. sampled: it draws its tokens."""
        slot = self._free.pop()
        self.request[slot], self.kind[slot], self.prompt[slot], self.output[slot] = request, kind, prompt, output
        for array in (self.fed, self.made, self.told, self.flying, self.bound):
            array[slot] = 0
        self.behind[slot], self.read[slot] = 0, prompt  # a drafter reads prompts in the steps that feed them
        self._decoding[slot] = {}
        params = SamplingParams(max_tokens=output, temperature=float(sampled))
        self._admissions[slot] = Admission(f"r{request}", slot, (), prompt, 0, params)

    def admissions(self, slots: Iterable[int]) -> tuple[Admission, ...]:
        """Those of requests that a step holds for the first time."""
        return tuple(self._admissions.pop(slot) for slot in slots if slot in self._admissions)

    def leave(self, slot: int) -> None:
        """Free a slot whose request has ended; a launched step may still hold its row."""
        self.request[slot] = -1
        self._free.append(slot)

    def decoding(self) -> NDArray[np.int64]:
        """Slots whose next step feeds one known token: none that launched steps are certain to end."""
        left = self.output - self.told - self.flying
        return np.flatnonzero((self.request >= 0) & (self.fed >= self.prompt) & (left > 0))

    def prefilling(self) -> NDArray[np.int64]:
        """Slots with prompt left to feed, oldest request first."""
        slots = np.flatnonzero((self.request >= 0) & (self.fed < self.prompt))
        return slots[np.argsort(self.request[slots])]

    def most_drafts(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """What each row may draft: it needs no more than the tokens it still wants after its own."""
        return (self.output - self.told - self.flying - 1)[slots]

    def launch(self, slots: NDArray[np.int64], useful: NDArray[np.int64], outcome: Outcome) -> None:
        """A launched step makes `useful` tokens [rows]; the host knows only what it may come to."""
        emits = outcome.counts > 0
        self.made[slots] += useful
        self.behind[slots] += outcome.counts
        self.flying[slots] += emits
        self.bound[slots] += (outcome.offered + 1) * emits
        drafting = slots[outcome.offered > 0]
        self.read[drafting] = self.upper_len(drafting)

    def land(self, slots: NDArray[np.int64], useful: NDArray[np.int64], offered: NDArray[np.int64]) -> None:
        """The host hears of a launched step. All are [rows that emit and whose requests still hold their slots]."""
        self.told[slots] += useful
        self.flying[slots] -= 1
        self.bound[slots] -= offered + 1

    def decode_rows(self, slots: NDArray[np.int64], drafts: NDArray[np.int64]) -> list[Row]:
        """The rows as controllers see them in a step; `upper_len` is rounded up, so that rows can be used again."""
        upper = -(-(self.upper_len(slots) + drafts) // ROUNDING) * ROUNDING
        return [self._decode_row(*one) for one in zip(slots.tolist(), drafts.tolist(), upper.tolist(), strict=True)]

    def upper_len(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Most tokens that the device may hold for each, as the host knows it."""
        return (self.prompt + self.told + self.bound)[slots]

    def keep_plain(self, slots: NDArray[np.int64], drafts: NDArray[np.int64], most_rows: int) -> None:
        """Let only `most_rows` draft, those whose drafter lacks least: `drafts` [rows] of the others become 0."""
        able = np.flatnonzero(drafts)
        unread = (self.upper_len(slots) - self.read[slots])[able]
        drafts[able[np.argsort(unread, kind="stable")[most_rows:]]] = 0

    def _decode_row(self, slot: int, drafts: int, upper: int) -> Row:
        made = self._decoding[slot]
        if (drafts, upper) not in made:
            made[drafts, upper] = Row(f"r{self.request[slot]}", slot, 1, drafts, True, upper)
        return made[drafts, upper]

    def prompt_row(self, slot: int, known: int) -> Row:
        """A chunk of `known` prompt tokens, fed from now on."""
        self.fed[slot] += known
        emits = bool(self.fed[slot] == self.prompt[slot])
        return Row(f"r{self.request[slot]}", slot, known, 0, emits, int(self.fed[slot]))
