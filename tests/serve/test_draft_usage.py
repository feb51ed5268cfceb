"""What `usage.drafts` tells of a request: the same whole or streamed, summed over answers, in step with the totals."""

from __future__ import annotations

import json

import pytest

from overdrive.serve.terminal import ready_lines

from .fakes import INFO, speak

ASK = {"model": "tiny", "prompt": "abc", "ignore_eos": True}


def used(http, **fields):
    return http.post("/v1/completions", json={**ASK, **fields}).json()["usage"]


def test_drafts_are_told_by_source_and_position(http):
    """Messages of 1, 4, 2 and 3 tokens with 0, 3, 1 and 2 drafts; those of 4 are the second source's."""
    assert used(http, max_tokens=10)["drafts"] == {
        "rounds": 4,
        "tokens_per_round": 2.5,
        "sources": {
            "ngram": {"rounds": 2, "tokens_per_round": 2.5, "offered": [2, 1], "accepted": [2, 1]},
            "eagle3": {"rounds": 1, "tokens_per_round": 4.0, "offered": [1, 1, 1], "accepted": [1, 1, 1]},
        },
    }


def test_answers_of_a_request_are_told_together(http):
    drafts = used(http, max_tokens=5, n=3)["drafts"]
    assert (drafts["rounds"], drafts["tokens_per_round"]) == (6, 2.5)
    assert drafts["sources"]["eagle3"]["accepted"] == [3, 3, 3]


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_the_positions_add_up_to_the_totals_wherever_the_answer_ends(http, max_tokens):
    usage = used(http, max_tokens=max_tokens)
    drafts, totals = usage["drafts"], usage["completion_tokens_details"]
    offered = sum(sum(source["offered"]) for source in drafts["sources"].values())
    accepted = sum(sum(source["accepted"]) for source in drafts["sources"].values())
    assert accepted == totals["accepted_prediction_tokens"]
    assert offered - accepted == totals["rejected_prediction_tokens"]
    assert drafts["tokens_per_round"] == pytest.approx(max_tokens / drafts["rounds"], abs=1e-4)


def test_a_stream_ends_with_the_same_usage(http):
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    lines = http.post("/v1/completions", json={**ASK, **fields, "max_tokens": 10}).text.split("\n\n")
    assert json.loads(lines[-3].removeprefix("data: "))["usage"] == used(http, max_tokens=10)


def test_a_request_without_drafts_names_no_source(http, server):
    server.engine.script = lambda submit: speak(submit, runs=(1,))
    assert used(http, max_tokens=7)["drafts"] == {"rounds": 7, "tokens_per_round": 1.0, "sources": {}}


def test_a_prompt_that_is_only_scored_has_no_rounds(http):
    drafts = used(http, max_tokens=0, echo=True, logprobs=0)["drafts"]
    assert drafts == {"rounds": 0, "tokens_per_round": 0.0, "sources": {}}


def test_the_first_line_says_who_drafts_and_from_what():
    assert "ngram+eagle3 drafts up to 3 from a/head" in ready_lines("http://x", "m", INFO, False)
    silent = type(INFO)(**{name: getattr(INFO, name) for name in INFO.__struct_fields__} | {"drafts": 0})
    assert "no drafts" in ready_lines("http://x", "m", silent, False)
