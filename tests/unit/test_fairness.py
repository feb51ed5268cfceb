"""Laws of who comes next: nobody waits for ever, and nobody short waits for all that is long."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from overdrive.fairness import charge, enqueue, may_overtake, requeue, shares
from overdrive.request import Request
from overdrive.types import SamplingParams

PARAMS = SamplingParams(max_tokens=1)


def request(arrival: int, size: int) -> Request:
    return Request(f"r{arrival}", (1,) * size, PARAMS, arrival)


def serve_in_turn(events: Sequence[int], stuck: int) -> list[Request]:
    """Requests in the order in which they are served. events: the size of one that arrives, 0 to serve one.

    stuck: for the first of the queue there is no room so many times; another is served where fairness allows.
    """
    waiting: list[Request] = []
    served: list[Request] = []
    for arrival, size in enumerate([*events, *[0] * len(events)]):
        if size:
            enqueue(waiting, request(arrival, size))
        elif waiting:
            place = 0
            if stuck and len(waiting) > 1 and may_overtake(waiting[:1], waiting[1]):
                charge(waiting[:1], waiting[1])
                place, stuck = 1, stuck - 1
            served.append(waiting.pop(place))
    return served


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(0, 9))
def test_a_prompt_waits_for_no_more_newer_tokens_than_it_has_itself(events: list[int], stuck: int) -> None:
    served = serve_in_turn(events, stuck)
    assert len(served) == sum(size > 0 for size in events)
    for place, one in enumerate(served):
        newer = [len(other.prompt) for other in served[:place] if other.arrival > one.arrival]
        assert sum(newer) <= len(one.prompt)
        assert all(2 * size <= len(one.prompt) for size in newer), "like ones go by arrival"


@given(st.lists(st.integers(10, 19), min_size=1, max_size=20), st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_short_prompts_pass_a_whole_row_of_long_ones(long: list[int], short: list[int]) -> None:
    served = serve_in_turn([*long, *short], 0)
    assert sorted(len(one.prompt) for one in served[: len(short)]) == sorted(short)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=12), st.data())
def test_those_that_ran_come_back_before_all_that_never_did(sizes: list[int], data: st.DataObject) -> None:
    waiting: list[Request] = []
    requests = [request(arrival, size) for arrival, size in enumerate(sizes)]
    again = data.draw(st.sets(st.sampled_from(range(len(sizes)))))
    for one in requests:
        if one.arrival not in again:
            enqueue(waiting, one)
    for arrival in data.draw(st.permutations(sorted(again))):
        requests[arrival].cached_tokens = 0
        requeue(waiting, requests[arrival])
    enqueue(waiting, request(99, 1))
    assert [one.arrival for one in waiting[: len(again)]] == sorted(again)


prompts = st.lists(st.integers(1, 300), min_size=1, max_size=12)


@given(prompts, st.integers(0, 400), st.integers(1, 300))
def test_a_step_is_shared_to_the_last_token(left: list[int], tokens: int, chunk: int) -> None:
    given_out = shares(left, tokens, chunk)
    wanted = [min(one, chunk) for one in left]
    assert sum(given_out) == min(tokens, sum(wanted))
    assert all(0 <= got <= want for got, want in zip(given_out, wanted, strict=True))


@given(prompts, st.integers(0, 400), st.integers(1, 300))
def test_the_oldest_and_the_shortest_have_half_of_it_each(left: list[int], tokens: int, chunk: int) -> None:
    given_out = shares(left, tokens, chunk)
    for index in (0, left.index(min(left))):
        assert given_out[index] >= min(left[index], chunk, tokens // 2)


@given(st.integers(1, 12), st.integers(1, 60), st.integers(2, 200), st.integers(1, 300))
def test_a_burst_of_like_prompts_is_served_one_after_the_other(count: int, size: int, tokens: int, chunk: int) -> None:
    """Or the first of them would have to wait for the last."""
    left, ends = [size] * count, []
    while left:
        left = [one - got for one, got in zip(left, shares(left, tokens, chunk), strict=True)]
        assert sum(0 < one < size for one in left) <= max(1, -(-tokens // chunk)), "all are begun and none is ended"
        ends.append(left.count(0))
        left = [one for one in left if one]
    assert sum(ends) == count
