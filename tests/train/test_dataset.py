"""Laws of the folder of shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from overdrive.errors import OverdriveError
from overdrive.train import dataset
from overdrive.train.dataset import Dataset, DatasetInfo, DatasetWriter, is_finished, shard_paths

INFO = DatasetInfo(target="toy", fingerprint="f00d", vocab=300, sampling="greedy")


def conversations(count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray, str, str, int]]:
    rng = np.random.default_rng(seed)
    return [
        (
            rng.integers(0, 300, n := int(rng.integers(1, 40))),
            rng.random(n) < 0.5,
            "heldout" if c % 3 == 0 else "train",
            f"kind{rng.integers(4)}",
            c,
        )
        for c in range(count)
    ]


def write(folder: Path, given, info: DatasetInfo = INFO) -> None:
    with DatasetWriter(folder, info) as writer:
        for conversation in given:
            writer.add(*conversation)


@pytest.mark.parametrize("vocab", [300, 70000])
def test_what_is_written_is_read_over_any_number_of_shards_and_sittings(tmp_path, monkeypatch, vocab):
    monkeypatch.setattr(dataset, "MAX_SHARD_BYTES", 700)
    info = DatasetInfo(target="toy", fingerprint="f00d", vocab=vocab)
    given = conversations(50)
    write(tmp_path, given[:20], info)
    write(tmp_path, given[20:], info)
    read = Dataset.open(tmp_path)
    assert len(shard_paths(tmp_path)) > 3
    assert read.info == info and len(read) == 50
    for index, (ids, answer, split, category, prompt) in enumerate(given):
        found_ids, found_answer = read.conversation(index)
        assert found_ids.tolist() == ids.tolist() and found_answer.tolist() == answer.tolist()
        assert read.heldout[index] == (split == "heldout") and read.prompt[index] == prompt
        assert read.categories[read.category[index]] == category
    assert read.split("train").tolist() == [c for c in range(50) if c % 3]


def test_shards_stay_below_fifteen_megabytes(tmp_path):
    with DatasetWriter(tmp_path, INFO) as writer:
        for _ in range(9):
            writer.add(np.zeros(1_000_000, dtype=np.int64), np.ones(1_000_000, dtype=bool), "train")
    sizes = [path.stat().st_size for path in shard_paths(tmp_path)]
    assert len(sizes) == 2 and max(sizes) < 15_000_000


def test_a_folder_is_finished_only_after_finish(tmp_path):
    writer = DatasetWriter(tmp_path, INFO)
    writer.add([1, 2], [False, True], "train")
    writer.flush()
    assert not is_finished(tmp_path)
    writer.finish()
    assert is_finished(tmp_path)


def test_several_folders_are_one_dataset_when_the_target_is_one(tmp_path):
    write(tmp_path / "a", conversations(5))
    write(tmp_path / "b", conversations(7, seed=1))
    assert len(Dataset.open(tmp_path / "a", tmp_path / "b")) == 12
    write(tmp_path / "c", conversations(2), DatasetInfo(target="other", fingerprint="beef", vocab=300))
    with pytest.raises(OverdriveError, match=r"other.*beef.*not of toy"):
        Dataset.open(tmp_path / "a", tmp_path / "c")


def test_another_targets_answers_are_not_mixed_in(tmp_path):
    write(tmp_path, conversations(2))
    with pytest.raises(OverdriveError, match=r"holds answers of toy .* not of other"):
        DatasetWriter(tmp_path, DatasetInfo(target="other", fingerprint="beef", vocab=300))


def test_damaged_and_missing_shards_are_named(tmp_path):
    with pytest.raises(OverdriveError, match="no shards"):
        Dataset.open(tmp_path)
    write(tmp_path, conversations(2))
    (tmp_path / "0001.safetensors").write_bytes(b"broken")
    with pytest.raises(OverdriveError, match=r"0001\.safetensors is no shard"):
        Dataset.open(tmp_path)


@pytest.mark.parametrize("ids, answer", [([], []), ([1, 2], [True]), ([300], [True]), ([-1], [True])])
def test_impossible_conversations_are_refused(tmp_path, ids, answer):
    with pytest.raises(ValueError):
        DatasetWriter(tmp_path, INFO).add(ids, answer, "train")
