"""The header of a GGUF file: its key-value metadata and where its tensors lie.

Format: GGUF v2 and v3, little-endian, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Pure Python without
numpy: the gguf package's reader makes arrays of every element and takes seconds for a tokenizer of 49 thousand tokens;
this one walks the same bytes with `struct` in a tenth of one. It must never know what any key or tensor means.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overdrive.errors import OverdriveError

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """dims: as stored, innermost first. kind: the ggml type's number. start: first byte, from the file's beginning."""

    dims: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """metadata: numbers, booleans, strings and lists of them. tensors: by name. size: bytes in the file."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    size: int


def read_header(path: Path) -> GGUFHeader:
    """Read all but the weights. Raises OverdriveError when the file cannot be read, is no GGUF, or ends early."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _header(_Cursor(data), path)
    except (struct.error, RecursionError, MemoryError, OverflowError):
        raise OverdriveError(f"{path} is damaged: its GGUF header ends early or makes no sense") from None
    except ValueError:  # an empty file cannot be mapped
        raise OverdriveError(f"{path} is not a GGUF file") from None
    except OSError as error:
        raise OverdriveError(f"cannot read {path}: {error.strerror}") from None


def read_metadata(path: Path, wanted: Callable[[str], bool] = lambda key: True) -> dict[str, Any]:
    """The keys and values of `read_header`, only those whose key is wanted."""
    return {key: value for key, value in read_header(path).metadata.items() if wanted(key)}


def _header(cursor: _Cursor, path: Path) -> GGUFHeader:
    if bytes(cursor.data[:4]) != b"GGUF":
        raise OverdriveError(f"{path} is not a GGUF file")
    _magic, version, tensor_count, key_count = cursor.unpack("<4sIQQ")
    if version not in (2, 3):
        raise OverdriveError(f"{path} has GGUF version {version}; versions 2 and 3 (little-endian) can be read")
    metadata = {}
    for _ in range(key_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.unpack("<I")[0])
    infos = []
    for _ in range(tensor_count):
        name, n_dims = cursor.string(), cursor.unpack("<I")[0]
        *dims, kind, offset = cursor.unpack(f"<{n_dims}QIQ")
        infos.append((name, tuple(dims), kind, offset))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise OverdriveError(f"{path} is damaged: general.alignment is {alignment!r}")
    data_start = -(-cursor.at // alignment) * alignment
    tensors = {name: TensorInfo(dims, kind, data_start + offset) for name, dims, kind, offset in infos}
    return GGUFHeader(path, metadata, tensors, len(cursor.data))


class _Cursor:
    """A place in mapped bytes that moves as it reads; `struct` raises when a read would leave them."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return values

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.unpack("<" + _scalar(kind))[0]
        of, count = self.unpack("<IQ")
        if of == _STRING:
            return self._strings(count)
        if of == _ARRAY:
            return [self.value(_ARRAY) for _ in range(count)]
        return list(self.unpack(f"<{count}{_scalar(of)}"))

    def string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        """`count` strings in a row: the loop that nearly all of the reading time goes into."""
        data, at, unpack = self.data, self.at, _LENGTH.unpack_from
        found = []
        for _ in range(count):
            start = at + 8
            at = start + unpack(data, at)[0]
            if at > len(data):
                raise struct.error("a string leaves the file")
            found.append(data[start:at].decode("utf-8", errors="replace"))
        self.at = at
        return found


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise struct.error(f"unknown value type {kind}")
    return _SCALARS[kind]
