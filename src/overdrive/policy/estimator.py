"""How likely drafts are to be accepted, by position: what a step of given rows would yield. Host-side; numpy only.

A draft counts where it was reached: asked for, with all drafts before it accepted. One that was never reached is
missing, not refused (or K would ratchet down); one that was asked for and not offered yields nothing, as a refused one.

    asked 5, accepted 2:    yes  yes  no   -    -        reached 3

What changes with the text is, above all, a level that moves the odds p / (1 - p) of all positions; how positions differ
is a drafter's nature. So later positions move with the first one also while nothing of them is seen, as at K = 1, and
every draft at any position speaks for a change of the level.

    odds of position n = odds of the first * shape[n]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overdrive.policy import acceptance

PRIOR = 0.7
PRIOR_WEIGHT = 40.0
"""Before anything was seen, a draft behind accepted ones is right with chance PRIOR, as if seen so many times. It is
forgotten as what was seen is."""

KEYS = len(acceptance.KEYS)

HALF_LIFE = 512
"""Drafts at a position after which an older one counts half."""

SURPRISE = 7.0
"""Logarithm of how much likelier a run of drafts is by its own rate than by the rates believed in, from which on the
run is what to go on from: text of another kind is not waited for until it outweighs hundreds of older drafts. Where a
draft comes only every so many steps, less by their logarithm: a change had so many more occasions (as in Shiryaev's
procedure, On optimum methods in quickest detection problems, 1963)."""

LEAST_SURPRISE = 3.5
"""What it takes however rarely drafts come."""

SLACK = 0.05
"""Share of the drafts that a run may be beyond what was expected and count as nothing: smaller changes have time."""

RUN_WEIGHT, FRESH_WEIGHT = 4.0, 16.0
"""Drafts as they were believed to be that stand beside a run then, so that a handful passes for no certainty; and those
that it all counts as."""

REQUEST_HALF_LIFE = 16
REQUEST_WEIGHT = 8.0
"""The same for what sets a request apart, in rounds, and the judged drafts that stand for it being like all others."""


class AcceptanceEstimator:
    """Rounds of the recent past, by source and key, and what sets single requests apart.

    A key is how a row draws: greedily or with noise, free or held to a grammar.

    A request's factor is on the odds of every draft: 1 is like all others. It follows a sudden change within some
    rounds, where the counts of all requests need hundreds.
    """

    def __init__(self, sources: Sequence[str], max_drafts: int) -> None:
        """sources: names of the drafter's sources. max_drafts: most drafts of a round, at least 1."""
        self.sources = tuple(sources)
        self.max_drafts = max_drafts
        groups = KEYS * len(self.sources)  # a group is KEYS * source + key
        self._first = np.array([[1.0], [PRIOR]]) * np.full(groups, PRIOR_WEIGHT)  # first drafts: reached, accepted
        self._behind = np.zeros((4, groups, max_drafts))  # what sets positions apart from the first: see `_factors`
        self._runs = np.zeros((2, 3, groups))  # better and worse than expected: see `_lengthen`
        self._lasted = np.zeros((2, groups))  # steps since those began
        self._unlike = np.zeros((2, groups))  # logarithm of how unlike the believed rates those are
        self._rounds = np.zeros(groups)
        self._requests = _Requests()
        self._now = np.empty(0, np.int64)  # slots of the last observed step
        self._checked = np.zeros((3, max_drafts))  # drafts asked for, accepted, expected to be
        self._predicted = np.zeros(max_drafts)
        self._expected = np.zeros((groups, max_drafts + 1))  # right ones to expect among the first n that are reached
        self._rates = np.zeros((groups, max_drafts))  # chance of a draft to be right where those before it were
        self._believe()
        self._by_key: dict[int, np.ndarray] = {}  # survival of each key's rows, until more is seen

    def admit(self, slot: int, sampled: bool, constrained: bool = False) -> None:
        """A request has got the slot; what its last holder taught of it is forgotten. sampled: temperature > 0."""
        self._requests.admit(slot, acceptance.key_of(sampled, constrained))

    def observe(
        self, slots: np.ndarray, sources: np.ndarray, asked: np.ndarray, accepted: np.ndarray, steps: int = 1
    ) -> None:
        """Rounds of so many settled steps, each array [rounds] int64; a slot may have several. Arrays cost by the call,
        not by the round: some steps together cost what one does.

        asked: drafts reserved for the row, whether or not they were offered; a round that asked for none only says
        that the slot is in use. accepted: how many of them, from the front, were right.
        """
        self._now = slots
        self._lasted += steps
        self._requests.make_room(int(slots.max(initial=-1)) + 1)
        drafted = asked > 0
        if not drafted.all():
            slots, sources, asked, accepted = slots[drafted], sources[drafted], asked[drafted], accepted[drafted]
        if len(slots):
            groups = KEYS * sources + self._requests.keys[slots]
            asked = np.minimum(asked, self.max_drafts)
            reached = np.minimum(asked, accepted + 1)
            self._requests.observe(slots, reached, accepted, self._expected[groups, reached])
            self._count(groups, reached, accepted, asked)
        self._by_key.clear()

    def luck(self, slots: np.ndarray, sources: np.ndarray) -> float:
        """Of rounds of such rows and sources: how much their run of late speaks for more being right than is believed,
        as the logarithm of a likelihood ratio. 0 where it does not; by SURPRISE it is believed."""
        return float(self._unlike[0, KEYS * sources + self._requests.keys[slots]].max(initial=0.0))

    def young(self, slots: np.ndarray, sources: np.ndarray) -> bool:
        """Whether what is believed of rounds of such rows and sources is hardly older than a run that was believed."""
        return bool(self._first[0, KEYS * sources + self._requests.keys[slots]].min(initial=np.inf) < 2 * FRESH_WEIGHT)

    def survival(
        self, sampled_rows: int, greedy_rows: int, masked_sampled: int = 0, masked_greedy: int = 0
    ) -> np.ndarray:
        """[max_drafts] float64, the share of such rows that accepts the first draft, the first two, ..; never rises.

        masked_sampled, masked_greedy: how many of the sampled and of the greedy rows are held to a grammar. Requests of
        the last observed step stand for the ones to come.
        """
        rows = (greedy_rows - masked_greedy, sampled_rows - masked_sampled, masked_greedy, masked_sampled)
        shares = [(key, count / sum(rows)) for key, count in enumerate(rows) if count > 0] or [(0, 1.0)]
        self._predicted = np.sum([share * self._survival(key) for key, share in shares], axis=0)
        return self._predicted

    @property
    def predicted(self) -> np.ndarray:
        """[max_drafts] float64, what `survival` said last; zeros before it was asked."""
        return self._predicted

    @property
    def calibration(self) -> np.ndarray:
        """[max_drafts] float64, realised less predicted share at each position lately; 0 where none was asked for.

        Predicted is what `survival` said last before the rounds were observed.
        """
        asked, accepted, expected = self._checked
        return (accepted - expected) / np.maximum(asked, 1e-9)

    def _count(self, groups: np.ndarray, reached: np.ndarray, accepted: np.ndarray, asked: np.ndarray) -> None:
        """Take rounds into the counts, which forget by what a position has newly seen."""
        size, many = self.max_drafts + 1, len(self._rounds)
        places = np.concatenate([groups + many * kind for kind in range(3)]) * size
        depths = np.bincount(places + np.concatenate([reached, accepted, asked]), minlength=3 * many * size)
        beyond = depths.reshape(3, many, size)[..., :0:-1].cumsum(axis=2)[..., ::-1]  # rounds deeper than a position
        self._lengthen(beyond[0], beyond[1])
        self._first = self._first * 0.5 ** (beyond[0, :, 0] / HALF_LIFE) + beyond[:2, :, 0]
        rate = np.clip(self._first[1] / self._first[0], 1e-6, 1 - 1e-6)[:, None]  # never so sure that nothing is left
        refused = beyond[0] - beyond[1]
        new = np.array([beyond[1], refused, beyond[0] * rate, beyond[0] * (1 - rate)])
        new[:, :, 0] = 0.0
        self._behind = self._behind * 0.5 ** (beyond[0] / HALF_LIFE) + new
        self._believe()
        forgotten = 0.5 ** (len(groups) / HALF_LIFE)
        self._rounds = self._rounds * forgotten + beyond[0, :, 0]
        asked_at = beyond[2].sum(axis=0)
        came = np.array([asked_at, beyond[1].sum(axis=0), asked_at * self._predicted])
        self._checked = self._checked * forgotten + came

    @property
    def _level(self) -> np.ndarray:
        """[groups], chance of a first draft to be right; of thousands that all were, it would be 1, whose odds are
        infinite."""
        return np.clip(self._first[1] / self._first[0], 0.001, 0.999)

    def _believe(self) -> None:
        """Rates from counts."""
        rate = self._level
        odds = (rate / (1 - rate))[:, None] * _factors(self._behind, PRIOR_WEIGHT)
        self._rates = np.clip(odds / (1 + odds), 0.001, 0.999)
        self._expected[:, 1:] = self._rates.cumsum(axis=1)

    def _lengthen(self, reached: np.ndarray, accepted: np.ndarray) -> None:
        """Take drafts, each [groups, max_drafts], into the runs of those that were right more often than expected, and
        less often; and move the level where the rates believed in do not explain a run.

        A run begins anew wherever hardly more is right, or wrong, in it than was expected: so it begins at a change, if
        there was one, and older drafts do not water it down. A cumulative sum (Page, Continuous inspection schemes,
        1954) with the likelihood ratio of a rate that is not known beforehand.
        """
        self._runs += np.array([reached, accepted, reached * self._rates]).sum(axis=2)
        seen, right, expected = self._runs[:, 0], self._runs[:, 1], self._runs[:, 2]
        goes_on = (right - expected) * [[1], [-1]] > SLACK * seen
        self._runs *= goes_on[:, None]
        self._lasted *= goes_on
        self._unlike = _likelier(right, expected) + _likelier(seen - right, seen - expected)
        if self._unlike.max() > LEAST_SURPRISE:
            rare = np.log(np.maximum(self._lasted / np.maximum(seen, 1.0), 1.0))
            enough = self._unlike > np.maximum(SURPRISE - rare, LEAST_SURPRISE)
            for group in np.flatnonzero(enough.any(axis=0)):
                self._start_afresh(int(group))

    def _start_afresh(self, group: int) -> None:
        """Go on from the run of a group that cannot be chance."""
        seen, right, expected = self._runs[self._unlike[:, group].argmax(), :, group]
        believed = expected / seen
        now = (right + RUN_WEIGHT * believed) / (seen + RUN_WEIGHT)
        rate = self._level[group]
        odds = rate / (1 - rate) * now / (1 - now) * (1 - believed) / believed
        self._first[:, group] = FRESH_WEIGHT, FRESH_WEIGHT * odds / (1 + odds)
        self._runs[..., group] = self._unlike[:, group] = self._lasted[:, group] = 0.0

    def _survival(self, key: int) -> np.ndarray:
        if key not in self._by_key:
            factors = self._requests.factors(self._now, key)
            rounds = self._rounds[key::KEYS]
            shares = rounds / rounds.sum() if rounds.any() else np.full(len(rounds), 1 / len(rounds))
            rates = self._rates[key::KEYS]
            self._by_key[key] = sum(
                share * _mean_survival(rate, factors) for share, rate in zip(shares, rates, strict=True) if share > 1e-3
            )
        return self._by_key[key]


