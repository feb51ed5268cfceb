"""Laws of n-gram drafts, against a search that looks at every position."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overdrive.draft.ngram import MAX_CANDIDATES, MAX_MATCH, NgramDrafter

MAX_LEN = 200


def brute_force(text: list[int], shortest: int, cap: int) -> list[int]:
    """Longest match among the latest MAX_CANDIDATES earlier occurrences of the newest `shortest` tokens."""
    newest, best, best_length, candidates = len(text) - 1, -1, 0, 0
    for end in range(newest - 1, shortest - 2, -1):
        length = 0
        while length <= end and length < MAX_MATCH and text[end - length] == text[newest - length]:
            length += 1
        if length < shortest or candidates == MAX_CANDIDATES:
            continue
        candidates += 1
        if length > best_length:
            best, best_length = end, length
    if best < 0:
        return []
    out = list(text)
    for j in range(cap):
        out.append(out[best + 1 + j])
    return out[len(text) :]


class Slots:
    """A device history as the engine keeps it, and a drafter that reads it."""

    def __init__(self, slots: int, shortest: int) -> None:
        self.history = torch.zeros((slots, MAX_LEN), dtype=torch.int32)
        self.lengths = torch.zeros(slots, dtype=torch.int64)
        self.drafter = NgramDrafter(self.history, self.lengths, shortest)

    def admit(self, slot: int, tokens: list[int]) -> None:
        self.lengths[slot] = 0
        self.extend(slot, tokens)
        self.drafter.admit(slot, tokens, 0)

    def extend(self, slot: int, tokens: list[int]) -> None:
        start = int(self.lengths[slot])
        self.history[slot, start : start + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.lengths[slot] += len(tokens)

    def propose(self, slots: list[int], caps: list[int], width: int) -> list[list[int]]:
        drafts = self.drafter.propose(torch.tensor(slots), torch.tensor(caps), width)
        assert (drafts.tokens[torch.arange(width) >= drafts.counts.unsqueeze(1)] == 0).all()
        return [row[:n] for row, n in zip(drafts.tokens.tolist(), drafts.counts.tolist(), strict=True)]


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 6))
def test_drafts_equal_brute_force_however_the_text_arrives(data: st.DataObject, shortest: int, alphabet: int) -> None:
    device = Slots(2, shortest)
    tokens = st.integers(0, alphabet).map(lambda t: t * 8191)
    texts: list[list[int]] = [[], []]
    for slot in (0, 1):
        texts[slot] = data.draw(st.lists(tokens, max_size=40))
        device.admit(slot, texts[slot])
    for _ in range(data.draw(st.integers(1, 8))):
        slots = data.draw(st.permutations([0, 1]))
        caps = data.draw(st.lists(st.integers(0, 5), min_size=2, max_size=2))
        expected = [brute_force(texts[slot], shortest, cap) for slot, cap in zip(slots, caps, strict=True)]
        assert device.propose(list(slots), caps, 5) == expected
        for slot in (0, 1):
            new = data.draw(st.lists(tokens, max_size=12))
            texts[slot] = [*texts[slot], *new]
            device.extend(slot, new)


def test_overlapping_copies_continue_the_period() -> None:
    device = Slots(1, 3)
    device.admit(0, [9, 1, 2, 1, 2, 1, 2])
    assert device.propose([0], [6], 6) == [[1, 2, 1, 2, 1, 2]]


def test_the_longest_match_wins_over_the_latest() -> None:
    device = Slots(1, 2)
    device.admit(0, [5, 6, 7, 8, 1, 6, 7, 9, 5, 6, 7])
    assert device.propose([0], [1], 1) == [[8]]


def test_the_latest_of_equal_matches_wins() -> None:
    device = Slots(1, 2)
    device.admit(0, [6, 7, 8, 1, 6, 7, 9, 2, 6, 7])
    assert device.propose([0], [1], 1) == [[9]]


def test_admission_forgets_the_slots_earlier_text() -> None:
    device = Slots(2, 2)
    device.admit(0, [1, 2, 3, 1, 2])
    assert device.propose([0], [2], 2) == [[3, 1]]
    device.admit(0, [1, 2])
    assert device.propose([0], [2], 2) == [[]]
    device.extend(0, [9, 1, 2])
    assert device.propose([0], [2], 2) == [[9, 1]]


def test_a_shorter_text_does_not_find_what_stood_behind_its_end() -> None:
    device = Slots(1, 2)
    device.admit(0, [*range(10, 50), 1, 2, 3])
    assert device.propose([0], [1], 1) == [[]]
    device.admit(0, [5, 1, 2])
    assert device.propose([0], [1], 1) == [[]]


def test_a_slot_can_fill_to_the_last_position() -> None:
    device = Slots(1, 3)
    device.admit(0, [token % 17 for token in range(MAX_LEN)])
    assert device.propose([0], [3], 3) == [[(MAX_LEN + j) % 17 for j in range(3)]]
