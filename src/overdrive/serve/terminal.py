"""What `overdrive serve` says in the terminal once it serves."""

from __future__ import annotations

import json
import shlex

from overdrive.wire import EngineInfo


def ready_lines(url: str, name: str, info: EngineInfo, asks_key: bool) -> str:
    """The server's address and what it serves, and a request to try."""
    written = f"{info.drafter} drafts up to {info.drafts}" + (f" from {info.draft_model}" if info.draft_model else "")
    drafts = written if info.drafts else "no drafts"
    if info.simulated_acceptance:
        drafts += f", ACCEPTANCE SIMULATED ({info.simulated_acceptance}): the text is nobody's"
    body = {"model": name, "messages": [{"role": "user", "content": "Hello!"}]}
    key = '-H "Authorization: Bearer $KEY" ' if asks_key else ""
    content = f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    return (
        f"Serving {name} at {url}  ({info.precision}, context {info.max_model_len}, KV {info.kv_tokens} tokens, "
        f"{drafts}, {info.threads} threads)\n"
        f"Try: curl {url}/v1/chat/completions {key}{content}"
    )
