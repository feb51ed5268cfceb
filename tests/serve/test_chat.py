"""Laws of /v1/chat/completions, through the stock openai client."""

from __future__ import annotations

import itertools
import json

import openai
import pytest

from overdrive.text import ByteTokenizer
from overdrive.types import FinishReason
from overdrive.wire import Tokens

from .fakes import EOS, TEXT, speak

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
PROMPT = list(b"<user>hi\n<a>")


def streamed(client, **request):
    """Chunks, the joined text and the finish reasons of a streamed request."""
    chunks = list(client.chat.completions.create(**{**ASK, **request}, stream=True))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    return chunks, text, [choice.finish_reason for choice in choices if choice.finish_reason]


def test_whole_answer_and_usage(client, server):
    answer = client.chat.completions.create(**ASK)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "tiny"
    assert server.engine.submits[0].prompt == PROMPT
    used = answer.usage
    tokens = len(TEXT.encode()) + 1
    assert (used.prompt_tokens, used.completion_tokens, used.total_tokens) == (
        len(PROMPT),
        tokens,
        len(PROMPT) + tokens,
    )
    assert used.prompt_tokens_details.cached_tokens == 2
    assert 0 < used.completion_tokens_details.accepted_prediction_tokens < tokens


@pytest.mark.parametrize("runs", [(1,), (2,), (3,), (5, 1), (100,)])
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"max_tokens": 9},
        {"stop": "w"},
        {"stop": [" w\u00f6r", "ld"]},
        {"stop": ["\U0001f44b"], "extra_body": {"include_stop_str_in_output": True}},
        {"stop": ["zzz", "! \U0001f44b Byx"]},
        {"stop": ["o"], "extra_body": {"min_tokens": 12}},
    ],
)
def test_streamed_text_equals_whole_text(client, server, runs, extra):
    server.engine.script = lambda submit: speak(submit, runs=runs)
    whole = client.chat.completions.create(**ASK, **extra)
    _, text, finishes = streamed(client, **extra)
    assert text == whole.choices[0].message.content
    assert finishes == [whole.choices[0].finish_reason]


@pytest.mark.parametrize(
    ("extra", "text", "finish"),
    [
        ({"stop": "w"}, "Hëllo, ", "stop"),
        ({"stop": ["ld", " wör"]}, "Hëllo,", "stop"),
        ({"stop": "w", "extra_body": {"include_stop_str_in_output": True}}, "Hëllo, w", "stop"),
        ({"stop": "o", "extra_body": {"min_tokens": 12}}, TEXT, "stop"),
        ({"stop": "l", "extra_body": {"min_tokens": 7}}, "Hëllo, wör", "stop"),
        ({"max_tokens": 3}, "Hë", "length"),
        ({"max_tokens": 2}, "H\ufffd", "length"),
        ({"max_completion_tokens": 1}, "H", "length"),
        ({"extra_body": {"stop_token_ids": [ord("w")]}}, "Hëllo, ", "stop"),
        ({"extra_body": {"stop_token_ids": [ord("w")], "include_stop_str_in_output": True}}, "Hëllo, w", "stop"),
        ({"max_tokens": 40, "extra_body": {"ignore_eos": True}}, None, "length"),
    ],
)
def test_where_an_answer_ends(client, extra, text, finish):
    answer = client.chat.completions.create(**ASK, **extra)
    if text is None:
        text = (TEXT.encode() * 2)[:40].decode(errors="replace")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (text, finish)


def test_characters_are_never_split(client, server):
    server.engine.script = lambda submit: speak(submit, text="👋🏽é漢", runs=(1,))
    chunks, text, _ = streamed(client)
    assert text == "👋🏽é漢"
    assert "\ufffd" not in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_the_stream_opens_with_the_role_and_ends_with_usage(client):
    chunks, _, finishes = streamed(client, stream_options={"include_usage": True})
    assert chunks[0].choices[0].delta.role == "assistant"
    assert finishes == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(TEXT.encode()) + 1
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_raw_events_end_with_done(http):
    body = http.post("/v1/chat/completions", json={**ASK, "stream": True}).text
    events = [line for line in body.split("\n\n") if line]
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"


def test_n_answers_have_seeds_of_their_own_and_usage_adds_up(client, server):
    answer = client.chat.completions.create(**ASK, n=4, seed=11, max_tokens=5)
    seeds = [submit.params.seed for submit in server.engine.submits]
    assert seeds[0] == 11
    assert len(set(seeds)) == 4
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(PROMPT), 20)
    server.engine.submits.clear()
    client.chat.completions.create(**ASK, n=4, seed=11, max_tokens=5)
    assert [submit.params.seed for submit in server.engine.submits] == seeds


def test_n_streamed_answers_keep_to_their_index(client, server):
    chunks = list(client.chat.completions.create(**ASK, n=3, stream=True))
    for index in range(3):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(choice.delta.content or "" for choice in own) == TEXT
        assert own[-1].finish_reason == "stop"