class _Requests:
    """What sets requests apart, by slot: drafts lately accepted and refused, and those expected to be."""

    def __init__(self) -> None:
        self.keys = np.zeros(0, np.int64)
        self._seen = np.zeros((0, 4))  # accepted, refused, expected to be accepted, expected to be refused

    def make_room(self, slots: int) -> None:
        """Know slots 0 .. slots - 1."""
        more = slots - len(self.keys)
        if more > 0:
            self.keys = np.concatenate([self.keys, np.zeros(more, np.int64)])
            self._seen = np.concatenate([self._seen, np.zeros((more, 4))])

    def admit(self, slot: int, key: int) -> None:
        self.make_room(slot + 1)
        self.keys[slot] = key
        self._seen[slot] = 0

    def observe(self, slots: np.ndarray, reached: np.ndarray, accepted: np.ndarray, expected: np.ndarray) -> None:
        """Rounds, each array [rounds]; expected: of the reached drafts, those that like requests would accept."""
        rounds, known = np.bincount(slots, minlength=len(self.keys)), np.arange(4)
        new = np.array([accepted, reached - accepted, expected, reached - expected])
        places = slots * 4 + known[:, None]
        self._seen *= 0.5 ** (rounds / REQUEST_HALF_LIFE)[:, None]
        self._seen += np.bincount(places.ravel(), new.ravel(), self._seen.size).reshape(-1, 4)

    def factors(self, slots: np.ndarray, key: int) -> np.ndarray:
        """Factors on the odds of those slots that draw as `key` says; [1.0] where there are none."""
        slots = slots[self.keys[slots] == key]
        if not len(slots):
            return np.ones(1)
        return _factors(self._seen[slots].T, REQUEST_WEIGHT)


def _factors(seen: np.ndarray, weight: float) -> np.ndarray:
    """[..], factors on the odds by which what was seen differs from what was expected; towards 1 where little was.

    seen: [4, ..] drafts accepted, refused, expected to be accepted, expected to be refused. weight: drafts as expected
    that stand beside them.
    """
    accepted, refused, right, wrong = seen
    judged = right + wrong
    like = np.where(judged > 0, right / np.maximum(judged, 1e-9), 0.5) * weight
    unlike = weight - like
    return (accepted + like) / (right + like) * (wrong + unlike) / (refused + unlike)


def _likelier(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """found * log(found / expected), 0 of nothing."""
    return found * np.log((found + 1e-9) / (expected + 1e-9))


def _mean_survival(rates: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """[max_drafts], survival under rates [max_drafts] with each factor on their odds, averaged over the factors."""
    odds = np.multiply.outer(factors, rates / (1 - rates))
    return (odds / (1 + odds)).cumprod(axis=1).mean(axis=0)
