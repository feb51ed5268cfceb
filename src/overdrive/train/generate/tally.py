"""What was made and from what: counts for people and for the card of a head, and the prompts that were used."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overdrive.errors import OverdriveError
from overdrive.json_text import parse_json
from overdrive.train.prompts import Prompt


@dataclass(slots=True)
class Conversation:
    """One that grows. ids and answered go together: whether the target said the token, as the assistant.

    source, license: of its first prompt. category: for measurements. line: of the prompts file, -1 for none.
    heldout: answered greedily and never trained on. later: what its user still has to say. passages: lines of the
    prompts that its first prompt has as passages, -1 for the target's own.
    """

    ids: list[int]
    source: str
    license: str
    category: str
    line: int = -1
    heldout: bool = False
    later: list[str] = field(default_factory=list)
    answered: list[bool] = field(default_factory=list)
    passages: tuple[int, ...] = ()
    turns: int = 0
    greedy_tokens: int = 0

    @property
    def answer_tokens(self) -> int:
        return sum(self.answered)

    def append(self, ids: list[int], answered: bool) -> None:
        """Further ids, all the target's answer or none."""
        self.ids += ids
        self.answered += [answered] * len(ids)


_Key = tuple[str, str, str]
_SUMMARY, _USED = "answers.json", "prompts_used.jsonl"


@dataclass(slots=True)
class Tally:
    """Counts of finished conversations, and of what was dropped and why.

    rows, tokens: by split, source and licence of the prompt. turns: by number of answers. answers, passages: by line of
    the prompts file, conversations that began with the prompt, and tasks on it as a passage.
    """

    rows: Counter[_Key] = field(default_factory=Counter)
    tokens: Counter[_Key] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)
    passages: Counter[int] = field(default_factory=Counter)
    greedy_tokens: int = 0

    @property
    def conversations(self) -> int:
        return self.rows.total()

    @property
    def answer_tokens(self) -> int:
        return self.tokens.total()

    def add(self, conversation: Conversation) -> None:
        """A conversation is over."""
        key = ("heldout" if conversation.heldout else "train", conversation.source, conversation.license)
        self.rows[key] += 1
        self.tokens[key] += conversation.answer_tokens
        self.turns[conversation.turns] += 1
        self.greedy_tokens += conversation.greedy_tokens
        self.answers[conversation.line] += conversation.line >= 0
        self.passages.update(line for line in conversation.passages if line >= 0)

    def summary(self) -> dict[str, Any]:
        """For a JSON file."""
        return {
            "conversations": self.conversations,
            "answer_tokens": self.answer_tokens,
            "greedy_answer_tokens": self.greedy_tokens,
            "by_source": [
                {"split": key[0], "source": key[1], "license": key[2], "rows": rows, "answer_tokens": self.tokens[key]}
                for key, rows in sorted(self.rows.items())
            ],
            "by_turns": {str(turns): rows for turns, rows in sorted(self.turns.items())},
            "dropped": dict(sorted(self.dropped.items())),
        }

    def write(self, folder: Path, prompts: Sequence[Prompt], heldout: Set[int]) -> None:
        """answers.json, the summary, and prompts_used.jsonl: every prompt of the file that something was made from."""
        used = [
            {
                "line": prompt.line,
                "id": prompt.id or f"line {prompt.line}",
                "source": prompt.source,
                "license": prompt.license,
                "category": prompt.category,
                "split": "heldout" if prompt.line in heldout else "train",
                "conversations": self.answers[prompt.line],
                "passage_tasks": self.passages[prompt.line],
            }
            for prompt in prompts
            if self.answers[prompt.line] or self.passages[prompt.line]
        ]
        try:
            (folder / _SUMMARY).write_text(json.dumps(self.summary(), indent=2) + "\n", encoding="utf-8")
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in used)
            (folder / _USED).write_text(lines, encoding="utf-8")
        except OSError as error:
            raise OverdriveError(f"cannot write to {folder}: {error.strerror}") from None

    @classmethod
    def read(cls, folder: Path) -> Tally:
        """What `write` left; an empty one where it left nothing. Raises OverdriveError for damaged files."""
        if not (folder / _SUMMARY).exists():
            return cls()
        try:
            summary = parse_json((folder / _SUMMARY).read_text(encoding="utf-8"))
            used = [parse_json(line) for line in (folder / _USED).read_text(encoding="utf-8").splitlines()]
            sources = {(row["split"], row["source"], row["license"]): row for row in summary["by_source"]}
            return cls(
                rows=Counter({key: row["rows"] for key, row in sources.items()}),
                tokens=Counter({key: row["answer_tokens"] for key, row in sources.items()}),
                turns=Counter({int(turns): rows for turns, rows in summary["by_turns"].items()}),
                dropped=Counter(summary["dropped"]),
                answers=Counter({row["line"]: row["conversations"] for row in used}),
                passages=Counter({row["line"]: row["passage_tasks"] for row in used}),
                greedy_tokens=summary["greedy_answer_tokens"],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OverdriveError(f"{folder}: {_SUMMARY} or {_USED} is damaged: {error}") from None
