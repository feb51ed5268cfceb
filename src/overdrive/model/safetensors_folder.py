"""Weights of a Hugging Face folder: one safetensors file or several with an index. Pickled weights are never opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from overdrive.errors import OverdriveError
from overdrive.json_text import read_json
from overdrive.model.assemble import check_tensors, expected_shapes
from overdrive.model.config import ModelConfig

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
# Tables that old checkpoints store although the config says them; a tied head may be stored twice.
_REDUNDANT = ("rotary_emb.inv_freq", "lm_head.weight")


class SafetensorsFolder:
    """Named tensors of a folder's safetensors files, which stay mapped while it lives; whatever they are for.

    shapes: of every tensor. Raises OverdriveError, one line, for a folder without safetensors and for damaged files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = _locate(folder)
        self._open = {path: _open(path) for path in sorted(set(self._file_of.values()))}
        self.shapes = {name: self._shape(name) for name in self._file_of}

    def file_of(self, name: str) -> Path:
        """The file a tensor lies in, or the folder if there is no such tensor."""
        return self._file_of.get(name, self._folder)

    def stored(self, name: str) -> Tensor:
        """A tensor of any type, as stored."""
        path = self._file_of[name]
        try:
            return self._open[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise OverdriveError(f"{path}: tensor {name} cannot be read: {error}") from None

    def tensor(self, name: str) -> Tensor:
        """A weight, in its own floating-point type."""
        tensor = self.stored(name)
        if not tensor.is_floating_point():
            path = self._file_of[name]
            raise OverdriveError(f"{path}: tensor {name} is of type {tensor.dtype}, not floating point")
        return tensor

    def _shape(self, name: str) -> tuple[int, ...]:
        path = self._file_of[name]
        try:
            return tuple(self._open[path].get_slice(name).get_shape())
        except SafetensorError:
            raise OverdriveError(f"{path}: tensor {name} is missing, although {INDEX} places it there") from None


class SafetensorsCheckpoint:
    """`Checkpoint` over a folder's safetensors files.

    All names and shapes are checked against the config at once; raises OverdriveError that names file and tensor.
    """

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self._files = SafetensorsFolder(folder)
        check_tensors(self._files.file_of, expected_shapes(config), self._files.shapes, _REDUNDANT)

    def tensor(self, name: str) -> Tensor:
        return self._files.tensor(name)

    def matrix(self, name: str) -> Tensor:
        return self._files.tensor(name)


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
