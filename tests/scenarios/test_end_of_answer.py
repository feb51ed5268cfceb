"""Where an answer ends: at its stop or its length, whatever was drafted and accepted beyond."""

from __future__ import annotations

import pytest

from overdrive.types import FinishReason
from tests.loop.tiny_engine import MAX_MODEL_LEN

from .engines import FLIPPING, PLAIN, Setting, alone, ask, check_alone, engine, every_setting, request, text_of

PROMPT = (5, 9, 33, 2, 17, 40)
PAGE = 4
LONGEST = 34


def whole_answer() -> tuple[int, ...]:
    """What follows PROMPT when nothing ends it early."""
    return text_of(request("whole", PROMPT, max_tokens=LONGEST))[len(PROMPT) :]


def stop_at(end: int) -> tuple[bytes, ...]:
    """A stop string that is complete with token `end` (counted from 1) and not before."""
    ids = bytes(whole_answer())
    for size in range(1, end + 1):
        stop = ids[end - size : end]
        if ids.find(stop) == end - size:
            return (b"never", stop)
    raise AssertionError("no stop ends there first")


@every_setting
def test_a_stop_in_an_accepted_run_wins_over_max_tokens(setting: Setting) -> None:
    """For every max_tokens from the stop's end on the answer is the same; below it, its length ends it."""
    end, stop = 9, stop_at(9)
    requests = [request(f"m{m}", PROMPT, m, max_tokens=m, stop=stop, logprobs=1) for m in range(end - 2, end + 10)]
    with engine(setting, [PROMPT + whole_answer()]) as bench:
        ask(bench, requests)
    check_alone(bench, requests)
    for one in requests:
        most = one.params.max_tokens
        assert tuple(bench.answers[one.id]) == whole_answer()[: min(end, most)]
        reason = FinishReason.STOP if most >= end else FinishReason.LENGTH
        assert [finish.reason for finish in bench.finishes[one.id]] == [reason]
        assert len(bench.scores[one.id]) == len(bench.answers[one.id])


@every_setting
def test_a_stop_token_in_an_accepted_run_wins_over_max_tokens(setting: Setting) -> None:
    ids = whole_answer()
    end = next(e for e in range(7, LONGEST) if ids[e - 1] not in ids[: e - 1])
    stop = (ids[end - 1],)
    requests = [request(f"m{m}", PROMPT, m, max_tokens=m, stop_token_ids=stop) for m in range(end, end + 8)]
    with engine(setting, [PROMPT + ids]) as bench:
        ask(bench, requests)
    for one in requests:
        assert tuple(bench.answers[one.id]) == ids[:end]
        assert [finish.stop_token for finish in bench.finishes[one.id]] == list(stop)


@pytest.mark.parametrize("place", range(1, 9))
def test_any_of_eight_accepted_tokens_may_complete_a_stop(place: int) -> None:
    """One step accepts seven drafts and draws one more; the stop stands at each of the eight in turn."""
    ids = whole_answer()
    setting = Setting("knowing", 7, False)
    with engine(setting, [PROMPT + ids]) as bench:
        one = request("r", PROMPT, max_tokens=LONGEST, stop=stop_at(1 + place), logprobs=2)
        bench.scheduler.submit(one)
        bench.advance()  # the prompt, and the first token
        bench.advance()
        assert bench.finishes["r"][0].stop_string == 1
        assert tuple(bench.answers["r"]) == ids[: 1 + place]
        assert one.drafted == min(place, 7)
        assert len(bench.scores["r"]) == 1 + place
        assert bench.loop.idle


@every_setting
def test_a_second_turn_finds_the_first_and_nothing_past_its_stop(setting: Setting) -> None:
    """Full pages of prompt and answer are found; tokens that were accepted behind the stop never became a key."""
    ids, end = whole_answer(), 10
    first = request("first", PROMPT, max_tokens=LONGEST, stop=stop_at(end))
    stored = len(PROMPT) + end - 1  # the newest token has no KV yet
    with engine(setting, [PROMPT + ids]) as bench:
        ask(bench, [first])
        second = request("second", (*PROMPT, *ids[:end], 1, 2, 3), 1, max_tokens=3)
        beyond = request("beyond", (*PROMPT, *ids[:LONGEST], 1), 2, max_tokens=3)
        assert len(bench.scheduler.cache.match(beyond.prompt)) == stored // PAGE
        ask(bench, [second])
        assert second.cached_tokens == stored // PAGE * PAGE
        ask(bench, [beyond])
    check_alone(bench, [first, second, beyond])


@every_setting
def test_cached_tokens_equal_those_without_speculation(setting: Setting) -> None:
    """Three turns, each holding all that was said before."""
    counts = []
    for each in (setting, PLAIN):
        with engine(each, [text_of(request("r", PROMPT, max_tokens=LONGEST))]) as bench:
            said, found = PROMPT, []
            for turn in range(3):
                one = request(f"t{turn}", said, turn, max_tokens=9 + turn)
                ask(bench, [one])
                found.append((one.cached_tokens, tuple(bench.answers[one.id])))
                said = (*said, *bench.answers[one.id], 3, 4)
        counts.append(found)
    assert counts[0] == counts[1]
    assert counts[0][2][0] > counts[0][1][0] > 0


@every_setting
def test_an_answer_may_fill_the_context_to_its_last_token(setting: Setting) -> None:
    """Prompts of one, two, K and more tokens short of the limit, beside a short one."""
    short = [1, 2, 3, 4, 7, 8, 15]
    requests = [
        request(f"left{left}", [(7 * i + left) % 64 for i in range(MAX_MODEL_LEN - left)], left, max_tokens=left)
        for left in short
    ]
    requests.append(request("beside", PROMPT, 99, max_tokens=20))
    with engine(setting, [text_of(one) for one in requests], page_size=PAGE) as bench:
        ask(bench, requests)
    check_alone(bench, requests)
    for one in requests:
        assert len(bench.answers[one.id]) == one.params.max_tokens


def test_the_context_may_be_filled_by_one_short_prompt() -> None:
    one = request("r", (1,), max_tokens=MAX_MODEL_LEN - 1, temperature=0.8, seed=4)
    for setting in (Setting("knowing", 7, True), Setting("ngram", FLIPPING, True)):
        with engine(setting, [text_of(one)], max_rows=1) as bench:
            ask(bench, [request("r", (1,), max_tokens=MAX_MODEL_LEN - 1, temperature=0.8, seed=4)])
        assert tuple(bench.answers["r"]) == alone(one.prompt, one.params)[0]
        assert len(bench.answers["r"]) == MAX_MODEL_LEN - 1


def test_accepted_drafts_are_counted_no_further_than_the_text() -> None:
    """`drafted` is the usage's accepted_prediction_tokens: all but one token of each step, up to the end."""
    with engine(Setting("knowing", 7, False), [PROMPT + whole_answer()]) as bench:
        for most in range(1, 12):
            one = request(f"m{most}", PROMPT, most, max_tokens=most)
            ask(bench, [one])
            assert len(bench.answers[one.id]) == most
            assert one.drafted == max(0, most - 2 - (most > 9))
