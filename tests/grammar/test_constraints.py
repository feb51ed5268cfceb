"""Walking a chain of drafts leaves a constraint where it was, and says of every draft what one at a time would say."""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import Future
from math import inf

import numpy as np
import pytest

from overdrive.grammar.base import GrammarFault, Lines, Matcher, WordEnds, all_but, legal, only
from overdrive.grammar.constraint import Constrained, Free
from overdrive.grammar.guidance import GuidanceMatcher
from overdrive.grammar.lead import Lead, Marker
from overdrive.grammar.sheet import blank_sheet
from overdrive.grammar.walker import Walker

from .words import EOS, PIECES, VOCABULARY, encode, program

WORDS = 2
GRAMMARS = (
    ("regex", "[0-9]{2,6}-[a-f]+"),
    ("regex", "(ab|abc)*no?"),
    ("choice", '["the name", "no", "none"]'),
    ("json_schema", '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}'),
    ("json_schema", '{"type": "array", "items": {"enum": ["abc", null, 12]}}'),
    ("lark", 'start: <tool> NAME ", " NAME\nNAME: /[a-e]{1,4}/'),
)


def masks(constraint, drafts=(), runs: int = 4):
    """[filled, W] and [filled, 3, runs]."""
    sheet = blank_sheet(1, 1, len(drafts) + 1, WORDS, (3, runs))
    filled = constraint.walk(list(drafts), sheet.bits, sheet.forced[0])
    return sheet.bits[:filled], sheet.forced[0, :filled]


def options(line) -> list[int]:
    return [token for token in range(64) if legal(line, token)]


def made(kind: str, source: str, after=(), trigger=()) -> Constrained:
    return Constrained(program(kind, source), (EOS, 1), Lead(after, trigger))


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar[1][:20])
def test_a_walk_says_what_one_token_at_a_time_would_say(grammar: tuple[str, str]) -> None:
    for seed in range(25):
        rng = random.Random(seed)
        marker = rng.choice([(), (9,), (9, 9, 5)])
        constraint, accepted = made(*grammar, marker), []
        while not constraint.ended and len(accepted) < 30:
            before, _ = masks(constraint)
            drafts = guess(rng, grammar, marker, accepted)
            lines, runs = masks(constraint, drafts)
            for depth, line in enumerate(lines):
                alone = made(*grammar, marker)
                for token in (*accepted, *drafts[:depth]):
                    alone.accept(token)
                if not alone.ended:
                    assert (line == masks(alone)[0][0]).all()
                    for run in runs[depth].tolist():
                        certain = [token for token in run if token >= 0]
                        assert_certain(alone, certain)
            stop = len(lines) - 1
            assert stop == len(drafts) or not legal(lines[stop], drafts[stop]) or drafts[stop - 1] in (EOS, 1)
            assert (masks(constraint)[0] == before).all()
            token = rng.choice(options(before[0]))
            constraint.accept(token)
            accepted.append(token)


def assert_certain(constraint: Constrained, run: list[int]) -> None:
    """Every token of it is legal behind those before it; what is certain behind the first has no choice of bytes."""
    if run:
        lines, _ = masks(constraint, run)
        assert len(lines) > len(run) or run[len(lines) - 1] in (EOS, 1)


def guess(rng: random.Random, grammar, marker, accepted: list[int]) -> list[int]:
    """Some legal drafts, then perhaps one that is not."""
    alone, drafts = made(*grammar, marker), []
    for token in accepted:
        alone.accept(token)
    for _ in range(rng.randint(0, 7)):
        if alone.ended or rng.random() < 0.2:
            drafts.append(rng.randrange(64))
            break
        drafts.append(rng.choice(options(masks(alone)[0][0])))
        alone.accept(drafts[-1])
    return drafts


def test_where_an_answer_is_whole_only_an_end_is_legal() -> None:
    constraint = made("regex", "abc")
    constraint.accept(PIECES.index(b"abc"))
    lines, runs = masks(constraint, [EOS, 7, 7])
    assert options(lines[0]) == [EOS, 1]
    assert runs[0, 0, 0] == EOS
    assert len(lines) == 2  # nothing follows the end, whatever was drafted


def test_before_its_marker_all_is_free_but_an_end() -> None:
    constraint = made("regex", "[0-9]+", (9, 9, 5))
    for token in (3, 9, 9, 9):
        assert options(masks(constraint)[0][0]) == list(range(2, 64))
        constraint.accept(token)
    constraint.accept(5)
    assert all(PIECES[token][:1].isdigit() for token in options(masks(constraint)[0][0]))


