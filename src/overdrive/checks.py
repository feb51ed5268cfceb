"""Options that cannot work are refused before anything is loaded, by the name that the command line gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints
from urllib.parse import urlsplit

from overdrive.config import DraftOptions, EngineOptions, ServerOptions
from overdrive.errors import OverdriveError
from overdrive.policy.imposed import parse_survival
from overdrive.policy.setting import parse_setting
from overdrive.types import MAX_DRAFTS

MAX_PAGE_SIZE = 1024
MAX_THREADS = 1024
SHORTEST_TIMEOUT = 5  # seconds: an engine says something twice a second, and one step may take longer than that


def check_engine(options: EngineOptions) -> None:
    """Raises OverdriveError, naming the option, for a value that no model and no machine could make right."""
    memory, scheduler = options.memory, options.scheduler
    _at_least(0, {"max-model-len": options.model.max_model_len, "kv-tokens": memory.kv_tokens})
    _at_least(0, {"threads": options.device.threads, "max-queue": scheduler.max_queue})
    _at_least(0, {"max-rows": scheduler.max_rows, "chunk": scheduler.chunk})
    _at_least(0, {"max-step-tokens": scheduler.max_step_tokens})
    _at_least(1, {"tensor-parallel": options.device.tensor_parallel})
    if options.device.threads > MAX_THREADS:
        raise OverdriveError(f"--threads must be at most {MAX_THREADS}, not {options.device.threads}")
    if not 0 < memory.device_share <= 1:
        raise OverdriveError(f"--device-share must be above 0 and at most 1, not {memory.device_share}")
    size = memory.page_size
    if size < 1 or size & (size - 1) or size > MAX_PAGE_SIZE:
        raise OverdriveError(f"--page-size must be a power of two up to {MAX_PAGE_SIZE}, not {size}")
    if scheduler.max_step_tokens and scheduler.max_step_tokens < scheduler.max_rows:
        raise OverdriveError(
            f"--max-step-tokens ({scheduler.max_step_tokens}) must be at least --max-rows ({scheduler.max_rows}): "
            "every running request feeds a token per step"
        )
    if 0 < memory.kv_tokens < size:
        raise OverdriveError(f"--kv-tokens ({memory.kv_tokens}) must hold at least one page ({size} positions)")
    folder = Path(options.report.trace).parent
    if options.report.trace and not folder.is_dir():
        raise OverdriveError(f"--trace: there is no folder {folder}")
    _exist({"tokenizer": options.model.tokenizer, "chat-template": options.model.chat_template}.items())
    _check_drafts(options.draft)


def _check_drafts(draft: DraftOptions) -> None:
    _at_least(0, {"drafts": draft.drafts})
    _at_least(1, {"ngram-min": draft.ngram_min})
    _at_least(1 + MAX_DRAFTS, {"draft-window": draft.draft_window})  # one step can add as many
    if draft.drafts > MAX_DRAFTS:
        raise OverdriveError(f"--drafts must be at most {MAX_DRAFTS}, not {draft.drafts}")
    parse_setting(draft.speculation, draft.drafts)
    if draft.simulate_acceptance:
        parse_survival(draft.simulate_acceptance)
    if draft.draft.endswith("small") and not draft.draft_model:
        raise OverdriveError(f"--draft {draft.draft} needs --draft-model, a model of the same vocabulary")
    if draft.draft_model and draft.draft in ("none", "ngram"):
        raise OverdriveError(f"--draft-model ({draft.draft_model}) has no use with --draft {draft.draft}")


def check_server(options: ServerOptions) -> None:
    """Raises OverdriveError, naming the option, for a value the HTTP side cannot use."""
    if not 0 <= options.port <= 65535:
        raise OverdriveError(f"--port must be 0 (any free one) to 65535, not {options.port}")
    _at_least(1, {"max-body-bytes": options.max_body_bytes})
    _at_least(0, {"max-restarts": options.max_restarts})
    if not options.drain_seconds >= 0:
        raise OverdriveError(f"--drain-seconds must be at least 0, not {options.drain_seconds}")
    if not options.request_seconds > 0:
        raise OverdriveError(f"--request-seconds must be more than 0, not {options.request_seconds}")
    if not (options.engine_timeout == 0 or options.engine_timeout >= SHORTEST_TIMEOUT):
        raise OverdriveError(
            f"--engine-timeout must be 0 (never) or at least {SHORTEST_TIMEOUT}, not {options.engine_timeout}"
        )
    if options.otlp_endpoint and urlsplit(options.otlp_endpoint).scheme not in ("http", "https"):
        raise OverdriveError(f"--otlp-endpoint must be an http or https address, not {options.otlp_endpoint!r}")
    for origin in options.cors_origin:
        parts = urlsplit(origin)
        if origin != "*" and not (parts.scheme and parts.netloc and not parts.path):
            raise OverdriveError(f"--cors-origin must look like https://example.org or be *, not {origin!r}")


def _at_least(least: int, values: dict[str, int]) -> None:
    for name, value in values.items():
        if value < least:
            raise OverdriveError(f"--{name} must be at least {least}, not {value}")


def _exist(paths: Iterable[tuple[str, str]]) -> None:
    for name, path in paths:
        if path and not Path(path).exists():
            raise OverdriveError(f"--{name}: there is no {path}")


def override(options: EngineOptions, given: Mapping[str, Any]) -> EngineOptions:
    """`options` with the single ones that `given` names. Raises OverdriveError for a wrong name or type."""
    left = dict(given)
    groups = {}
    for group in fields(options):
        current = getattr(options, group.name)
        hints = get_type_hints(type(current))
        mine = {name: left.pop(name) for name in hints if name in left}
        for name, value in mine.items():
            _check_type(name, value, hints[name])
        groups[group.name] = replace(current, **mine)
    if left:
        raise OverdriveError(f"there is no option {next(iter(left))!r}; see overdrive serve --help")
    return EngineOptions(**groups)


def _check_type(name: str, value: object, hint: Any) -> None:
    choices = get_args(hint)
    if choices and value not in choices:
        raise OverdriveError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
    if not choices and type(value) is not hint:
        raise OverdriveError(f"{name} must be of type {hint.__name__}, not {value!r}")
