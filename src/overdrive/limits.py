"""What one step and one engine may hold, and which requests fit at all. Knows sizes, never requests."""

from __future__ import annotations

from dataclasses import dataclass

from overdrive.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes in tokens but for `max_rows` and `max_queue` (requests)."""

    max_rows: int
    max_step_tokens: int
    chunk: int
    max_queue: int
    max_model_len: int
    page_size: int

    def pages(self, tokens: int) -> int:
        """That hold so many tokens of one text."""
        return -(-tokens // self.page_size)

    def check(self, prompt_len: int, max_tokens: int, pages: int) -> None:
        """Raise BadRequest where a request of this size could not be finished even alone. pages: of the whole pool."""
        total = prompt_len + max_tokens
        if prompt_len < 1:
            raise BadRequest("the prompt is empty", "prompt")
        if total > self.max_model_len:
            raise BadRequest(
                f"prompt ({prompt_len} tokens) and max_tokens ({max_tokens}) together exceed the model's limit of "
                f"{self.max_model_len} tokens",
                "max_tokens",
                "context_length_exceeded",
            )
        if self.pages(total) > pages:
            raise BadRequest(
                f"prompt ({prompt_len} tokens) and max_tokens ({max_tokens}) need more than the KV cache holds "
                f"({pages * self.page_size} tokens)",
                "max_tokens",
                "context_length_exceeded",
            )
