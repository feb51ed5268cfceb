"""Conversations under way, as a feed of jobs: whose turn it is, what it says, when it is over.

Knows the recipe and the frame of turns; must never know which generator draws or where finished conversations lie.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from overdrive.train.generate.beginnings import OWN, Beginning, Beginnings
from overdrive.train.generate.jobs import Job
from overdrive.train.generate.passages import Passage
from overdrive.train.generate.recipe import LEAST_ANSWER, Budget, Recipe
from overdrive.train.generate.tally import Conversation, Tally
from overdrive.train.generate.turns import Turns

_USER_TEMPERATURE, _USER_TOP_P = 1.0, 0.98


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a job's answer is for: the assistant's answer, the user's first words or the user's next ones."""

    conversation: Conversation
    role: Literal["answer", "first words", "next words"]
    greedy: bool


class Conversations:
    """`Feed` of everything the recipe asks for, until the supply or the budget ends.

    stops: ids that end an answer. finish: is given every conversation that is over. clock: seconds, from anywhere.
    """

    def __init__(
        self,
        beginnings: Beginnings,
        turns: Turns,
        recipe: Recipe,
        budget: Budget,
        stops: tuple[int, ...],
        tally: Tally,
        finish: Callable[[Conversation], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._beginnings, self._turns, self._recipe, self._budget = beginnings, turns, recipe, budget
        self._stops, self._tally, self._finish, self._clock = frozenset(stops), tally, finish, clock
        self._start = clock()
        self._draw = random.Random(recipe.seed + 1)
        self._asked: dict[int, _Asked] = {}
        self._ready: deque[Job] = deque()
        self._written: set[int] = set()  # hashes of the target's own first words
        self._keys = 0

    def take(self, most: int) -> list[Job]:
        """Later turns first, then new conversations. None of either once the budget is spent."""
        jobs: list[Job] = []
        while len(jobs) < most:
            if not self._ready and not self._begin():
                break
            jobs.append(self._ready.popleft())
        return jobs

    def done(self, key: int, answer: list[int]) -> None:
        asked = self._asked.pop(key)
        if asked.role == "answer":
            self._answered(asked, answer)
        elif asked.role == "next words":
            self._next_words(asked.conversation, self._turns.words(answer))
        else:
            self._first_words(asked, self._turns.words(answer))

    @property
    def spent(self) -> bool:
        return self._budget.spent(self._clock() - self._start, self._tally.answer_tokens)

    def _begin(self) -> bool:
        """Start one more conversation, unless the budget is spent or the supply has ended."""
        beginning = None if self.spent else self._beginnings.next()
        if beginning is None:
            return False
        self._ask_first(beginning)
        return True

    def _ask_first(self, beginning: Beginning) -> None:
        conversation = beginning.conversation
        if beginning.written:
            self._ask(conversation, conversation.ids, "first words", beginning.greedy)
        else:
            self._ask(conversation, conversation.ids, "answer", beginning.greedy)

    def _ask(
        self,
        conversation: Conversation,
        prompt: list[int],
        role: Literal["answer", "first words", "next words"],
        greedy: bool,
    ) -> None:
        """Queue a job. The caller has seen to it that LEAST_ANSWER tokens fit."""
        recipe, draw = self._recipe, self._draw
        room = recipe.max_len - len(prompt)
        temperature, top_p = _USER_TEMPERATURE, _USER_TOP_P
        limit = recipe.written_tokens
        if role == "answer":
            temperature = 0.0 if greedy else draw.uniform(*recipe.temperature)
            top_p = 1.0 if greedy else draw.uniform(*recipe.top_p)
            short = draw.random() < recipe.short_share and not conversation.heldout
            limit = draw.randint(LEAST_ANSWER, recipe.answer_tokens) if short else recipe.answer_tokens
        self._keys += 1
        self._asked[self._keys] = _Asked(conversation, role, greedy)
        limit = min(limit, room)
        job = Job(key=self._keys, prompt=tuple(prompt), max_tokens=limit, temperature=temperature, top_p=top_p)
        self._ready.append(job)

    def _answered(self, asked: _Asked, answer: list[int]) -> None:
        conversation = asked.conversation
        conversation.append(answer, answered=True)
        conversation.turns += 1
        conversation.greedy_tokens += len(answer) * asked.greedy
        if not conversation.heldout:
            words = self._turns.tokenizer.decode(answer)
            self._beginnings.passages.offer(Passage(words, OWN, conversation.license))
        if answer[-1] not in self._stops or not self._goes_on(conversation):
            self._over(conversation)

    def _goes_on(self, conversation: Conversation) -> bool:
        """Ask for what comes after an answer, if anything does: the user's words of the file, else the target's."""
        if self.spent:
            return False
        if conversation.later:
            return self._say(conversation, conversation.later.pop(0))
        recipe = self._recipe
        wanted = conversation.turns < recipe.max_turns and self._draw.random() < recipe.next_turn
        prompt = self._turns.next_user(conversation.ids)
        if conversation.heldout or not wanted or len(prompt) + 2 * LEAST_ANSWER > recipe.max_len:
            return False
        self._ask(conversation, prompt, "next words", greedy=False)
        return True

    def _next_words(self, conversation: Conversation, words: str) -> None:
        if not self._beginnings.acceptable(words) or not self._say(conversation, words):
            self._over(conversation)

    def _say(self, conversation: Conversation, words: str) -> bool:
        """The user says `words` and the target is asked to answer; False where there is no room for that."""
        ids = self._turns.say(conversation.ids, words)
        if len(ids) + LEAST_ANSWER > self._recipe.max_len:
            return False
        conversation.append(ids[len(conversation.ids) :], answered=False)
        self._ask(conversation, conversation.ids, "answer", conversation.heldout or self._beginnings.greedy())
        return True

    def _first_words(self, asked: _Asked, words: str) -> None:
        """A prompt the target wrote: asked as any other, unless it is unfit or was there before."""
        if not self._beginnings.acceptable(words):
            return
        mark = hash(" ".join(words.lower().split()))
        if mark in self._written:
            self._tally.dropped["written turn there twice"] += 1
            return
        self._written.add(mark)
        conversation = asked.conversation
        conversation.ids = []
        conversation.append(self._turns.prompt([{"role": "user", "content": words}]), answered=False)
        if len(conversation.ids) + LEAST_ANSWER <= self._recipe.max_len:
            self._ask(conversation, conversation.ids, "answer", asked.greedy)

    def _over(self, conversation: Conversation) -> None:
        self._tally.add(conversation)
        self._finish(conversation)
