"""What a drafter lacks, counted from settled steps, and what a few rows of a step have to catch up on."""

from __future__ import annotations

from overdrive.policy.catching_up import CatchUp, Missed
from overdrive.types import Admission, Plan, Row, SamplingParams, Step, Why

from .gears import staircase

WINDOW = 256


def step(number: int, drafts: dict[int, int], upper: int, admitted: tuple[int, ...] = (), most_rows: int = -1) -> Step:
    """Rows by slot with so many drafts each; upper: tokens of each at most, without them. Prompts have 10 tokens."""
    rows = tuple(Row(f"r{slot}", slot, 1, k, True, upper + k) for slot, k in drafts.items())
    params = SamplingParams(max_tokens=99)
    admissions = tuple(Admission(f"r{slot}", slot, (7,) * 10, 10, 0, params) for slot in admitted)
    return Step(number, rows, Plan(max(drafts.values()), Why(rule="test"), most_rows), admissions)


def test_rows_lack_what_they_got_since_they_last_drafted() -> None:
    missed = Missed(WINDOW)
    missed.follow(step(1, {0: 0, 1: 0, 2: 0}, 15, admitted=(0, 1, 2)), drafting=False, everyone=True)
    assert [missed.tokens(n) for n in (0, 1, 3, 9)] == [0, 5, 15, 15]
    missed.follow(step(2, {0: 2, 1: 0, 2: 0}, 18, most_rows=1), drafting=True, everyone=False)
    assert [missed.tokens(n) for n in (1, 2, 3)] == [0, 8, 16]  # the one that has just drafted lacks nothing
    missed.follow(step(3, {0: 0, 1: 0, 2: 0}, 22), drafting=False, everyone=True)
    missed.follow(step(4, {0: 0, 1: 0, 2: 0}, 24), drafting=False, everyone=True)
    assert missed.before(step(5, {0: 1}, 24)) == 24 - 20
    assert missed.before(step(5, {1: 1, 2: 1}, 24)) == 2 * 14


def test_nothing_is_lacking_while_all_rows_draft_and_no_more_than_is_kept() -> None:
    missed = Missed(WINDOW)
    for number in range(1, 5):
        current = step(number, {0: 3, 1: 3}, 10 + 4 * number, admitted=(0, 1) if number == 1 else ())
        missed.follow(current, drafting=True, everyone=True)
    assert missed.before(step(5, {0: 3, 1: 3}, 30)) == 0
    missed.follow(step(6, {0: 0, 1: 0}, 5000), drafting=False, everyone=True)
    assert missed.before(step(7, {0: 1, 1: 1}, 5001)) == 2 * WINDOW


def test_a_drafter_without_a_network_lacks_nothing() -> None:
    catch_up = CatchUp(staircase(), 0)
    catch_up.settle(step(1, {0: 0, 1: 0}, 500, admitted=(0, 1)), 0, 0.0)
    assert catch_up.seconds(2) == 0


def test_a_slot_begins_anew_with_its_next_request() -> None:
    missed = Missed(WINDOW)
    missed.follow(step(1, {0: 1, 1: 1}, 500), drafting=True, everyone=True)
    missed.follow(step(2, {0: 0, 1: 0}, 12, admitted=(1,)), drafting=False, everyone=True)
    assert missed.before(step(3, {1: 1}, 12)) == 2


def test_catching_up_is_priced_by_what_it_took() -> None:
    costs = staircase()
    catch_up = CatchUp(costs, WINDOW)
    for number in range(1, 40):
        plain = step(2 * number, {0: 0, 1: 0}, 50 * number + 20, admitted=(0, 1) if number == 1 else ())
        catch_up.settle(plain, 0, 0.0)
        late = step(2 * number + 1, {0: 1, 1: 1}, 50 * number + 30)
        catch_up.settle(late, 2, costs.draft(1, 2) + 3 * costs.catch_up(Missed.before(catch_up._missed, late)))
    catch_up.settle(step(100, {0: 0, 1: 0}, 2100), 0, 0.0)
    assert 2 * costs.catch_up(200) < catch_up.seconds(2) < 4 * costs.catch_up(400)