def test_before_its_trigger_all_is_free_and_an_end_too() -> None:
    constraint = made("regex", "[0-9]+", after=(9, 5), trigger=(5, 5))
    for token in (5, 5, 9):  # a trigger within what comes before counts for nothing
        assert options(masks(constraint)[0][0]) == list(range(2, 64))
        constraint.accept(token)
    for token in (5, 5, 9, 5):
        constraint.accept(token)
        assert options(masks(constraint)[0][0]) == list(range(64))
    lines, _ = masks(constraint, [9, 5, 5, 9])
    assert [options(line) == list(range(64)) for line in lines] == [True, True, True, False]
    constraint.accept(5)
    assert all(PIECES[token][:1].isdigit() for token in options(masks(constraint)[0][0]))


@pytest.mark.parametrize("run", [(1,), (1, 1, 2), (1, 2, 1, 1), (2, 1, 2, 1, 2)])
def test_a_marker_is_found_where_it_first_ends(run: tuple[int, ...]) -> None:
    for seed in range(50):
        rng = random.Random(seed)
        text, marker, state = [rng.choice([1, 1, 2]) for _ in range(40)], Marker(run), 0
        ends = [at for at in range(len(run), 41) if tuple(text[at - len(run) : at]) == run]
        for at, token in enumerate(text, start=1):
            state = marker.next(state, token)
            if state == len(run):
                assert at == ends[0]
                break
        else:
            assert not ends


def test_a_refused_token_is_a_fault() -> None:
    constraint = made("regex", "[0-9]+")
    with pytest.raises(GrammarFault, match="refuses token 4"):
        constraint.accept(4)


class Brittle:
    """A matcher of any digit that breaks for good where it is asked behind `breaks` tokens."""

    def __init__(self, breaks: int) -> None:
        self.breaks, self.count, self.done = breaks, 0, False

    def fill(self, words) -> None:
        if self.count >= self.breaks:
            raise GrammarFault("too complex")
        only([7], words)

    def accept(self, token: int) -> None:
        self.count += 1

    def write(self, lines, line: int) -> bool:
        return False

    def rollback(self, count: int) -> None:
        assert self.count <= self.breaks, "a broken matcher is of no use"
        self.count -= count

    def forced(self) -> list[int]:
        return []

    def branches(self, words, most: int) -> list[list[int]]:
        return []

    def goes_on(self, token: int) -> bool:
        return False


class BrittleProgram:
    def start(self) -> Matcher:
        return Brittle(3)


def test_a_matcher_that_breaks_on_drafts_is_replaced() -> None:
    """Drafts may lead where the answer never goes: only a fault at what is committed ends the request."""
    constraint = Constrained(BrittleProgram(), (EOS,))
    constraint.accept(7)
    lines, _ = masks(constraint, [7, 7, 7])
    assert len(lines) == 2
    constraint.accept(7)
    assert len(masks(constraint)[0]) == 1
    constraint.accept(7)
    assert len(masks(constraint)[0]) == 0
    with pytest.raises(GrammarFault, match="too complex"):
        constraint.accept(7)


class OneWay(Brittle):
    """A matcher that cannot go back."""

    def rollback(self, count: int) -> None:
        if count:
            raise GrammarFault("cannot go back")


class OneWayProgram:
    def start(self) -> Matcher:
        return OneWay(9)


def test_a_matcher_that_cannot_go_back_is_replaced() -> None:
    constraint = Constrained(OneWayProgram(), (EOS,))
    constraint.accept(7)
    assert len(masks(constraint, [7, 7])[0]) == 3
    assert constraint._matcher.count == 1


def test_masks_are_words_of_bits() -> None:
    line = np.zeros(WORDS, np.int32)
    only([0, 31, 63], line)
    assert options(line) == [0, 31, 63]
    all_but([0, 31, 63], line)
    assert options(line) == [token for token in range(64) if token not in (0, 31, 63)]


