"""Drafts copied from the request's own text: what followed the longest earlier match of its newest tokens.

The index is that of an LZ77 compressor (Ziv and Lempel 1977; hash chains as in DEFLATE): every run of `shortest` tokens
is filed under the position where it ends, runs that are equal are chained newest first. It is brought up to date when
drafts are wanted, so a step costs O(new tokens + candidates) however long the text is. Tokens are read from the slot's
history on the device; nobody tells this drafter anything else.

        ... a b c d e ...... a b c          newest tokens end in a run that ended at `end` before
                ^ end                       drafts: d e ..., and round again from `end` when they reach the newest token
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import torch
from torch import Tensor

from overdrive.draft.base import Drafts, Fed
from overdrive.types import PageEntry

MAX_CANDIDATES = 32
"""Earlier occurrences compared per proposal, newest first."""

MAX_MATCH = 64
"""Tokens after which two contexts count as equally good; bounds the comparison."""


class NgramDrafter:
    """history: [slots, max_len] int32 and lengths: [slots] int64 on the CPU, read at every proposal.

    Memory per slot: an open-addressed table of newest ends (a power of two of at least 2 max_len) and the chain of
    earlier ends (max_len), int32.
    """

    sources = ("ngram",)
    taps = ()

    def __init__(self, history: Tensor, lengths: Tensor, shortest: int = 3) -> None:
        if shortest < 1:
            raise ValueError(f"a match needs at least one token, not {shortest}")
        slots, max_len = history.shape
        self._history = history.numpy()
        self._lengths = lengths.numpy()
        self._shortest = shortest
        self._heads = np.full((slots, 1 << (2 * max_len - 1).bit_length()), -1, np.int32)
        self._earlier = np.empty((slots, max_len), np.int32)
        self._indexed = np.zeros(slots, np.int64)  # runs that end before this position are filed
        nobody = torch.zeros(0, dtype=torch.int64)
        self.propose(nobody, nobody, 1)  # compiles here, not under the first request

    def enter(self, entry: PageEntry) -> None:
        """Pages hold nothing of this drafter's."""

    def admit(self, slot: int, tokens: Sequence[int], computed: int) -> None:
        """Forget what the slot held."""
        self._heads[slot] = -1
        self._indexed[slot] = 0

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        """As `Drafter.propose`: `caps[r]` drafts where the newest tokens occurred before, else none."""
        tokens = torch.zeros((len(slots), width), dtype=torch.int64)
        counts = torch.zeros(len(slots), dtype=torch.int64)
        _propose(
            self._history,
            self._lengths,
            self._heads,
            self._earlier,
            self._indexed,
            self._shortest,
            slots.numpy(),
            caps.numpy(),
            tokens.numpy(),
            counts.numpy(),
        )
        return Drafts(tokens, counts, torch.zeros_like(counts))

    def absorb(self, fed: Fed) -> None:
        """Nothing to keep: new tokens are read from the history."""

    def extend(self, slots: Tensor, drafts: int) -> None:
        """Nothing to read: the index is cheap to bring up to date."""


@numba.njit(cache=True, nogil=True)
def _propose(history, lengths, heads, earlier, indexed, shortest, slots, caps, tokens, counts):
    for row in range(len(slots)):
        slot = slots[row]
        length = lengths[slot]
        wanted = min(caps[row], tokens.shape[1])
        if wanted <= 0 or length <= shortest:
            continue
        text = history[slot]
        _index(text, heads[slot], earlier[slot], max(indexed[slot], shortest - 1), length - 1, shortest)
        indexed[slot] = length - 1
        end = _best_end(text, heads[slot], earlier[slot], length - 1, shortest)
        if end < 0:
            continue
        period = length - 1 - end
        for j in range(wanted):
            tokens[row, j] = text[end + 1 + j % period]
        counts[row] = wanted


@numba.njit(cache=True, nogil=True)
def _index(text, heads, earlier, first, stop, shortest):
    """File the runs that end at positions first .. stop - 1."""
    for end in range(first, stop):
        place = _place(text, heads, end, shortest)
        earlier[end] = heads[place]
        heads[place] = end


@numba.njit(cache=True, nogil=True)
def _place(text, heads, end, shortest):
    """Where the table holds the run that ends at `end`, or the free place for it. At most half the places are taken."""
    mask = np.uint32(len(heads) - 1)
    h = np.uint32(0)
    for i in range(shortest):
        h = np.uint32((h ^ np.uint32(text[end - i])) * np.uint32(0x9E3779B1))
        h ^= h >> np.uint32(15)
    place = h & mask
    while heads[place] >= 0 and _match(text, heads[place], end, shortest) < shortest:
        place = (place + np.uint32(1)) & mask
    return place


@numba.njit(cache=True, nogil=True)
def _best_end(text, heads, earlier, newest, shortest):
    """End of the longest earlier match of the run at `newest`, the latest of equals; -1 where there is none."""
    end = heads[_place(text, heads, newest, shortest)]
    best, best_length = -1, 0
    for _ in range(MAX_CANDIDATES):
        if end < 0 or best_length == MAX_MATCH:
            break
        length = _match(text, end, newest, MAX_MATCH)
        if length > best_length:
            best, best_length = end, length
        end = earlier[end]
    return best


@numba.njit(cache=True, nogil=True)
def _match(text, end, newest, limit):
    """How many tokens agree, going back from `end` and from `newest` (end <= newest), at most `limit`."""
    length = 0
    while length < limit and length <= end and text[end - length] == text[newest - length]:
        length += 1
    return length