def test_a_missing_seed_is_drawn(client, server):
    for _ in range(2):
        client.chat.completions.create(**ASK, max_tokens=1)
    first, second = (submit.params.seed for submit in server.engine.submits)
    assert first != second


def test_parameters_reach_the_engine(client, server):
    client.chat.completions.create(
        **ASK,
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"65": -100},
        seed=-1,
        stop=["é", "b"],
        extra_body={
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.2,
            "min_tokens": 3,
            "stop_token_ids": [7],
            "speculation": {"max_drafts": 2},
        },
    )
    params = server.engine.submits[0].params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.min_p) == (7, 0.5, 0.9, 5, 0.1)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.5, -0.5, 1.2)
    assert (params.logit_bias, params.min_tokens, params.max_drafts) == (((65, -100.0),), 3, 2)
    assert (params.stop, params.stop_token_ids) == (("é".encode(), b"b"), (EOS, 7))
    assert params.seed == 2**63 - 1


def test_defaults_come_from_the_model_and_the_room_left(client, server):
    client.chat.completions.create(**ASK, extra_body={"speculation": {"enabled": False}})
    params = server.engine.submits[0].params
    assert params.temperature == 0.6
    assert params.max_tokens == 200 - len(PROMPT)
    assert params.max_drafts == 0
    assert (params.logprobs, params.prompt_logprobs) == (-1, -1)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_cover_every_committed_token(client, stream):
    reply = client.chat.completions.create(**ASK, logprobs=True, top_logprobs=2, max_tokens=6, stream=stream)
    choices = [choice for chunk in reply for choice in chunk.choices] if stream else reply.choices
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    assert bytes(itertools.chain.from_iterable(token.bytes for token in tokens)) == TEXT.encode()[:6]
    assert all(len(token.top_logprobs) == 2 and token.logprob == -0.25 for token in tokens)


def test_prompt_logprobs_by_position(client):
    answer = client.chat.completions.create(**ASK, max_tokens=1, extra_body={"prompt_logprobs": 2})
    positions = answer.prompt_logprobs
    assert positions[0] is None
    assert len(positions) == len(PROMPT)
    for token, found in zip(PROMPT[1:], positions[1:], strict=True):
        assert found[str(token)] == {"logprob": -0.25, "rank": 1, "decoded_token": chr(token)}
        assert found["122"]["rank"] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_report_says_who_wrote_what(http, stream):
    request = {**ASK, "speculation": {"report": True}, "return_token_ids": True}
    if stream:
        lines = http.post("/v1/chat/completions", json={**request, "stream": True}).text.split("\n\n")
        choices = [json.loads(line[6:])["choices"][0] for line in lines if line and line != "data: [DONE]"]
    else:
        choices = http.post("/v1/chat/completions", json=request).json()["choices"]
    pieces = [piece for choice in choices for piece in choice.get("pieces", [])]
    assert "".join(piece["text"] for piece in pieces) == TEXT
    assert {piece["drafted"] for piece in pieces} == {True, False}
    ids = [token for choice in choices for token in choice.get("token_ids", [])]
    assert ids == [*TEXT.encode(), EOS]


def test_fields_without_effect_are_accepted(client):
    answer = client.chat.completions.create(
        **ASK,
        user="me",
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        parallel_tool_calls=True,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        max_tokens=1,
    )
    assert answer.choices[0].message.content == "H"


def test_history_with_parts_and_tool_results_is_accepted(client):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "and?"},
    ]
    assert client.chat.completions.create(model="tiny", messages=messages, max_tokens=1).choices[0].message.content


def test_an_error_of_the_engine_before_the_stream_is_a_plain_error(client, server):
    server.engine.script = lambda submit: iter([Tokens(submit.id, finish=FinishReason.ERROR, error="out of luck")])
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="out of luck"):
            client.chat.completions.create(**ASK, stream=stream)


def test_a_refusal_of_the_engine_keeps_its_status(http, server):
    full = {"finish": FinishReason.ERROR, "error": "the queue is full", "status": 429}
    server.engine.script = lambda submit: iter([Tokens(submit.id, **full)])
    response = http.post("/v1/chat/completions", json={**ASK, "stream": True})
    assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_full")


def test_an_error_of_the_engine_within_the_stream_is_an_event(client, server):
    def script(submit):
        yield Tokens(submit.id, [72])
        yield Tokens(submit.id, finish=FinishReason.ERROR, error="out of luck")

    server.engine.script = script
    stream = client.chat.completions.create(**ASK, stream=True)
    with pytest.raises(openai.APIError, match="out of luck"):
        list(stream)


def test_an_abort_never_pretends_to_be_a_stop(client, server):
    def script(submit):
        yield Tokens(submit.id, [72], finish=FinishReason.ABORT)

    server.engine.script = script
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(**ASK)


def test_byte_tokenizer_is_the_engines_vocabulary():
    assert ByteTokenizer().vocab_size == 259
