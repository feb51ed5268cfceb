"""Text and tokens: tokenizers, chat templates, streaming detokenisation and stop strings.

Names are loaded when first used, so that the engine can import `StopMatcher` without the tokenizers library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overdrive.text.answer import AnswerText
    from overdrive.text.committed import CommittedText
    from overdrive.text.loading import load_chat_template, load_tokenizer, open_text
    from overdrive.text.stops import StopHit, StopMatcher
    from overdrive.text.template import ChatTemplate
    from overdrive.text.tokenizer import ByteTokenizer, Tokenizer

_HOMES = {
    "AnswerText": "answer",
    "ByteTokenizer": "tokenizer",
    "ChatTemplate": "template",
    "CommittedText": "committed",
    "StopHit": "stops",
    "StopMatcher": "stops",
    "Tokenizer": "tokenizer",
    "load_chat_template": "loading",
    "load_tokenizer": "loading",
    "open_text": "loading",
}

__all__ = [
    "AnswerText",
    "ByteTokenizer",
    "ChatTemplate",
    "CommittedText",
    "StopHit",
    "StopMatcher",
    "Tokenizer",
    "load_chat_template",
    "load_tokenizer",
    "open_text",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
