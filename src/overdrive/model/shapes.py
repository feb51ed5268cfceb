"""Shapes of well-known models by name, for random weights: load tests and benchmarks without a download.

A shape is a folder `configs/NAME/` with the numbers of the model's public config.json; it has neither weights nor a
tokenizer.
"""

from __future__ import annotations

from pathlib import Path

CONFIGS = Path(__file__).parent / "configs"


def shape_names() -> list[str]:
    """Every name that `find_shape` knows."""
    return sorted(folder.name for folder in CONFIGS.iterdir() if folder.is_dir())


def find_shape(name: str) -> Path | None:
    """The folder of a shape, None where there is none of that name."""
    return CONFIGS / name if name in shape_names() else None
