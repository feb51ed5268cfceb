"""Tasks around passages, so that the head sees long contexts: which texts serve, and what is asked about them."""

from __future__ import annotations

import random
from dataclasses import dataclass

LEAST_WORDS = 100
_MOST_WORDS = 450
_KEPT = 512

_QUESTIONS = (
    "What is the main point?",
    "Which facts does it give? List them.",
    "Who or what is it about, and what do we learn?",
    "What would you ask its author, and why?",
    "Which part is the most important, and why?",
    "What follows from it?",
    "Is there anything in it that is doubtful?",
)
_TASKS = (
    "Summarize the following text:\n\n{passage}",
    "Summarize this in two or three sentences.\n\n{passage}",
    "{passage}\n\nWrite a short summary of the text above.",
    "Using the passage below, answer the question.\n\nPassage: {passage}\n\nQuestion: {question}",
    "Here is some background:\n\n{passage}\n\nWith its help, answer: {question}",
    "Read the text and answer.\n\n{passage}\n\n{question}",
    "{question} Answer from this text alone.\n\n{passage}",
    "List the key points of the following text as bullets.\n\n{passage}",
    "Rewrite the following text in simpler words.\n\n{passage}",
    "Give the following text a title and one sentence that says what it is about.\n\n{passage}",
    "Continue this text in the same style:\n\n{passage}",
    "Write three questions that this text answers, with their answers.\n\n{passage}",
)


@dataclass(frozen=True, slots=True)
class Passage:
    """A text, where it comes from, and the line of the prompts file if it is from there, else -1."""

    text: str
    source: str
    license: str
    line: int = -1


class Passages:
    """A bounded collection, renewed at random: every text offered has the same chance to be in it."""

    def __init__(self, draw: random.Random) -> None:
        self._draw, self._kept, self._offered = draw, list[Passage](), 0

    def offer(self, passage: Passage) -> None:
        """Keep a text if it is long enough (reservoir sampling, Vitter's algorithm R)."""
        if len(passage.text.split()) < LEAST_WORDS:
            return
        self._offered += 1
        if len(self._kept) < _KEPT:
            self._kept.append(passage)
        elif (place := self._draw.randrange(self._offered)) < _KEPT:
            self._kept[place] = passage

    def __len__(self) -> int:
        return len(self._kept)

    def task(self) -> tuple[str, list[Passage]]:
        """A prompt about one to three passages, and these. At least one must have been offered."""
        chosen = self._draw.sample(self._kept, min(self._draw.choice((1, 1, 2, 3)), len(self._kept)))
        while len(chosen) > 1 and sum(len(passage.text.split()) for passage in chosen) > _MOST_WORDS:
            chosen.pop()
        text = "\n\n".join(passage.text.strip() for passage in chosen)
        task = self._draw.choice(_TASKS).format(passage=text, question=self._draw.choice(_QUESTIONS))
        return task, chosen
