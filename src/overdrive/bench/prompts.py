"""Where prompts come from: JSON-lines files of any common shape, or random words where no text is at hand.

Knows texts and their rough length in tokens; never a tokenizer, since the server may be anybody's.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overdrive.errors import OverdriveError
from overdrive.json_text import parse_json

FIELDS = ("turns", "messages", "conversation", "prompt", "question", "instruction", "text", "input")
WORDS_PER_TOKEN = 0.75  # of English; measured lengths are in the results (usage.prompt_tokens)
WORDS = (
    *("time", "people", "water", "house", "light", "paper", "music", "river", "stone", "garden", "window", "number"),
    *("letter", "story", "market", "engine", "winter", "summer", "little", "great", "under", "over", "after", "before"),
    *("between", "always", "never", "often", "slowly", "quickly", "small", "large", "old", "new", "green", "blue"),
    *("find", "make", "take", "give", "keep", "turn", "open", "close", "follow", "carry", "build", "write", "read"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """Texts for user turns. name: what the results call it. words: the vocabulary of fillers."""

    name: str
    texts: Sequence[str]

    def take(self, count: int) -> list[str]:
        """The first `count` texts, beginning anew where there are fewer."""
        return [self.texts[index % len(self.texts)] for index in range(count)]

    def of_length(self, tokens: int, index: int) -> str:
        """A text of about `tokens` tokens made of whole texts from the index-th on, cut at the end."""
        wanted = max(1, round(tokens * WORDS_PER_TOKEN))
        words: list[str] = []
        while len(words) < wanted:
            words += self.texts[index % len(self.texts)].split() or ["and"]
            index += 1
        return " ".join(words[:wanted])


def read_source(path: Path | None, seed: int, random_tokens: int) -> Source:
    """The texts of a file, shuffled by `seed`; without a file random words, about `random_tokens` tokens each."""
    generator = random.Random(seed)
    if path is None:
        words = max(1, round(random_tokens * WORDS_PER_TOKEN))
        return Source("random words", [" ".join(generator.choices(WORDS, k=words)) for _ in range(512)])
    texts = [text for row in read_rows(path) if (text := _text(row))]
    if not texts:
        raise OverdriveError(f"--prompts {path}: no line has a text under one of {', '.join(FIELDS)}")
    generator.shuffle(texts)
    return Source(path.name, texts)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file, .gz or not."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for line in filter(str.strip, file):
                row = parse_json(line)
                yield row if isinstance(row, dict) else {}
    except (OSError, EOFError) as error:
        raise OverdriveError(f"cannot read {path}: {getattr(error, 'strerror', '') or error}") from None
    except ValueError:
        raise OverdriveError(f"{path}: not JSON lines") from None


def _text(row: dict[str, Any]) -> str:
    """The first user turn of a row, "" when it has none."""
    value = next((row[name] for name in FIELDS if row.get(name)), "")
    if isinstance(value, list):
        said = [turn for turn in value if not (isinstance(turn, dict) and turn.get("role") not in ("user", None))]
        value = said[0] if said else ""
    if isinstance(value, dict):
        value = value.get("content") or value.get("value") or ""
    return value.strip() if isinstance(value, str) else ""
