"""Requests that must follow a grammar, for the tiny model: what they may ask, and who checks what they got."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import jsonschema_rs

from overdrive.grammar.constraint import Constrained, Free
from overdrive.grammar.lead import Lead
from overdrive.request import Request
from overdrive.types import Finish, FinishReason, GrammarSpec, SamplingParams
from tests.grammar.words import END_OF_TURN, EOS, program, text_of

from .bench import Bench
from .test_engine_laws import random_requests
from .tiny_engine import tiny_oracle
from .toy import ByteStops

Check = Callable[[bytes], bool]


@dataclass(frozen=True)
class Kind:
    """A grammar, and an independent word on what follows it."""

    kind: str
    source: str
    follows: Check


def _regex(pattern: str) -> Kind:
    return Kind("regex", pattern, lambda text: re.fullmatch(pattern.encode(), text) is not None)


def _schema(schema: dict) -> Kind:
    validator = jsonschema_rs.validator_for(schema)
    return Kind("json_schema", json.dumps(schema), lambda text: validator.is_valid(json.loads(text)))


def _choice(*choices: str) -> Kind:
    return Kind("choice", json.dumps(choices), lambda text: text.decode() in choices)


_SMALL = {"type": "string", "maxLength": 3}
_PERSON = {
    "type": "object",
    "properties": {"name": _SMALL, "age": {"type": "integer", "minimum": 0, "maximum": 129}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def _letters(text: bytes) -> bool:
    return re.fullmatch(rb"[a-e]*(no)?", text) is not None


KINDS = (
    _regex("[0-9]{6}-[a-f]{4}"),
    _regex("a+b?"),
    _regex("(true|false)"),
    _regex("(ab|abc|no)*"),
    _choice("the name", "no", "none", "12"),
    _schema({"type": "boolean"}),
    _schema(_PERSON),
    _schema({"type": "array", "items": _PERSON, "minItems": 1, "maxItems": 2}),
    _schema({"enum": ["abc", None, True, 12, {"a": [1]}]}),
    Kind("lark", 'start: <tool> "name" NUMBER (", " NUMBER)? \nNUMBER: /[0-9]{1,3}/', lambda text: text[:4] == b"name"),
    Kind("lark", 'start: A? <end> | A "no" <eos>\nA: /[a-e]+/', _letters),
    Kind("gbnf", 'root ::= "no" ("ab" | "12")+ "."', lambda text: re.fullmatch(rb"no(ab|12)+\.", text) is not None),
)

MARKERS = ((), (), (), (5,), (7, 7), (9, 10, 9))


def random_spec(rng: random.Random) -> GrammarSpec:
    kind = rng.choice(KINDS)
    trigger = rng.choice(MARKERS) if rng.random() < 0.3 else ()
    return GrammarSpec(kind.kind, kind.source, rng.choice(MARKERS), trigger)


def constraint(spec: GrammarSpec) -> Constrained:
    return Constrained(program(spec.kind, spec.source), (EOS, END_OF_TURN), Lead(spec.after, spec.trigger))


def mixed_requests(rng: random.Random, count: int, share: float = 0.7) -> list[Request]:
    """Some constrained, some free, with every sampling rule."""
    requests = []
    for request in random_requests(rng, count):
        params = request.params
        if rng.random() < share:
            longest = 90 - len(request.prompt)
            stop = params.stop_token_ids if rng.random() < 0.3 else (EOS,)
            params = replace(
                params, grammar=random_spec(rng), max_tokens=rng.randint(1, min(28, longest)), stop_token_ids=stop
            )
        requests.append(make_request(request.id, request.prompt, params, request.arrival))
    return requests


def make_request(name: str, prompt, params, arrival: int) -> Request:
    made = Request(name, tuple(prompt), params, arrival, ByteStops(params.stop))
    if params.grammar is not None:
        made.constraint = constraint(params.grammar)
    return made


@lru_cache(maxsize=256)
def oracle(prompt: tuple[int, ...], params: SamplingParams) -> tuple[list[int], Finish]:
    made = partial(constraint, params.grammar) if params.grammar else Free
    return tiny_oracle(prompt, params, made)


def check(b: Bench, requests: list[Request]) -> int:
    """Every answer is what one token at a time gives, and what is whole is valid. Returns how many were whole."""
    whole = 0
    for request in requests:
        spec = request.params.grammar
        expected, finish = oracle(request.prompt, request.params)
        assert b.answers[request.id] == expected, request
        assert b.finishes[request.id] == [finish]
        if spec and finish.reason is FinishReason.STOP and finish.stop_token in (EOS, END_OF_TURN):
            whole += 1
            text = behind(expected, spec.after)
            assert text is not None
            text = behind(text, spec.trigger)
            if text is None:
                continue
            kind = next(kind for kind in KINDS if (kind.kind, kind.source) == (spec.kind, spec.source))
            assert kind.follows(text_of(text)), (spec, expected)
    b.check_conserved()
    return whole


def behind(output: list[int], marker: tuple[int, ...]) -> list[int] | None:
    """What follows the first occurrence of the marker; None where it does not occur."""
    places = range(len(output) - len(marker) + 1)
    first = next((at for at in places if tuple(output[at : at + len(marker)]) == marker), None)
    return None if first is None else output[first + len(marker) :]
