"""How a model's chat template frames turns, as token ids, so that conversations can be continued on either side.

A chat model that is given only the opening of a user's turn writes what a user might say (Magpie, Xu et al., 2024,
arXiv:2406.08464). Found by rendering marked messages and cutting at the marks, which works for any template that
writes contents as they are. Must never know how answers are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from overdrive.errors import BadRequest, OverdriveError
from overdrive.text import ChatTemplate, Tokenizer

_MARKS = ("zqxUSERONEzqx", "zqxANSWERzqx", "zqxUSERTWOzqx")


@dataclass(frozen=True, slots=True)
class Turns:
    """The frame of one model's chats.

    opening: text before the first user's words. reply: between a user's words and the answer. following: between the
    answer's last word and the next user's words. stops: ids of special tokens that end a user's turn.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    opening: str
    reply: str
    following: str
    stops: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: ChatTemplate) -> Turns:
        """Raises OverdriveError for a model without a template, and for one that does not keep words as they are."""
        one, answer, two = _MARKS
        first = {"role": "user", "content": one}
        both = [first, {"role": "assistant", "content": answer}, {"role": "user", "content": two}]
        try:
            short, long = template.render([first]), template.render(both)
        except BadRequest as error:
            raise OverdriveError(f"training answers need the model's chat template: {error}") from None
        opening, found, reply = short.partition(one)
        following, again, _ = long.partition(answer)[2].partition(two)
        if not found or not again:
            raise OverdriveError(
                "training answers need a chat template that writes what user and assistant say as it is"
            )
        closing = tokenizer.encode(reply, add_special=False)[:1]
        stops = tuple(token for token in closing if not tokenizer.token_bytes()[token])
        return cls(tokenizer, template, opening, reply, following, stops)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a conversation in which the assistant is to speak. Raises BadRequest where the template refuses it."""
        return self._encode(self.template.render(messages))

    def first_user(self) -> list[int]:
        """Ids after which a user's first words stand."""
        return self._encode(self.opening)

    def next_user(self, conversation: Sequence[int]) -> list[int]:
        """Ids after which a user's next words stand; the conversation ends with an answer and its end token."""
        return [*conversation, *self._after(conversation, self.following)]

    def say(self, conversation: Sequence[int], words: str) -> list[int]:
        """The conversation, which ends with an answer, with what the user says next and the assistant's opening."""
        return [*conversation, *self._after(conversation, self.following + words + self.reply)]

    def words(self, ids: Sequence[int]) -> str:
        """What a user's turn [ids] says, without what closes it; empty when it says nothing or was cut off."""
        text = self.tokenizer.decode(ids)
        if ids and not self.tokenizer.token_bytes()[ids[-1]]:
            return text.strip()
        before, found, _ = text.partition(self.reply.strip() or self.reply)
        return before.strip() if found else ""

    def _after(self, conversation: Sequence[int], text: str) -> list[int]:
        """Ids of `text`, less the end token that the answer has already."""
        ids = self._encode(text)
        return ids[1:] if conversation and ids[:1] == list(conversation[-1:]) else ids

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special=False)
