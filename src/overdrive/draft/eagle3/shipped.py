"""Heads that come with the package, and how the one for a target is told: by the target's weights, not by its name.

A head lies in `heads/NAME/`: config.json, model.safetensors, and card.json, which says in `target_fingerprint` whose
it is (`model/fingerprint.py`). Knows these folders; never opens a head's weights.
"""

from __future__ import annotations

from pathlib import Path

from overdrive.json_text import read_json
from overdrive.model.config import ModelConfig

HEADS = Path(__file__).parents[2] / "heads"
CARD = "card.json"


def find_head(target: ModelConfig, fingerprint: str, heads: Path = HEADS) -> Path | None:
    """The folder of the head made for the target with this fingerprint, None if none was.

    A target of the same norm but another vocabulary (tokens were added to it) has none. Raises OverdriveError for a
    folder with a card that cannot be read.
    """
    for card in sorted(heads.glob(f"*/{CARD}")):
        folder = card.parent
        if read_json(card).get("target_fingerprint") != fingerprint:
            continue
        if read_json(folder / "config.json").get("vocab_size") == target.vocab:
            return folder
    return None
