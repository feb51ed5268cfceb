"""A tiny target and head in float64, and conversations that the target could have had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from overdrive.draft.eagle3.config import HeadConfig
from overdrive.model.config import ModelConfig
from overdrive.model.dummy import RandomCheckpoint, tiny_config
from overdrive.train.batches import Lesson
from overdrive.train.dataset import Dataset, DatasetInfo, DatasetWriter
from overdrive.train.head import Head, head_config
from overdrive.train.options import HeadOptions
from overdrive.train.start import new_head
from overdrive.train.target import Teacher
from overdrive.train.vocabulary import choose_draft_ids

CPU = torch.device("cpu")
VOCAB = 64


def tiny_teacher(dtype: torch.dtype = torch.float64, seed: int = 0, device: torch.device = CPU, **changes) -> Teacher:
    config: ModelConfig = tiny_config(VOCAB, **changes)
    return Teacher(config, RandomCheckpoint(config, seed), device, dtype, lambda label, done, total: None)


def write_answers(folder: Path, teacher: Teacher, count: int, seed: int = 0, heldout_every: int = 4) -> Dataset:
    """Random prompts with the target's greedy answers, of 8 to 24 tokens; odd categories."""
    rng = np.random.default_rng(seed)
    info = DatasetInfo(target="tiny", fingerprint=teacher.fingerprint, vocab=VOCAB, sampling="greedy")
    with DatasetWriter(folder, info) as writer:
        for c in range(count):
            prompt = rng.integers(2, VOCAB, rng.integers(3, 9)).tolist()
            ids, length = list(prompt), int(rng.integers(8, 24))
            while len(ids) < len(prompt) + length:
                ids.append(next_token(teacher, ids))
            mask = [False] * len(prompt) + [True] * length
            writer.add(ids, mask, "heldout" if c % heldout_every == 0 else "train", f"kind{c % 3}", c)
    return Dataset.open(folder)


def next_token(teacher: Teacher, ids: list[int]) -> int:
    _, final = teacher.features(torch.tensor([ids]), ())
    return int((final[-1].to(teacher.head.dtype) @ teacher.head.T).argmax())


def tiny_head(teacher: Teacher, draft_ids: torch.Tensor, seed: int = 0, scale: float = 1.0, **changes) -> Head:
    """scale: of the random linears, to make outputs differ more."""
    options = HeadOptions(draft_vocab=len(draft_ids), **changes)
    config: HeadConfig = head_config(teacher.config, options)
    ids = torch.randint(0, VOCAB, (2, 64), generator=torch.Generator().manual_seed(seed))
    lesson = Lesson(ids.to(teacher.device), torch.arange(128, device=teacher.device), 128, np.arange(2))
    head = new_head(config, teacher, draft_ids.to(teacher.device), lesson, options, seed=seed, positions=128)
    with torch.no_grad():
        for name, weight in head.weights.items():
            if weight.ndim == 2 and name != "lm_head.weight":
                weight *= scale
    return head


def chosen(dataset: Dataset, size: int) -> torch.Tensor:
    return choose_draft_ids(dataset, size)
