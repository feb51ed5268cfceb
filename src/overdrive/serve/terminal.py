"""What `overdrive serve` says while it loads and once it serves."""

from __future__ import annotations

import json
import logging
import shlex
from contextlib import AbstractContextManager
from typing import Protocol

from overdrive.bars import LoadingBars
from overdrive.config import LogFormat
from overdrive.wire import EngineInfo

log = logging.getLogger("overdrive.serve")


class Loading(AbstractContextManager[object], Protocol):
    """Is told of the progress of a start, as in `wire.Loading`."""

    def update(self, label: str, done: int, total: int) -> None: ...


class LoadingLines(AbstractContextManager[object]):
    """A line of the log for each phase."""

    def __init__(self) -> None:
        self._label = ""

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, label: str, done: int, total: int) -> None:
        if label != self._label:
            self._label = label
            log.info("loading", extra={"fields": {"phase": label}})


def loading(form: LogFormat) -> Loading:
    """Bars for people, lines for machines."""
    return LoadingLines() if form == "json" else LoadingBars()


def ready_lines(url: str, name: str, info: EngineInfo, asks_key: bool, chats: bool = True) -> str:
    """The server's address and what it serves, and a request to try. chats: the model has a chat template."""
    written = f"{info.drafter} drafts up to {info.drafts}" + (f" from {info.draft_model}" if info.draft_model else "")
    drafts = written if info.drafts else "no drafts"
    if info.simulated_acceptance:
        drafts += f", ACCEPTANCE SIMULATED ({info.simulated_acceptance}): the text is meaningless"
    where = f"{info.threads} threads" if info.device == "cpu" else info.device
    what = {"messages": [{"role": "user", "content": "Hello!"}]} if chats else {"prompt": "Hello"}
    body = {"model": name, **what, "max_tokens": 64, "temperature": 0}
    key = '-H "Authorization: Bearer $KEY" ' if asks_key else ""
    content = f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    return (
        f"Serving {name} at {url}  ({info.precision}, context {info.max_model_len}, KV {info.kv_tokens} tokens, "
        f"{drafts}, {where})\n"
        f"Try: curl {url}/v1/{'chat/' if chats else ''}completions {key}{content}"
    )
