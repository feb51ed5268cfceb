"""What the answers are to be: how many, how drawn, to which prompts, how long. Numbers only; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from overdrive.errors import OverdriveError

LEAST_ANSWER = 16
"""Tokens of room that an answer must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a prompts file and the target itself become conversations.

    Every prompt of the file is answered greedily once and `samples` times at random. Between them stand conversations
    whose first prompt the target writes itself, and tasks around passages (long prompts and its own long answers).
    """

    samples: int = 2
    """Sampled answers to each prompt of the file, beside the greedy one."""
    greedy_share: float = 1 / 3
    """Share of greedy ones among all other answers: to prompts the target wrote, and in later turns."""
    temperature: tuple[float, float] = (0.6, 1.0)
    """Bounds of a sampled answer's temperature."""
    top_p: tuple[float, float] = (0.95, 1.0)
    """Bounds of a sampled answer's top_p."""
    written_share: float = 0.4
    """Share of conversations that begin with a prompt the target wrote."""
    passage_share: float = 0.1
    """Share of conversations about a passage."""
    next_turn: float = 0.3
    """Probability that the target, as the user, goes on after an answer that ended by itself."""
    max_turns: int = 3
    """Most answers in a conversation."""
    answer_tokens: int = 512
    """Most tokens of an answer."""
    short_share: float = 0.15
    """Share of answers with a smaller limit, drawn evenly below `answer_tokens`."""
    prompt_tokens: int = 768
    """Longest first prompt, chat template included; longer ones are left out."""
    written_tokens: int = 256
    """Most tokens of a user's turn the target writes; longer ones are dropped."""
    max_len: int = 1024
    """Most tokens of a conversation."""
    heldout_share: float = 0.04
    """Share of the file's prompts that are answered greedily once, to measure on, and never trained on."""
    heldout_most: int = 600
    """Most of them."""
    seed: int = 0
    """Of all choices and draws."""

    def __post_init__(self) -> None:
        shares = (self.greedy_share, self.passage_share, self.next_turn, self.short_share, self.heldout_share)
        if not all(0 <= share <= 1 for share in shares) or self.written_share + self.passage_share >= 1:
            raise OverdriveError("recipe: shares must be within 0 .. 1, written_share + passage_share below 1")
        if not 0 < self.temperature[0] <= self.temperature[1] or not 0 < self.top_p[0] <= self.top_p[1] <= 1:
            raise OverdriveError(f"recipe: temperature {self.temperature} and top_p {self.top_p} must be low, high")
        for name, least in (("samples", 0), ("max_turns", 1), ("written_tokens", 1), ("heldout_most", 0)):
            if getattr(self, name) < least:
                raise OverdriveError(f"recipe: {name} must be at least {least}, not {getattr(self, name)}")
        if self.answer_tokens < LEAST_ANSWER or self.prompt_tokens + LEAST_ANSWER > self.max_len:
            raise OverdriveError(
                f"recipe: answers of {self.answer_tokens} tokens to prompts of up to {self.prompt_tokens} do not fit "
                f"into conversations of {self.max_len}; an answer needs room for {LEAST_ANSWER}"
            )

    @property
    def described(self) -> str:
        """In words, for the header of a dataset."""
        low, high = self.temperature
        return (
            f"each prompt greedily and {self.samples} times at T {low:g}-{high:g}, top_p {self.top_p[0]:g}-"
            f"{self.top_p[1]:g}; self-written prompts {self.written_share:.0%}, passages {self.passage_share:.0%}, "
            f"next turns {self.next_turn:.0%}; at most {self.answer_tokens} tokens each; seed {self.seed}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When to stop asking for more; what runs is still finished. 0 is no limit.

    With a limit the prompts of the file come round again, sampled anew, until it is reached; without one each is
    answered as often as the recipe says. minutes: from the first question on. tokens: of complete answers.
    """

    minutes: float = 0.0
    """Ask for no more answers after this time; 0 for no limit."""
    tokens: int = 0
    """Ask for no more after this many answer tokens; 0 for no limit."""

    def __post_init__(self) -> None:
        if not (self.minutes >= 0 and self.tokens >= 0):  # below 0 it would never be spent
            raise OverdriveError(f"budget: minutes ({self.minutes:g}) and tokens ({self.tokens}) must be at least 0")

    def spent(self, seconds: float, tokens: int) -> bool:
        """Whether either limit is reached."""
        return 0 < self.minutes * 60 <= seconds or 0 < self.tokens <= tokens

    @property
    def limited(self) -> bool:
        return bool(self.minutes or self.tokens)
