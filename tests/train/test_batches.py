"""Laws of batches and of the walk that counts rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from overdrive.train.batches import MULTIPLE, clipped_lengths, make_lesson, plan_epoch, sample, usable
from overdrive.train.dataset import Dataset, DatasetInfo, DatasetWriter
from overdrive.train.evaluate import Tally, answer_spans, count_rounds
from overdrive.train.vocabulary import choose_draft_ids, coverage

from .tiny import CPU


@pytest.fixture
def dataset(tmp_path) -> Dataset:
    rng = np.random.default_rng(3)
    with DatasetWriter(tmp_path, DatasetInfo(target="toy", fingerprint="", vocab=50)) as writer:
        for _ in range(60):
            length, prompt = int(rng.integers(2, 150)), int(rng.integers(0, 9))
            ids = rng.zipf(1.5, length).clip(max=49)
            writer.add(ids, np.arange(length) >= prompt, "train" if rng.random() < 0.8 else "heldout")
    return Dataset.open(tmp_path)


def test_an_epoch_holds_every_conversation_once_and_no_batch_is_over_budget(dataset):
    lengths = clipped_lengths(dataset, np.arange(60), 100)
    batches = plan_epoch(lengths, 256, np.random.default_rng(0))
    assert sorted(np.concatenate(batches).tolist()) == list(range(60))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * -(-lengths[batch].max() // MULTIPLE) * MULTIPLE <= 256
    again, other = (plan_epoch(lengths, 256, np.random.default_rng(seed)) for seed in (0, 1))
    assert [b.tolist() for b in batches] == [b.tolist() for b in again] != [b.tolist() for b in other]


def test_a_lesson_holds_its_conversations_and_points_at_their_answers(dataset):
    chosen = usable(dataset, np.arange(60), 100)[:5]
    lesson = make_lesson(dataset, chosen, 100, CPU)
    width = lesson.ids.shape[1]
    assert width % MULTIPLE == 0 and lesson.tokens == np.minimum(dataset.lengths[chosen], 100).sum()
    expected = []
    for row, conversation in enumerate(chosen):
        ids, answer = dataset.conversation(conversation)
        used = min(len(ids), 100)
        assert lesson.ids[row, :used].tolist() == ids[:100].tolist() and not lesson.ids[row, used:].any()
        expected += [row * width + p for p in range(2, used) if answer[p]]
    assert lesson.places.tolist() == expected and lesson.answers == len(expected)


def test_smaller_samples_are_part_of_larger_ones(dataset):
    all_of_them = usable(dataset, dataset.split("train"), 100)
    small, large = (sample(dataset, all_of_them, 100, tokens) for tokens in (200, 900))
    assert 0 < len(small) < len(large) < len(all_of_them) and set(small) < set(large) < set(all_of_them)
    assert sample(dataset, all_of_them, 100, 0).tolist() == all_of_them.tolist()
    assert sample(dataset, all_of_them, 100, 10**9).tolist() == all_of_them.tolist()


def test_draft_ids_are_the_most_frequent_answer_tokens_of_the_train_split(dataset):
    ids = choose_draft_ids(dataset, 10)
    said = np.concatenate([dataset.conversation(c)[0][dataset.conversation(c)[1]] for c in dataset.split("train")])
    counts = np.bincount(said, minlength=50)
    assert ids.tolist() == sorted(ids.tolist()) and counts[ids].min() >= np.delete(counts, ids).max()
    assert coverage(dataset, ids, "train") == pytest.approx(counts[ids].sum() / counts.sum())
    assert coverage(dataset, torch.arange(50), "heldout") == 1


def decode(lead: list[int], drafts: int) -> int:
    """A greedy chain decoder: rounds that write len(lead) tokens, lead[j] drafts being right after j tokens."""
    rounds, written = 0, 0
    while written < len(lead):
        accepted = 0
        while accepted < min(drafts, lead[written]):
            accepted += 1
        written = min(written + accepted + 1, len(lead))
        rounds += 1
    return rounds


def test_rounds_are_those_of_a_chain_decoder():
    rng = np.random.default_rng(0)
    for _ in range(50):
        room = int(rng.integers(1, 30))
        lead = np.minimum(rng.integers(0, 8, room), np.arange(room, 0, -1))
        for drafts in range(1, 6):
            assert count_rounds(lead, drafts) == decode(lead.tolist(), drafts)
    assert count_rounds(np.array([2, 0, 0, 1, 0]), 3) == 2  # 2 drafts and one more, then 1 draft and one more


def test_a_tally_counts_positions_only_where_chains_came_and_the_answer_goes_on():
    #             prompt | answer: its first token is given, four are written | user | answer of two
    answer = np.array([0, 0, 1, 1, 1, 1, 1, 0, 1, 1], dtype=bool)
    lead = np.array([9, 2, 0, 2, 0, 9, 9, 1, 9, 9])  # nines stand where no chain starts
    tally = Tally.empty(3)
    tally.add(lead, answer)
    assert answer_spans(answer) == [(2, 6), (8, 9)]
    assert tally.offered.tolist() == [5, 2, 1] and tally.right.tolist() == [3, 2, 0]
    assert tally.tokens == 5 and tally.rounds.tolist() == [2 + 1, 2 + 1, 2 + 1]
    assert tally.acceptance == [3 / 5, 1, 0]
