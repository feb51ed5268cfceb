"""What is reported of drafts is what happened on the device, under random K, preemption, aborts and late streams."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from overdrive.draft_report import DraftTally
from overdrive.engine import draft_stats
from overdrive.policy.acceptance import DraftCounts, key_of
from overdrive.request import Request
from overdrive.types import Finish, FinishReason

from .bench import Bench
from .test_loop_laws import bench, make_request
from .toy import VOCAB

SOURCES = ("even", "odd")


def watched(rng: random.Random) -> tuple[Bench, list[Request], dict[str, DraftTally], Counter[str]]:
    """A random schedule run to its end: its requests, what their answers' readers counted, and their rounds."""
    b = bench(rng, n_pages=rng.choice([18, 24, 90]), lookahead=rng.choice([0, 1, 2]), cached=rng.random() < 0.8)
    requests = []
    for number in range(7):
        request = make_request(rng, number, [rng.randrange(1, VOCAB) for _ in range(rng.randint(1, 14))])
        request.params = replace(request.params, temperature=float(number % 2))
        requests.append(request)
        b.scheduler.submit(request)
    tallies, rounds = {request.id: DraftTally() for request in requests}, Counter()
    while not b.loop.idle:
        for delta in b.loop.advance():
            tallies[delta.request.id].add(delta.source, delta.offered, delta.accepted, len(delta.tokens))
            rounds[delta.request.id] += bool(delta.tokens)
        if rng.random() < 0.05 and b.scheduler.running:
            victim = rng.choice(list(b.scheduler.running.values())).request
            b.committer.abort(victim, Finish(FinishReason.ABORT))
    return b, requests, tallies, rounds


def test_every_round_is_reported_once_under_its_source_and_key() -> None:
    preempted = aborted = 0
    for seed in range(80):
        b, requests, tallies, rounds = watched(random.Random(seed))
        expected = DraftCounts(SOURCES, 8)
        for request in requests:
            happened = b.runner.rounds.get(request.id, [])[: rounds[request.id]]  # what followed its end counts nowhere
            for source, offered, accepted in happened:
                expected.add(source, key_of(request.params.temperature > 0, False), offered, accepted)
            check_tally(tallies[request.id], request, happened)
            aborted += request.finish.reason is FinishReason.ABORT
        assert draft_stats(b.committer._counts) == draft_stats(expected)
        assert b.committer.rounds == rounds.total()
        preempted += b.scheduler.preemptions
    assert preempted > 20 and aborted > 20, "the schedules no longer exercise preemption and aborts"


def check_tally(tally: DraftTally, request: Request, happened: list[tuple[int, int, int]]) -> None:
    """A request's own report: every round, of the last one the accepted drafts that stand in its output."""
    report = DraftTally.report([tally], SOURCES)
    assert report.rounds == len(happened)
    assert report.tokens_per_round == round(request.output_len / max(1, len(happened)), 4)
    left = request.output_len
    stood = {name: [] for name in SOURCES}
    for source, offered, accepted in happened:
        if offered:
            stood[SOURCES[source]].append((offered, min(accepted, left)))
        left -= accepted + 1
    assert set(report.sources) == {name for name in SOURCES if stood[name]}
    for name, told in report.sources.items():
        positions = range(max(offered for offered, _ in stood[name]))
        assert told.rounds == len(stood[name])
        assert told.offered == [sum(offered > j for offered, _ in stood[name]) for j in positions]
        assert told.accepted == [sum(accepted > j for _, accepted in stood[name]) for j in positions]
