"""Conversations as token ids, with what the target said marked, in a folder of shards.

Knows files and numpy; must never know a model, a tokenizer or torch. A shard `NNNN.safetensors` holds n conversations:

    tokens   uint16 or int32 [T]   all conversations, one after another, chat template included
    offsets  int64 [n + 1]         conversation c is tokens[offsets[c] : offsets[c + 1]]
    answer   uint8 [ceil(T / 8)]   bits (np.packbits): 1 where the token is part of an assistant's answer
    heldout  uint8 [n]             1 for conversations that are measured, never trained on
    category int32 [n]             index into the header's `categories`
    prompt   int64 [n]             line of the prompts file it came from, -1 for unknown

and its header names the target and how answers were drawn. `dataset.json` appears when the writer finished.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from overdrive.errors import OverdriveError
from overdrive.json_text import parse_json

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")
MAX_SHARD_BYTES = 14_000_000
_DONE = "dataset.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """What all conversations of a folder share.

    target: the model's name. fingerprint: of its weights, that of model/fingerprint.py, "" when unknown.
    vocab: its number of token ids. sampling: how answers were drawn, in words for people.
    """

    target: str
    fingerprint: str
    vocab: int
    sampling: str = ""


@dataclass(slots=True)
class _Pending:
    """Conversations of the shard that is being filled."""

    tokens: list[NDArray[Any]] = field(default_factory=list)
    answer: list[NDArray[np.bool_]] = field(default_factory=list)
    heldout: list[bool] = field(default_factory=list)
    category: list[str] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    size: float = 0  # bytes


class DatasetWriter:
    """Adds conversations to a folder, after those that are there. Use it in a `with` block, then call `finish`.

    What was added reaches the disk when a shard is full, on `flush` and at the end of the block; a shard is complete
    or absent. Raises OverdriveError when the folder holds another target's conversations or cannot be written.
    """

    def __init__(self, folder: Path, info: DatasetInfo) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OverdriveError(f"cannot make the folder {folder}: {error.strerror}") from None
        existing = shard_paths(folder)
        if existing and (found := _read_header(existing[-1])[0]) != info:
            raise OverdriveError(f"{folder} holds answers of {_described(found)}, not of {_described(info)}")
        self._folder, self._info = folder, info
        self._next = int(existing[-1].stem) + 1 if existing else 0
        self._dtype = np.uint16 if info.vocab <= 1 << 16 else np.int32
        self._pending = _Pending()

    def add(
        self,
        tokens: Sequence[int] | NDArray[Any],
        answer_mask: Sequence[bool] | NDArray[Any],
        split: Split,
        category: str = "",
        prompt: int = -1,
    ) -> None:
        """One conversation: ids [n] and, for each, whether the target said it (its end-of-turn token included).

        Held-out answers are to be greedy: acceptance is measured by whether drafts equal them.
        """
        ids, answer = np.asarray(tokens), np.asarray(answer_mask, dtype=bool)
        if ids.ndim != 1 or ids.shape != answer.shape or not len(ids):
            raise ValueError(f"tokens {ids.shape} and answer_mask {answer.shape} must be equally long and not empty")
        if ids.min() < 0 or ids.max() >= self._info.vocab:
            raise ValueError(f"token ids must be within 0 .. {self._info.vocab - 1}")
        pending = self._pending
        pending.tokens.append(ids.astype(self._dtype))
        pending.answer.append(answer)
        pending.heldout.append(split == "heldout")
        pending.category.append(category)
        pending.prompt.append(prompt)
        pending.size += len(ids) * (np.dtype(self._dtype).itemsize + 1 / 8) + 32
        if pending.size >= MAX_SHARD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was added since the last shard as a shard of its own."""
        pending, self._pending = self._pending, _Pending()
        if not pending.tokens:
            return
        categories = sorted(set(pending.category))
        lengths = [len(ids) for ids in pending.tokens]
        tensors: dict[str, NDArray[Any]] = {
            "tokens": np.concatenate(pending.tokens),
            "offsets": np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            "answer": np.packbits(np.concatenate(pending.answer)),
            "heldout": np.array(pending.heldout, dtype=np.uint8),
            "category": np.array([categories.index(name) for name in pending.category], dtype=np.int32),
            "prompt": np.array(pending.prompt, dtype=np.int64),
        }
        header = {"info": json.dumps(asdict(self._info)), "categories": json.dumps(categories)}
        path = self._folder / f"{self._next:04d}.safetensors"
        scratch = path.with_suffix(".partial")
        try:
            save_file(tensors, scratch, header)
            os.replace(scratch, path)
        except (OSError, SafetensorError) as error:
            raise OverdriveError(f"cannot write {path}: {error}") from None
        self._next += 1

    def finish(self) -> None:
        """Flush, and mark the folder as complete."""
        self.flush()
        text = json.dumps(asdict(self._info) | {"shards": self._next}, indent=2)
        (self._folder / _DONE).write_text(text + "\n", encoding="utf-8")

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()


