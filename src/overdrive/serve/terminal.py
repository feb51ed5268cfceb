"""What `overdrive serve` shows in the terminal: bars while the model loads, then where to find the server."""

from __future__ import annotations

import json
import shlex

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from overdrive.wire import EngineInfo, Loading


class LoadingBars:
    """One bar per phase of the start. Without a terminal every phase is one plain line."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> LoadingBars:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def update(self, loading: Loading) -> None:
        """A phase has begun or moved on."""
        total = loading.total or None
        if loading.label not in self._tasks:
            self._tasks[loading.label] = self._progress.add_task(loading.label, total=total)
            if not self._console.is_terminal:
                self._console.print(loading.label, highlight=False)
        self._progress.update(self._tasks[loading.label], completed=loading.done, total=total)


def ready_lines(url: str, name: str, info: EngineInfo, asks_key: bool) -> str:
    """The server's address and what it serves, and a request to try."""
    drafts = f"{info.drafter} drafts up to {info.drafts}" if info.drafter != "none" else "no drafts"
    body = {"model": name, "messages": [{"role": "user", "content": "Hello!"}]}
    key = '-H "Authorization: Bearer $KEY" ' if asks_key else ""
    content = f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    return (
        f"Serving {name} at {url}  ({info.precision}, context {info.max_model_len}, KV {info.kv_tokens} tokens, "
        f"{drafts}, {info.threads} threads)\n"
        f"Try: curl {url}/v1/chat/completions {key}{content}"
    )
