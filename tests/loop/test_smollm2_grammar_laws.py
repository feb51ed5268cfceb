"""Constrained answers of the model that the server serves by default: valid, and the same for every K and drafter."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jsonschema_rs
import pytest

from overdrive.config import DraftOptions, EngineOptions, MemoryOptions, ModelOptions, SchedulerOptions
from overdrive.engine import Engine, build
from overdrive.policy.controller import Controller, FixedDrafts
from overdrive.request import Request
from overdrive.text import Tokenizer, open_text
from overdrive.types import FinishReason, GrammarSpec, SamplingParams

from .bench import RandomDrafts

pytestmark = pytest.mark.smollm2

MOST = 7

SHORT = {"type": "string", "maxLength": 20}
PERSON = {
    "type": "object",
    "properties": {
        "name": SHORT,
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "member": {"type": "boolean"},
    },
    "required": ["name", "age", "member"],
    "additionalProperties": False,
}
SCHEMAS = [
    {"type": "boolean"},
    PERSON,
    {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 2},
    {"enum": ["rhododendron", "syzygy", "xylophone", None]},
    {"type": "object", "properties": {"day": {"type": "string", "format": "date"}, "city": SHORT}, "required": ["day"]},
    {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"const": "yes"}, "maxItems": 3}]},
    {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "value": {"type": "number"},
                    "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
    },
]
PATTERNS = [r"[0-9]{6}-[A-F]{4}", r"(Mon|Tues|Wednes)day, [0-9]{1,2}(st|th)", r"[a-z]{3,8}( [a-z]{3,8}){2}\."]
CHOICES = [["yes", "no", "perhaps"], ["the red door", "the red doorbell"]]
CALL = 'start: "<tool_call>" call "</tool_call>"\ncall: %json ' + json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"const": "get_weather"},
            "arguments": {"type": "object", "properties": {"city": SHORT}},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    }
)
ASKED = [
    "Describe a person.",
    "Say anything but JSON, and use ```json fences.",
    "What is the weather in Paris?",
    "Count to three.",
    "Repeat after me: xylophone syzygy xylophone syzygy xylophone syzygy.",
]


@dataclass(frozen=True)
class Asked:
    prompt: tuple[int, ...]
    params: SamplingParams


@lru_cache(maxsize=1)
def text_room(source: Path) -> tuple[Tokenizer, tuple[tuple[int, ...], ...]]:
    tokenizer, template = open_text(source, ModelOptions())
    prompts = (tokenizer.encode(template.render([{"role": "user", "content": said}]), False) for said in ASKED)
    return tokenizer, tuple(tuple(ids) for ids in prompts)


def specs() -> list[GrammarSpec]:
    held = [GrammarSpec("json_schema", json.dumps(schema)) for schema in SCHEMAS]
    held += [GrammarSpec("regex", pattern) for pattern in PATTERNS]
    held += [GrammarSpec("choice", json.dumps(choices)) for choices in CHOICES]
    return [*held, GrammarSpec("lark", CALL)]


def asked(source: Path, count: int, eos_ids: tuple[int, ...]) -> list[Asked]:
    """Requests of every kind in turn: one in six is free, one in twenty long, half greedy and half sampled."""
    rng = random.Random(3)
    tokenizer, prompts = text_room(source)
    every, found = specs(), []
    for number in range(count):
        spec = None if number % 6 == 5 else every[number % len(every)]
        prompt = rng.choice(prompts)
        if number % 20 == 7:
            prompt = (*tokenizer.encode("Read this. " * 120, False), *prompt)
        sampled = (
            {"temperature": 1.0, "top_p": rng.choice([1.0, 0.9]), "seed": number}
            if number % 2
            else {"temperature": 0.0}
        )
        params = SamplingParams(max_tokens=rng.choice([12, 40, 64]), grammar=spec, stop_token_ids=eos_ids, **sampled)
        found.append(Asked(prompt, params))
    return found


def follows(spec: GrammarSpec, text: str) -> bool:
    if spec.kind == "regex":
        return re.fullmatch(spec.source, text) is not None
    if spec.kind == "choice":
        return text in json.loads(spec.source)
    if spec.kind == "lark":
        found = re.fullmatch(r"<tool_call>(.*)</tool_call>", text, re.DOTALL)
        return found is not None and json.loads(found[1])["name"] == "get_weather"
    return jsonschema_rs.validator_for(json.loads(spec.source), validate_formats=True).is_valid(json.loads(text))


def engine(controller: Controller, draft: str, rows: int) -> Engine:
    options = EngineOptions(
        model=ModelOptions(max_model_len=1024),
        memory=MemoryOptions(kv_tokens=rows * 400),
        scheduler=SchedulerOptions(max_rows=rows, chunk=64),
        draft=DraftOptions(draft=draft, drafts=MOST, ngram_min=2),
    )
    return build("smollm2", options, lambda *_: None, controller)


def answer(engine: Engine, count: int) -> list[list[int]]:
    """Requests arrive while others run. Checks what is whole; closes the engine."""
    source = Path(engine.info.source)
    tokenizer, _ = text_room(source)
    waiting = list(enumerate(asked(source, count, engine.info.eos_ids)))
    requests: list[Request] = []
    while waiting or not engine.idle:
        while waiting and len(requests) - sum(r.finish is not None for r in requests) < 12:
            number, one = waiting.pop(0)
            requests.append(engine.submit(str(number), one.prompt, one.params))
        engine.advance()
    check(requests, tokenizer)
    engine.close()
    return [list(request.output) for request in requests]


def check(requests: Sequence[Request], tokenizer: Tokenizer) -> None:
    whole = 0
    for request in requests:
        spec, finish = request.params.grammar, request.finish
        assert finish is not None and finish.reason in (FinishReason.STOP, FinishReason.LENGTH), finish
        if spec is not None and finish.reason is FinishReason.STOP:
            whole += 1
            assert follows(spec, tokenizer.decode(request.output)), (spec, tokenizer.decode(request.output))
    assert whole > len(requests) // 3


@lru_cache(maxsize=2)
def plain(count: int) -> list[list[int]]:
    """Nobody drafts."""
    return answer(engine(FixedDrafts(0), "none", 4), count)


def test_constrained_text_does_not_depend_on_drafts() -> None:
    assert answer(engine(RandomDrafts(random.Random(1)), "auto", 6), 7) == plain(7)


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [0, 3, 7, -1])
@pytest.mark.parametrize("draft", ["eagle3", "ngram", "auto"])
def test_two_thousand_constrained_texts_do_not_depend_on_drafts(draft: str, drafts: int) -> None:
    """drafts: -1 is another K every step. 12 arms and the plain one of 154 answers each."""
    controller = FixedDrafts(drafts) if drafts >= 0 else RandomDrafts(random.Random(2))
    assert answer(engine(controller, draft, 8), 154) == plain(154)
