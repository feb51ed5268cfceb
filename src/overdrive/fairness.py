"""Who comes next: neither do long prompts keep short ones waiting without end, nor short ones a long one.

Two rules, each for one place where prompts compete. Both serve first come, first served among equals, so that a burst
of like requests begins to answer one after the other instead of all at the end.

In the queue, a newer request goes before older ones with prompts twice as long, and each of those allows it only as
long as its allowance lasts: as many tokens, together, as its own prompt has (a deficit counter, as in deficit round
robin, Shreedhar and Varghese 1996). So a short prompt passes a row of long ones at once, and a long one waits for older
requests and for no more than its own length of newer ones.

In a step, half of the tokens that prompts may feed goes by arrival, the other half by what is left of a prompt, least
first; what one half cannot use is the other's. So the oldest prompt has at least half the speed that it has alone, and
the one with the least left has half of its own (each half is the discipline that is best for somebody: first come,
first served, and shortest remaining time).

Knows lengths. Must never know pages, slots or a device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from overdrive.request import Request


def enqueue(waiting: list[Request], request: Request) -> None:
    """Put a request that has just arrived into `waiting`, which is in the order of service."""
    place = len(waiting)
    while place and _lets_pass(waiting[place - 1], request):
        place -= 1
    charge(waiting[place:], request)
    waiting.insert(place, request)


def may_overtake(passed: Sequence[Request], request: Request) -> bool:
    """Whether `request` may be served before those of the queue that are before it, but for which there is no room."""
    return all(_lets_pass(older, request) for older in passed)


def charge(passed: Iterable[Request], request: Request) -> None:
    """`request` is served before those: take it from their allowances."""
    for older in passed:
        older.allowance -= len(request.prompt)


def requeue(waiting: list[Request], request: Request) -> None:
    """Put a request that was running back into `waiting`: before all that never ran, by arrival among the others."""
    place = 0
    while place < len(waiting) and waiting[place].started and waiting[place].arrival < request.arrival:
        place += 1
    waiting.insert(place, request)


def _lets_pass(older: Request, newer: Request) -> bool:
    size = len(newer.prompt)
    return not older.started and 2 * size <= len(older.prompt) and size <= older.allowance


def shares(left: Sequence[int], tokens: int, chunk: int) -> list[int]:
    """How many of a step's `tokens` each prompt feeds, at most `chunk` of them. left: tokens of each, oldest first."""
    wanted = [min(one, chunk) for one in left]
    given = [0] * len(wanted)
    shortest = sorted(range(len(left)), key=left.__getitem__)  # the older one where as much is left
    for order, most in ((range(len(left)), tokens - tokens // 2), (shortest, tokens // 2)):
        tokens -= _deal(order, wanted, given, most)
    _deal(range(len(left)), wanted, given, tokens)
    return given


def _deal(order: Iterable[int], wanted: Sequence[int], given: list[int], tokens: int) -> int:
    """Deal out `tokens` in that order, to each what it still wants; returns how many were taken."""
    left = tokens
    for index in order:
        part = min(wanted[index] - given[index], left)
        given[index] += part
        left -= part
    return tokens - left
