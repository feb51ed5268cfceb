"""End of an answer and sampling as clients see them: streamed and not, whatever the server speculates."""

from __future__ import annotations

import pytest

from .engines import FLIPPING
from .servers import OFF, Server, every_speed, without_speed

each_speed = every_speed(
    {"draft": "ngram", "drafts": 1, "overlap": "off"},
    {"draft": "ngram", "drafts": 7, "overlap": "on"},
    {"draft": "small", "drafts": FLIPPING, "overlap": "on"},
    {"draft": "ngram+eagle3", "drafts": FLIPPING, "overlap": "off"},
    {"draft": "none"},
    {"drafts": 0},
    {"drafts": 15, "overlap": "on"},
)


def check_same(server: Server, **fields: object) -> list:
    """Streamed, whole and without speculation: one text, one end, one account. Returns the choices."""
    whole, usage = server.ask(**fields)
    streamed, streamed_usage = server.stream(**fields)
    plain, plain_usage = server.ask(speculation=OFF, **fields)
    assert whole == streamed == plain
    assert without_speed(usage) == without_speed(streamed_usage) == without_speed(plain_usage)
    assert usage["completion_tokens"] == sum(len(choice.ids) for choice in whole)
    return whole


@each_speed
def test_a_stop_inside_an_accepted_run_cuts_the_stream_as_it_cuts_the_whole(make_server, speed) -> None:
    """Greedy text soon repeats itself, and is drafted: min_tokens moves the stop through every place of a run."""
    server = make_server(**speed)
    [free], usage = server.ask(prompt="hello", max_tokens=100)
    if speed.get("drafts") and speed.get("draft") not in ("none", "eagle3"):  # a random head guesses nothing
        assert usage["completion_tokens_details"]["accepted_prediction_tokens"] > 20
    stop = free.text[-3:]
    assert free.text.endswith(stop[0] * 40)  # so from there on every token completes the stop
    for least in range(70, 79, 2):
        [choice] = check_same(server, prompt="hello", max_tokens=100, min_tokens=least, stop=["never", stop])
        assert (choice.finish_reason, choice.ids) == ("stop", free.ids[:least])
        assert free.text.startswith(choice.text + stop)
    for least in (70, 71):  # a stop at the very length wins over it
        [choice] = check_same(server, prompt="hello", max_tokens=least, min_tokens=least, stop=[stop])
        assert (choice.finish_reason, len(choice.ids)) == ("stop", least)


@each_speed
def test_an_end_token_in_the_last_run_is_not_shown(make_server, speed) -> None:
    server = make_server(**speed)
    [free], _ = server.ask(max_tokens=60)
    for bias in (2, 4, 6):
        [choice] = check_same(server, max_tokens=60, ignore_eos=False, logit_bias={"257": bias})
        assert "<eos>" not in choice.text
        assert (choice.finish_reason == "stop") == (choice.ids[-1] == 257)
    late = free.ids[30]
    [choice] = check_same(server, max_tokens=60, stop_token_ids=[late])
    end = free.ids.index(late) + 1
    assert choice.ids == free.ids[:end]


@each_speed
def test_prompts_up_to_the_limit_get_all_the_room_that_is_left(make_server, speed) -> None:
    server = make_server(**speed)
    for left in (1, 2, 3, 7, 8):
        [choice] = check_same(server, prompt="x" * (255 - left))  # and the beginning-of-text token
        assert (len(choice.ids), choice.finish_reason) == (left, "length")
    refused = server.post(prompt="x" * 255)
    assert refused.status_code == 400
    assert "256" in refused.json()["error"]["message"]


@each_speed
def test_seeds_and_siblings(make_server, speed) -> None:
    server = make_server(**speed)
    drawn = {"temperature": 1.2, "max_tokens": 24}
    four = check_same(server, n=4, seed=5, **drawn)
    assert len({choice.text for choice in four}) == 4
    assert check_same(server, seed=5, **drawn) == four[:1]
    assert check_same(server, seed=6, **drawn) != four[:1]


def test_unseeded_answers_differ(make_server) -> None:
    server = make_server(draft="ngram", drafts=1, overlap="off")
    drawn = {"temperature": 1.2, "max_tokens": 16}
    texts = {server.ask(**drawn)[0][0].ids for _ in range(10)}
    texts |= {choice.ids for choice in server.ask(n=10, **drawn)[0]}
    assert len(texts) == 20


@each_speed
def test_rules_of_sampling_are_the_same_with_and_without_speculation(make_server, speed) -> None:
    server = make_server(**speed)
    for rule in (
        {"frequency_penalty": 2.0, "presence_penalty": -1.0},
        {"repetition_penalty": 1.5, "logit_bias": {"97": -100, "98": 5}},
        {"min_p": 0.2, "temperature": 3.0, "seed": 1, "min_tokens": 10, "ignore_eos": False},
        {"frequency_penalty": -0.5, "temperature": 0.7, "seed": 2, "top_k": 9, "top_p": 0.8},
    ):
        check_same(server, max_tokens=48, **rule)


@each_speed
def test_log_probabilities_end_where_the_text_ends(make_server, speed) -> None:
    server = make_server(**speed)
    [free], _ = server.ask(max_tokens=90)
    stop, tables = free.text[60], []
    for speculation in (None, OFF):
        value = server.post(max_tokens=90, logprobs=2, stop=stop, min_tokens=45, speculation=speculation).json()
        [choice] = value["choices"]
        tables.append(choice["logprobs"])
        assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"])
        assert len(choice["token_ids"]) == value["usage"]["completion_tokens"] < 90
    assert tables[0]["tokens"] == tables[1]["tokens"]
    assert tables[0]["token_logprobs"] == pytest.approx(tables[1]["token_logprobs"], abs=1e-6)
