"""Weights of a Hugging Face folder: one safetensors file or several with an index. Pickled weights are never opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from overdrive.errors import OverdriveError
from overdrive.model.assemble import check_tensors, expected_shapes
from overdrive.model.config import ModelConfig, read_json

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
# Tables that old checkpoints store although the config says them; a tied head may be stored twice.
_REDUNDANT = ("rotary_emb.inv_freq", "lm_head.weight")


class SafetensorsCheckpoint:
    """`Checkpoint` over a folder's safetensors files, which stay mapped while it lives.

    All names and shapes are checked against the config at once; raises OverdriveError that names file and tensor.
    """

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self._file_of = _locate(folder)
        self._open = {path: _open(path) for path in sorted(set(self._file_of.values()))}
        found = {name: self._shape(name) for name in self._file_of}
        check_tensors(lambda name: self._file_of.get(name, folder), expected_shapes(config), found, _REDUNDANT)

    def tensor(self, name: str) -> Tensor:
        path = self._file_of[name]
        try:
            tensor = self._open[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise OverdriveError(f"{path}: tensor {name} cannot be read: {error}") from None
        if not tensor.is_floating_point():
            raise OverdriveError(f"{path}: tensor {name} is of type {tensor.dtype}, not floating point")
        return tensor

    def matrix(self, name: str) -> Tensor:
        return self.tensor(name)

    def _shape(self, name: str) -> tuple[int, ...]:
        path = self._file_of[name]
        try:
            return tuple(self._open[path].get_slice(name).get_shape())
        except SafetensorError:
            raise OverdriveError(f"{path}: tensor {name} is missing, although {INDEX} places it there") from None


def _locate(folder: Path) -> dict[str, Path]:
    """Which file holds each tensor. Raises OverdriveError when the folder has no safetensors."""
    if (folder / INDEX).exists():
        placed = read_json(folder / INDEX).get("weight_map")
        if not isinstance(placed, dict) or not all(isinstance(file, str) for file in placed.values()):
            raise OverdriveError(f"{folder / INDEX} has no 'weight_map' from tensors to files")
        return {name: folder / Path(file).name for name, file in placed.items()}
    if (folder / SINGLE).exists():
        return dict.fromkeys(_open(folder / SINGLE).keys(), folder / SINGLE)
    others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if others:
        raise OverdriveError(f"{folder} has only pickled weights ({others[0]}), which may run code; take safetensors")
    raise OverdriveError(f"{folder} has no weights: neither {SINGLE} nor {INDEX}")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise OverdriveError(f"{path} cannot be read as safetensors: {error}") from None
