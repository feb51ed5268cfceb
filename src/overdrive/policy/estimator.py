"""How likely drafts are to be accepted, by position: what a step of given rows would yield. Host-side; numpy only.

A draft counts where it was reached: asked for, with all drafts before it accepted. One that was never reached is
missing, not refused (or K would ratchet down); one that was asked for and not offered yields nothing, as a refused one.

    asked 5, accepted 2:    yes  yes  no   -    -        reached 3
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PRIOR = 0.7
PRIOR_WEIGHT = 40.0
"""Before anything was seen, a draft behind accepted ones is right with chance PRIOR, as if seen so many times. It is
forgotten as what was seen is."""

KEYS = 4
"""Ways to draw: sampled + 2 * constrained."""

HALF_LIFE = 512
"""Drafts at a position after which an older one counts half."""

RECENT, SURPRISE = 48, 3.5
"""The half-life by which the same is counted of late, and the standard deviations between the two that make the late
counts the ones to go on from: text of another kind is not waited for until it outweighs hundreds of older drafts."""

LATE_WEIGHT, FRESH_WEIGHT = 8.0, 16.0
"""Drafts that stand beside the late ones then, so that a handful of them does not pass for certainty; and those that it
all counts as: some of the late ones were before the change."""

REQUEST_HALF_LIFE = 16
REQUEST_WEIGHT = 8.0
"""The same for what sets a request apart, in rounds, and the judged drafts that stand for it being like all others."""

MOST_UNCOUNTED = 16
"""Steps that wait to be counted together, where nobody asks: arrays cost by the call, not by the row."""


class AcceptanceEstimator:
    """Rounds of the recent past, by source and key, and what sets single requests apart.

    A key is how a row draws: greedily or with noise, free or held to a grammar.

    A request's factor is on the odds p / (1 - p) of every draft: 1 is like all others. It follows a sudden change
    within some rounds, where the counts of all requests need hundreds.
    """

    def __init__(self, sources: Sequence[str], max_drafts: int) -> None:
        """sources: names of the drafter's sources. max_drafts: most drafts of a round, at least 1."""
        self.sources = tuple(sources)
        self.max_drafts = max_drafts
        groups = KEYS * len(self.sources)  # a group is KEYS * source + key
        self._reached = np.full((groups, max_drafts), PRIOR_WEIGHT)
        self._accepted = self._reached * PRIOR
        self._late = np.zeros((2, groups, max_drafts))  # reached and accepted, by RECENT
        self._rounds = np.zeros(groups)
        self._requests = _Requests()
        self._now = np.empty(0, np.int64)  # slots of the last observed step
        self._checked = np.zeros((3, max_drafts))  # drafts asked for, accepted, expected to be
        self._predicted = np.zeros(max_drafts)
        self._uncounted: list[tuple[np.ndarray, ...]] = []  # groups, reached, accepted, asked of each step
        self._expected = np.zeros((groups, max_drafts + 1))  # right ones to expect among the first n that are reached
        self._expected[:, 1:] = self._rates().cumsum(axis=1)
        self._by_key: dict[int, np.ndarray] = {}  # survival of each key's rows, until more is seen

    def admit(self, slot: int, sampled: bool, constrained: bool = False) -> None:
        """A request has got the slot; what its last holder taught of it is forgotten. sampled: temperature > 0."""
        self._requests.admit(slot, sampled + 2 * constrained)

    def observe(self, slots: np.ndarray, sources: np.ndarray, asked: np.ndarray, accepted: np.ndarray) -> None:
        """Rounds of one settled step, each array [rows] int64, in the order of its rows.

        asked: drafts reserved for the row, whether or not they were offered; a round that asked for none only says
        that the slot is in use. accepted: how many of them, from the front, were right.
        """
        self._now = slots
        self._requests.make_room(int(slots.max(initial=-1)) + 1)
        drafted = asked > 0
        if not drafted.all():
            slots, sources, asked, accepted = slots[drafted], sources[drafted], asked[drafted], accepted[drafted]
        if len(slots):
            groups = KEYS * sources + self._requests.keys[slots]
            asked = np.minimum(asked, self.max_drafts)
            reached = np.minimum(asked, accepted + 1)
            self._requests.observe(slots, reached, accepted, self._expected[groups, reached])
            self._uncounted.append((groups, reached, accepted, asked))
            if len(self._uncounted) >= MOST_UNCOUNTED:
                self._count()
        self._by_key.clear()

    def surprise(
        self, slots: np.ndarray, sources: np.ndarray, asked: np.ndarray, accepted: np.ndarray
    ) -> tuple[float, float]:
        """Drafts of rounds, as for `observe`, that were right beyond those to expect of like requests; and the variance
        that chance has."""
        self._requests.make_room(int(slots.max(initial=-1)) + 1)
        reached = np.minimum(np.minimum(asked, self.max_drafts), accepted + 1)
        judged = int(reached.sum())
        expected = float(self._expected[KEYS * sources + self._requests.keys[slots], reached].sum())
        return float(accepted.sum()) - expected, expected * (1 - expected / judged) if judged else 0.0

    def survival(
        self, sampled_rows: int, greedy_rows: int, masked_sampled: int = 0, masked_greedy: int = 0
    ) -> np.ndarray:
        """[max_drafts] float64, the share of such rows that accepts the first draft, the first two, ..; never rises.

        masked_sampled, masked_greedy: how many of the sampled and of the greedy rows are held to a grammar. Requests of
        the last observed step stand for the ones to come.
        """
        self._count()
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
        self._count()
        asked, accepted, expected = self._checked
        return (accepted - expected) / np.maximum(asked, 1e-9)

    def _count(self) -> None:
        """Take the waiting rounds into the counts, which forget by what a position has newly seen."""
        if not self._uncounted:
            return
        groups, reached, accepted, asked = (np.concatenate(parts) for parts in zip(*self._uncounted, strict=True))
        self._uncounted.clear()
        size, many = self.max_drafts + 1, len(self._rounds)
        places = np.concatenate([groups + many * kind for kind in range(3)]) * size
        depths = np.bincount(places + np.concatenate([reached, accepted, asked]), minlength=3 * many * size)
        beyond = depths.reshape(3, many, size)[..., :0:-1].cumsum(axis=2)[..., ::-1]  # rounds deeper than a position
        self._late = self._late * 0.5 ** (beyond[0] / RECENT) + beyond[:2]
        self._start_afresh()
        forgotten = 0.5 ** (beyond[0] / HALF_LIFE)
        self._reached = self._reached * forgotten + beyond[0]
        self._accepted = self._accepted * forgotten + beyond[1]
        forgotten = 0.5 ** (len(groups) / HALF_LIFE)
        self._rounds = self._rounds * forgotten + beyond[0, :, 0]
        asked_at = beyond[2].sum(axis=0)
        came = np.array([asked_at, beyond[1].sum(axis=0), asked_at * self._predicted])
        self._checked = self._checked * forgotten + came
        self._expected[:, 1:] = self._rates().cumsum(axis=1)

    def _start_afresh(self) -> None:
        """Where drafts of late are right as often as no chance explains, forget what was before.

        Positions behind the first of those, of which few drafts may have been judged since, are moved by the same
        factor on the odds, as if they had been seen a little.
        """
        rates = self._rates()
        reached, accepted = self._late
        off = accepted - reached * rates
        surprised = off * off > SURPRISE**2 * reached * rates * (1 - rates)
        for group in np.flatnonzero(surprised.any(axis=1)):
            here, first = surprised[group], int(surprised[group].argmax())
            moved = ~here & (np.arange(self.max_drafts) > first)
            odds = rates[group] / (1 - rates[group])
            now = np.clip(accepted[group, first] / reached[group, first], 0.001, 0.999)
            odds = odds * (now / (1 - now) / odds[first])
            believed = odds / (1 + odds)
            seen = (accepted[group] + LATE_WEIGHT * believed) / (reached[group] + LATE_WEIGHT)
            weight = np.where(here, FRESH_WEIGHT, np.minimum(self._reached[group], PRIOR_WEIGHT))
            changed = here | moved
            self._reached[group, changed] = weight[changed]
            self._accepted[group, changed] = (weight * np.where(here, seen, believed))[changed]
            self._late[:, group, moved] = 0.0

    def _rates(self) -> np.ndarray:
        """[groups, max_drafts], chance of a draft to be right where those before it were."""
        return np.clip(self._accepted / self._reached, 0.001, 0.999)

    def _survival(self, key: int) -> np.ndarray:
        if key not in self._by_key:
            factors = self._requests.factors(self._now, key)
            rounds = self._rounds[key::KEYS]
            shares = rounds / rounds.sum() if rounds.any() else np.full(len(rounds), 1 / len(rounds))
            rates = self._rates()[key::KEYS]
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
        """Rounds, each array [rows]; expected: of the reached drafts, those that like requests would accept."""
        seen = self._seen[slots] * 0.5 ** (1 / REQUEST_HALF_LIFE)
        seen += np.array([accepted, reached - accepted, expected, reached - expected]).T
        self._seen[slots] = seen

    def factors(self, slots: np.ndarray, key: int) -> np.ndarray:
        """Factors on the odds of those slots that draw as `key` says; [1.0] where there are none."""
        slots = slots[self.keys[slots] == key]
        if not len(slots):
            return np.ones(1)
        accepted, refused, right, wrong = self._seen[slots].T
        judged = right + wrong
        like = np.where(judged > 0, right / np.maximum(judged, 1e-9), 0.5) * REQUEST_WEIGHT
        unlike = REQUEST_WEIGHT - like
        return (accepted + like) / (right + like) * (wrong + unlike) / (refused + unlike)


def _mean_survival(rates: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """[max_drafts], survival under rates [max_drafts] with each factor on their odds, averaged over the factors."""
    odds = np.multiply.outer(factors, rates / (1 - rates))
    return (odds / (1 + odds)).cumprod(axis=1).mean(axis=0)
