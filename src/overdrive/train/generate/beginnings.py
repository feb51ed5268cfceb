"""How the next conversation begins: a prompt of the file, a prompt the target is to write, or a task on a passage.

Decides and renders; must never know how answers are drawn or where they go.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from overdrive.train.generate.exclusion import Exclusions
from overdrive.train.generate.passages import Passage, Passages
from overdrive.train.generate.recipe import Recipe
from overdrive.train.generate.tally import Conversation, Tally
from overdrive.train.generate.turns import Turns
from overdrive.train.prompts import Prompt

OWN = "the target itself"
"""Source of prompts and passages the target wrote."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A conversation that waits for its first answer, drawn greedily or not; `written` first waits for its prompt."""

    conversation: Conversation
    greedy: bool
    written: bool = False


class Beginnings:
    """An endless supply, or one that ends with the prompts of the file. What the tally has already is not asked again.

    prompts: of the file; those that are too long, excluded or there twice are dropped, and told to the tally.
    heldout: lines of the prompts that are kept to measure on. passages: what tasks are made of; answers may be offered.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        turns: Turns,
        recipe: Recipe,
        exclusions: Exclusions,
        tally: Tally,
        endless: bool,
    ) -> None:
        self._turns, self._recipe, self._exclusions, self._tally = turns, recipe, exclusions, tally
        self._draw = random.Random(recipe.seed)
        kept = self._distinct(prompts)
        self.heldout = heldout_lines(kept, recipe)
        self._apart = Exclusions(_said(prompt) for prompt in kept if prompt.line in self.heldout)
        self.passages = Passages(self._draw)
        for prompt in kept:
            if prompt.line not in self.heldout:
                self.passages.offer(Passage(_said(prompt), prompt.source, prompt.license, prompt.line))
        self._measured = [p for p in kept if p.line in self.heldout and not tally.answers[p.line]]
        self._scheduled = self._schedule([p for p in kept if p.line not in self.heldout], endless)
        self._had = Counter(tally.answers)
        self._asked = self._asked_greedily = 0
        self._ended = False

    def next(self) -> Beginning | None:
        """The next one; None when the supply has ended. Those held out come first."""
        while self._measured:
            prompt = self._measured.pop()
            if (conversation := self._of_prompt(prompt, heldout=True)) is not None:
                return Beginning(conversation, greedy=True)
        while not self._ended:
            chance = self._draw.random()
            if chance < self._recipe.written_share:
                own = Conversation(self._turns.first_user(), OWN, "", "written")
                return Beginning(own, self.greedy(), written=True)
            if chance < self._recipe.written_share + self._recipe.passage_share and len(self.passages):
                if (conversation := self._of_passages()) is not None:
                    return Beginning(conversation, self.greedy())
                continue
            scheduled = next(self._scheduled, None)
            self._ended = scheduled is None
            if scheduled is not None and (conversation := self._of_prompt(scheduled[0], heldout=False)) is not None:
                return Beginning(conversation, scheduled[1])
        return None

    def greedy(self) -> bool:
        """Whether an answer that may be either is to be greedy: in the recipe's share of cases."""
        self._asked += 1
        chosen = self._asked_greedily < self._recipe.greedy_share * self._asked
        self._asked_greedily += chosen
        return chosen

    def acceptable(self, words: str) -> bool:
        """Whether the target's own words may be a user's turn; what is wrong with them goes to the tally."""
        if not words:
            self._tally.dropped["written turn empty or too long"] += 1
        elif self._exclusions.hits(words) or self._apart.hits(words):
            self._tally.dropped["written turn excluded"] += 1
        else:
            return True
        return False

    def _schedule(self, prompts: list[Prompt], endless: bool) -> Iterator[tuple[Prompt, bool]]:
        """Prompts in random order, and whether to answer greedily.

        Endless, sources take turns by the square root of their size: a large one does not drown the others.
        """
        if not endless:
            yield from self._round(prompts, greedy=True)
            return
        sources: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            sources.setdefault(prompt.source, []).append(prompt)
        rounds = [self._rounds(group) for group in sources.values()]
        weights = [len(group) ** 0.5 for group in sources.values()]
        while rounds:
            yield next(self._draw.choices(rounds, weights)[0])

    def _rounds(self, prompts: list[Prompt]) -> Iterator[tuple[Prompt, bool]]:
        """The same prompts again and again; greedily in the first round alone, for it would give the same answers."""
        for number in itertools.count():
            yield from self._round(prompts, greedy=number == 0)

    def _round(self, prompts: list[Prompt], greedy: bool) -> list[tuple[Prompt, bool]]:
        """Every prompt once greedily, if `greedy`, and `samples` times to be sampled, in random order.

        The greedy round is the first one: what an earlier run has made is left out of it.
        """
        kinds = [True] + [False] * self._recipe.samples if greedy else [False] * max(1, self._recipe.samples)
        had = self._had if greedy else Counter[int]()
        round_ = [(prompt, kind) for prompt in prompts for kind in kinds[had[prompt.line] :]]
        self._draw.shuffle(round_)
        return round_

    def _distinct(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        seen: set[str] = set()
        kept = []
        for prompt in prompts:
            words = " ".join((_said(prompt), *prompt.later_turns)).lower().split()
            text = " ".join(words)
            if text in seen:
                self._tally.dropped["prompt there twice"] += 1
            elif self._exclusions.hits(text):
                self._tally.dropped["prompt excluded"] += 1
            else:
                kept.append(prompt)
            seen.add(text)
        return kept

    def _of_prompt(self, prompt: Prompt, heldout: bool) -> Conversation | None:
        ids = self._rendered(self._turns.prompt(prompt.messages))
        if ids is None:
            return None
        later = list(prompt.later_turns)
        names = (prompt.source or "prompts file", prompt.license, prompt.category)
        return Conversation(ids, *names, prompt.line, heldout, later, [False] * len(ids))

    def _of_passages(self) -> Conversation | None:
        words, chosen = self.passages.task()
        if self._exclusions.hits(words):
            self._tally.dropped["passage excluded"] += 1
            return None
        ids = self._rendered(self._turns.prompt([{"role": "user", "content": words}]))
        if ids is None:
            return None
        source = "passages of " + " and ".join(sorted({passage.source or "prompts file" for passage in chosen}))
        license_ = " and ".join(sorted({passage.license for passage in chosen if passage.license}))
        lines = tuple(passage.line for passage in chosen)
        return Conversation(ids, source, license_, "passage", answered=[False] * len(ids), passages=lines)

    def _rendered(self, ids: list[int]) -> list[int] | None:
        """The prompt unless it is too long."""
        if len(ids) <= self._recipe.prompt_tokens:
            return ids
        self._tally.dropped["prompt too long"] += 1
        return None


def heldout_lines(prompts: Sequence[Prompt], recipe: Recipe) -> set[int]:
    """Lines of the prompts to measure on: chosen by a hash of the id (of the words where there is none), so that they
    stay the same when the file grows."""
    marks = sorted(
        (digest, prompt.line)
        for prompt in prompts
        if (digest := _mark(prompt.id or _said(prompt))) < recipe.heldout_share
    )
    return {line for _, line in marks[: recipe.heldout_most]}


def _mark(name: str) -> float:
    """A number within 0 .. 1."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "big") / (1 << 48)


def _said(prompt: Prompt) -> str:
    """All words that stand before the first answer."""
    return "\n".join(str(message.get("content") or "") for message in prompt.messages)
