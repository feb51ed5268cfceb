"""What was made and from what: counts for people and for the card of a head, and the prompts that were used."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overdrive.errors import OverdriveError
from overdrive.train.prompts import Prompt


@dataclass(slots=True)
class Conversation:
    """One that grows. ids and answered go together: whether the target said the token, as the assistant.

    source, license: of its first prompt. category: for measurements. line: of the prompts file, -1 for none.
    heldout: answered greedily and never trained on. later: what its user still has to say.
    """

    ids: list[int]
    source: str
    license: str
    category: str
    line: int = -1
    heldout: bool = False
    later: list[str] = field(default_factory=list)
    answered: list[bool] = field(default_factory=list)
    turns: int = 0
    greedy_tokens: int = 0

    @property
    def answer_tokens(self) -> int:
        return sum(self.answered)

    def append(self, ids: list[int], answered: bool) -> None:
        """Further ids, all the target's answer or none."""
        self.ids += ids
        self.answered += [answered] * len(ids)


@dataclass(slots=True)
class Tally:
    """Counts of finished conversations, by split, source and licence of the prompt, and of what was dropped and why."""

    rows: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    tokens: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    uses: Counter[int] = field(default_factory=Counter)  # by line of the prompts file
    greedy_tokens: int = 0

    @property
    def conversations(self) -> int:
        return self.rows.total()

    @property
    def answer_tokens(self) -> int:
        return self.tokens.total()

    def add(self, conversation: Conversation) -> None:
        key = ("heldout" if conversation.heldout else "train", conversation.source, conversation.license)
        self.rows[key] += 1
        self.tokens[key] += conversation.answer_tokens
        self.turns[conversation.turns] += 1
        self.greedy_tokens += conversation.greedy_tokens

    def summary(self) -> dict[str, Any]:
        """For a JSON file."""
        return {
            "conversations": self.conversations,
            "answer_tokens": self.answer_tokens,
            "greedy_answer_tokens": self.greedy_tokens,
            "by_source": [
                {"split": split, "source": source, "license": name, "rows": rows, "answer_tokens": self.tokens[key]}
                for key, rows in sorted(self.rows.items())
                for split, source, name in [key]
            ],
            "by_turns": {str(turns): rows for turns, rows in sorted(self.turns.items())},
            "dropped": dict(sorted(self.dropped.items())),
        }

    def write(self, folder: Path, prompts: list[Prompt], heldout: set[int]) -> None:
        """answers.json, the summary, and prompts_used.jsonl: every prompt of the file that something was made from."""
        used = [
            {
                "id": prompt.id or f"line {prompt.line}",
                "source": prompt.source,
                "license": prompt.license,
                "category": prompt.category,
                "split": "heldout" if prompt.line in heldout else "train",
                "conversations": self.uses[prompt.line],
            }
            for prompt in prompts
            if self.uses[prompt.line]
        ]
        try:
            (folder / "answers.json").write_text(json.dumps(self.summary(), indent=2) + "\n", encoding="utf-8")
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in used)
            (folder / "prompts_used.jsonl").write_text(lines, encoding="utf-8")
        except OSError as error:
            raise OverdriveError(f"cannot write to {folder}: {error.strerror}") from None