@pytest.mark.parametrize("threads", [1, 4])
def test_every_row_gets_its_own_masks(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.grammar.walker.PATIENCE", inf)
    monkeypatch.setattr("overdrive.grammar.walker.SLOW_SECONDS", -1.0)  # so that all threads take part
    walker, count = Walker(threads), 20
    constraints = [made("regex", f"[{digit % 10}-9]+") for digit in range(count)]
    sheet = blank_sheet(count, count + 1, 3, WORDS, (0, 0))
    walker.fill([(row + 1, constraints[row], [PIECES.index(b"9"), 4]) for row in range(count)], sheet)
    walker.close()
    assert (sheet.index[0] == -1).all() and sheet.legal[0] == 2
    for row in range(count):
        assert sheet.legal[row + 1] == 1
        assert sheet.index[row + 1, 2] == -1  # behind a draft that is not legal
        line = sheet.bits[sheet.index[row + 1, 0]]
        digits = {PIECES[token] for token in options(line) if len(PIECES[token]) == 1}
        assert digits == {b"%d" % digit for digit in range(row % 10, 10)}


@pytest.mark.parametrize("threads", [1, 4])
def test_masks_of_rows_without_drafts_are_those_of_walking(threads: int) -> None:
    """Whether a library writes them by itself, which it mostly does, or there is more to it."""
    rng, walker, alone = random.Random(0), Walker(threads), 0
    rows = [made(*rng.choice(GRAMMARS), rng.choice([(), (9,)])) for _ in range(24)]
    for _ in range(12):
        rows = [row for row in rows if not row.ended]
        sheet = blank_sheet(len(rows), len(rows) + 2, 1, WORDS, (3, 4))
        places = rng.sample(range(len(rows) + 2), len(rows))
        walker.fill([(place, row, ()) for place, row in zip(places, rows, strict=True)], sheet, drafting=False)
        for place, row in zip(places, rows, strict=True):
            line = sheet.bits[sheet.index[place, 0]]
            assert (line == masks(row)[0][0]).all() and sheet.legal[place] == 0
            lines = Lines.of(np.zeros((3, WORDS), np.int32))
            if row.write(lines, 1):
                alone += 1
                assert (lines.words.reshape(3, WORDS) == [[0] * WORDS, line.tolist(), [0] * WORDS]).all()
            row.accept(rng.choice(options(line)))
        assert sorted(sheet.index[places, 0]) == list(range(len(rows)))
        assert (np.delete(sheet.index[:, 0], places) == -1).all()
    walker.close()
    assert alone > 50


def test_lines_that_a_library_could_not_write_are_refused() -> None:
    with pytest.raises(ValueError, match="one behind the other"):
        Lines.of(np.zeros((4, 2 * WORDS), np.int32)[:, :WORDS])


def test_a_grammar_that_has_been_slow_or_is_lost_is_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines.of(np.zeros((1, WORDS), np.int32))
    constraint = made("regex", "[0-9]{9}")
    assert constraint.write(lines, 0)
    monkeypatch.setattr("overdrive.grammar.constraint.MASK_SECONDS", 0.0)
    assert constraint.write(lines, 0) and not constraint.write(lines, 0), "its processor's time is counted now"


class Timed:
    """A constraint that takes so many seconds to walk, the only clock that knows it, and the pool that might help."""

    active = True

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.helpers, self.walked = seconds, 0.0, 0, 0

    def perf_counter(self) -> float:
        return self.now

    def submit(self, work) -> Future:
        self.helpers += 1
        helped: Future = Future()
        helped.set_result(None)
        return helped

    def write(self, lines, line: int) -> bool:
        return False

    def walk(self, drafts, lines, forced, until) -> int:
        self.now += self.seconds
        self.walked += 1
        return 1


@pytest.mark.parametrize(("seconds", "helpers"), [(0.00001, 0), (0.001, 3)])
def test_threads_help_where_masks_are_slow(monkeypatch: pytest.MonkeyPatch, seconds: float, helpers: int) -> None:
    """Where they are not, waking them takes longer than what they would do."""
    timed, walker = Timed(seconds), Walker(4)
    walker.close()
    monkeypatch.setattr("overdrive.grammar.walker.time", timed)
    walker._pool = timed
    walker.fill([(row, timed, []) for row in range(20)], blank_sheet(20, 20, 1, WORDS, (0, 0)))
    assert (timed.helpers, timed.walked) == (helpers, 20)


class Written(Timed):
    """One whose masks a library writes, in as many seconds."""

    def write(self, lines, line: int) -> bool:
        self.now += self.seconds
        return True


@pytest.mark.parametrize(("seconds", "walked", "helpers"), [(0.00001, 0, 0), (0.001, 19, 3)])
def test_threads_help_where_a_library_proves_slow_at_masks(
    monkeypatch: pytest.MonkeyPatch, seconds: float, walked: int, helpers: int
) -> None:
    timed, walker = Written(seconds), Walker(4)
    walker.close()
    monkeypatch.setattr("overdrive.grammar.walker.time", timed)
    walker._pool = timed
    sheet = blank_sheet(20, 20, 1, WORDS, (0, 0))
    walker.fill([(row, timed, []) for row in range(20)], sheet)
    assert (timed.walked, timed.helpers) == (walked, helpers)
    assert sorted(sheet.index[:, 0]) == list(range(20))


def test_what_is_free_is_legal() -> None:
    free = Free()
    free.accept(3)
    assert len(masks(free, [5, 6])[0]) == 3
    assert not (free.active or free.ended or free.certain(3))


class Sluggish(Brittle):
    """A matcher that takes so many seconds of the processor for a mask."""

    seconds = 0.05

    def fill(self, words) -> None:
        started = time.thread_time()
        while time.thread_time() < started + self.seconds:
            pass
        only([7], words)


class SluggishProgram:
    def start(self) -> Matcher:
        return Sluggish(100)


def test_a_grammar_that_keeps_taking_long_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once is no harm, always would hold up everybody else's steps."""
    monkeypatch.setattr("overdrive.grammar.constraint.SPARE_SECONDS", 0.3)
    constraint = Constrained(SluggishProgram(), (EOS,))
    masks(constraint, [7, 7])
    constraint.accept(7)
    with pytest.raises(GrammarFault, match="too long"):
        for _ in range(60):
            masks(constraint)
            constraint.accept(7)


class Clocks:
    """Clocks of which the wall's alone goes on between two looks, as for a thread that waits for a core."""

    def __init__(self, wall: float) -> None:
        """wall: seconds between two looks at that clock."""
        self._wall = wall
        self.looks = {"wall": 0, "processor": 0}

    def perf_counter(self) -> float:
        self.looks["wall"] += 1
        return self.looks["wall"] * self._wall

    def thread_time(self) -> float:
        self.looks["processor"] += 1
        return 0.0


def test_a_mask_that_waits_for_a_core_is_not_its_grammars_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.grammar.constraint.time", Clocks(wall=10.0))
    constraint = made("regex", "a*")
    for _ in range(5):
        assert masks(constraint)
        constraint.accept(PIECES.index(b"a"))


def test_the_processors_clock_is_asked_of_masks_that_took_long_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a system call, which costs as much as a mask."""
    for wall, asked in ((1e-5, False), (10.0, True)):
        clocks = Clocks(wall)
        monkeypatch.setattr("overdrive.grammar.constraint.time", clocks)
        constraint = made("regex", "a*")
        masks(constraint)
        masks(constraint)
        assert (clocks.looks["processor"] > 0) == asked


def test_masks_are_the_same_without_the_runs_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.grammar.walker.PATIENCE", inf)
    sheets = {}
    for ahead, drafting in ((True, True), (True, False), (False, True)):
        walker, constraint = Walker(ahead=ahead), made("regex", "(ab|abc)*no?")
        sheets[ahead, drafting] = sheet = blank_sheet(1, 1, 3, WORDS, (3, 4))
        walker.fill([(0, constraint, [PIECES.index(b"ab"), PIECES.index(b"no")])], sheet, drafting)
        walker.close()
        assert (sheet.forced >= 0).any() == (ahead and drafting)
    first, *others = sheets.values()
    for other in others:
        assert (first.bits == other.bits).all() and (first.index == other.index).all()
        assert (first.legal == other.legal).all()


def test_ends_of_words_are_found_in_masks() -> None:
    ends, line = WordEnds(VOCABULARY), np.zeros(WORDS, np.int32)
    assert {PIECES[token] for token in ends.tokens} == {b'"', b'"}', b"}", b"]", b",", b"]}"}
    for token in ends.tokens.tolist():
        only([token], line)
        assert ends.legal(line) == [token]
    all_but(ends.tokens.tolist(), line)
    assert ends.legal(line) == []


PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "no": {"enum": ["abc"]}},
        "required": ["name", "age", "no"],
    }
)


def test_runs_behind_a_word_are_found_once_and_are_those_at_each_of_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of them were drafts, and were taken back."""
    asked, branches = [], GuidanceMatcher.branches
    monkeypatch.setattr(GuidanceMatcher, "branches", lambda *given: asked.append(1) or branches(*given))
    text = encode('{"name": "the bad land, age", "age": 120, "no": "abc"}')
    for seed in range(5):
        rng, constraint, walked = random.Random(seed), made("json_schema", PERSON), 0
        while len(constraint._accepted) < len(text):
            done = len(constraint._accepted)
            drafts = text[done : done + rng.randrange(4)] + rng.choice([[], [5]])
            asked.clear()
            _, runs = masks(constraint, drafts)
            walked += len(asked)
            for depth, run in enumerate(runs[: len(drafts)]):
                alone = made("json_schema", PERSON)
                for token in [*text[:done], *drafts[:depth]]:
                    alone.accept(token)
                assert (masks(alone)[1][0] == run).all()
            for token in text[done : done + rng.randint(1, 3)]:
                constraint.accept(token)
        assert walked < len(text) // 2