@dataclass(frozen=True, slots=True)
class Dataset:
    """All conversations of one or several folders, in memory.

    tokens: uint16 or int32 [T]. answer: bool [T]. offsets: int64 [n + 1]. heldout: bool [n]. category: int32 [n],
    index into `categories`. prompt: int64 [n].
    """

    info: DatasetInfo
    tokens: NDArray[Any]
    answer: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    heldout: NDArray[np.bool_]
    category: NDArray[np.int32]
    categories: tuple[str, ...]
    prompt: NDArray[np.int64]

    @classmethod
    def open(cls, *folders: Path) -> Dataset:
        """Read every shard. Raises OverdriveError when there is none, one is damaged, or targets differ."""
        paths = [path for folder in folders for path in shard_paths(folder)]
        if not paths:
            raise OverdriveError(f"no shards NNNN.safetensors in {', '.join(map(str, folders))}")
        info, parts, names = _read_header(paths[0])[0], [], []
        for path in paths:
            found, categories = _read_header(path)
            unknown = "" in (found.fingerprint, info.fingerprint)
            if found.vocab != info.vocab or (found.fingerprint != info.fingerprint and not unknown):
                raise OverdriveError(f"{path} holds answers of {_described(found)}, not of {_described(info)}")
            parts.append(_read_shard(path))
            names.append(categories)
        return cls._joined(info, parts, names)

    @classmethod
    def _joined(cls, info: DatasetInfo, parts: list[dict[str, NDArray[Any]]], names: list[list[str]]) -> Dataset:
        categories = tuple(sorted({name for shard in names for name in shard}))
        common = [np.array([categories.index(name) for name in shard], dtype=np.int32) for shard in names]
        lengths = np.concatenate([np.diff(part["offsets"]) for part in parts])
        return cls(
            info=info,
            tokens=np.concatenate([part["tokens"] for part in parts]),
            answer=np.concatenate([np.unpackbits(p["answer"], count=len(p["tokens"])).astype(bool) for p in parts]),
            offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            heldout=np.concatenate([part["heldout"] for part in parts]).astype(bool),
            category=np.concatenate([ids[part["category"]] for ids, part in zip(common, parts, strict=True)]),
            categories=categories,
            prompt=np.concatenate([part["prompt"] for part in parts]),
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each conversation, [n]."""
        return np.diff(self.offsets)

    def split(self, split: Split) -> NDArray[np.int64]:
        """Indices of that split's conversations, ascending."""
        return np.flatnonzero(self.heldout == (split == "heldout"))

    def conversation(self, index: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Ids and answer mask of one conversation, both [length]; views."""
        place = slice(self.offsets[index], self.offsets[index + 1])
        return self.tokens[place], self.answer[place]

    def __iter__(self) -> Iterator[tuple[NDArray[Any], NDArray[np.bool_]]]:
        return (self.conversation(index) for index in range(len(self)))

    def __len__(self) -> int:
        return len(self.offsets) - 1


def is_finished(folder: Path) -> bool:
    """Whether the writer of this folder reached its end."""
    return (folder / _DONE).is_file()


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a folder in order; none when there is no such folder."""
    return sorted(path for path in folder.glob("*.safetensors") if path.stem.isdigit())


def _described(info: DatasetInfo) -> str:
    weights, drawn = info.fingerprint[:12] or "unknown", info.sampling or "as they are"
    return f"{info.target} (weights {weights}, {info.vocab} token ids; {drawn})"


def _read_header(path: Path) -> tuple[DatasetInfo, list[str]]:
    """Info and category names of a shard."""
    try:
        with safe_open(path, framework="numpy") as shard:
            header = shard.metadata() or {}
        return DatasetInfo(**parse_json(header["info"])), parse_json(header["categories"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise OverdriveError(f"{path} is no shard of training answers: {error}") from None


def _read_shard(path: Path) -> dict[str, NDArray[Any]]:
    names = ("tokens", "offsets", "answer", "heldout", "category", "prompt")
    try:
        with safe_open(path, framework="numpy") as shard:
            return {name: shard.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise OverdriveError(f"{path} is no shard of training answers: {error}") from None
