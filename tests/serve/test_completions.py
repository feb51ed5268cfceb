"""Laws of /v1/completions, /tokenize and /detokenize."""

from __future__ import annotations

import json

import pytest

from .fakes import TEXT, speak

BOS = 256
ASK = {"model": "tiny", "prompt": "abc"}


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [
        ("abc", [[BOS, 97, 98, 99]]),
        (["ab", "c"], [[BOS, 97, 98], [BOS, 99]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
def test_every_form_of_prompt(client, server, prompt, sent):
    answer = client.completions.create(model="tiny", prompt=prompt, n=2, max_tokens=1, seed=5)
    assert [submit.prompt for submit in server.engine.submits] == [ids for ids in sent for _ in range(2)]
    assert [choice.index for choice in answer.choices] == list(range(2 * len(sent)))
    assert answer.usage.prompt_tokens == sum(map(len, sent))
    assert answer.usage.completion_tokens == 2 * len(sent)
    assert [submit.params.seed for submit in server.engine.submits][::2] == [5] * len(sent)


def test_echo_repeats_the_prompt_streamed_and_whole(client):
    whole = client.completions.create(**ASK, echo=True)
    assert whole.choices[0].text == "abc" + TEXT
    chunks = list(client.completions.create(**ASK, echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abc" + TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_scores_the_prompt(client, stream):
    reply = client.completions.create(**ASK, echo=True, logprobs=1, max_tokens=4, stream=stream)
    choices = [chunk.choices[0] for chunk in reply] if stream else reply.choices
    tables = [choice.logprobs for choice in choices if choice.logprobs]
    tokens = [token for table in tables for token in table.tokens]
    scores = [score for table in tables for score in table.token_logprobs]
    offsets = [offset for table in tables for offset in table.text_offset]
    assert tokens[:5] == ["<bos>", "a", "b", "c", "H"]
    assert scores == [None] + [-0.25] * 7
    assert offsets[:5] == [0, 5, 6, 7, 8]
    assert next(table.top_logprobs for table in tables)[1] == {"a": -0.25}


def test_max_tokens_zero_scores_and_generates_nothing(client, server):
    answer = client.completions.create(**ASK, echo=True, logprobs=1, max_tokens=0)
    assert answer.choices[0].text == "abc"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs.tokens == ["<bos>", "a", "b", "c"]
    assert answer.usage.completion_tokens == 0


def test_prompt_logprobs_and_token_ids(http):
    request = {**ASK, "prompt_logprobs": 0, "return_token_ids": True, "max_tokens": 2}
    choice = http.post("/v1/completions", json=request).json()["choices"][0]
    assert [found and list(found) for found in choice["prompt_logprobs"]] == [None, ["97"], ["98"], ["99"]]
    assert choice["prompt_token_ids"] == [BOS, 97, 98, 99]
    assert choice["token_ids"] == list(TEXT.encode()[:2])


def test_a_stop_string_cuts_text_but_not_tokens(http):
    choice = http.post("/v1/completions", json={**ASK, "stop": " w", "return_token_ids": True}).json()["choices"][0]
    assert choice["text"] == "Hëllo,"
    assert bytes(choice["token_ids"]) == "Hëllo, w".encode()
    assert choice["stop_reason"] == " w"


def test_streams_of_many_prompts_are_whole(client, server):
    server.engine.script = lambda submit: speak(submit, text=bytes(submit.prompt[1:]).decode() * 3)
    prompts = [chr(97 + i) for i in range(8)]
    texts = [""] * 8
    for chunk in client.completions.create(model="tiny", prompt=prompts, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [prompt * 3 for prompt in prompts]


def test_tokenize_and_detokenize_are_inverse(http):
    tokens = http.post("/tokenize", json={"model": "tiny", "prompt": "añ", "return_token_strs": True}).json()
    assert tokens == {
        "count": 4,
        "max_model_len": 200,
        "tokens": [BOS, 97, 195, 177],
        "token_strs": ["<bos>", "a", "\ufffd", "\ufffd"],
    }
    assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": "<bos>añ"}
    chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]}).json()
    assert bytes(chat["tokens"]) == b"<user>x\n<a>"


def test_events_are_json_with_the_objects_name(http):
    lines = http.post("/v1/completions", json={**ASK, "stream": True, "stream_options": {"include_usage": True}}).text
    events = [json.loads(line[6:]) for line in lines.split("\n\n") if line and line != "data: [DONE]"]
    assert {event["object"] for event in events} == {"text_completion"}
    assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["usage"]["completion_tokens"] == len(TEXT.encode()) + 1


def test_stop_reason_names_only_what_the_request_brought(http):
    def ended(**change):
        return http.post("/v1/completions", json={**ASK, **change}).json()["choices"][0]

    assert ended(stop_token_ids=[ord("w")])["stop_reason"] == ord("w")
    assert "stop_reason" not in ended()
    assert "stop_reason" not in ended(max_tokens=1)
