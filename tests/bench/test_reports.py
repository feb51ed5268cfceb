"""Laws of the report: claims need spread, broken runs say so, the page needs nothing but itself."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from overdrive.bench.arms import Arm
from overdrive.bench.client import Sample
from overdrive.bench.commands import bench
from overdrive.bench.figures import figures, quantiles, tokens_within
from overdrive.bench.page import page
from overdrive.bench.plan import Block, blocks
from overdrive.bench.png import write_png
from overdrive.bench.ratios import ratio_of, table
from overdrive.bench.records import Measured, Writer, read_results
from overdrive.bench.svg import ticks
from overdrive.bench.verdict import verdict, warnings
from overdrive.errors import OverdriveError

from .servers import write_block, write_results

STEADY = {"off": [[100, 101, 99], [400, 404, 396]], "k3": [[150, 151, 149], [300, 303, 297]]}


def call(*words: str) -> None:
    bench(words, exit_on_error=False, print_error=False, result_action="return_value")


def told(path):
    return table(read_results(path))


def test_throughput_is_what_was_written(tmp_path):
    seen = told(write_results(tmp_path / "r.jsonl", STEADY, [1, 8]))
    assert seen.median("off", 8) == pytest.approx(400, rel=1e-3)
    (one, *_) = seen.at("k3", 1)
    assert (one.steady, one.requests, one.drafts_offered, one.drafts_accepted) == (True, 4, 400, 240)
    assert one.users == pytest.approx(1, rel=1e-3)


def test_a_clear_winner_is_named_and_where_drafts_pay(tmp_path):
    words = verdict(told(write_results(tmp_path / "r.jsonl", STEADY, [1, 8])))
    assert words[0] == "1 at once: k3 wins with 150 tokens/s, 1.500x (1.488 to 1.513) over off."
    assert words[1].startswith("8 at once: off wins with 400 tokens/s, 1.333x")
    assert words[2] == "Fixed drafts were shown to beat off with 1 at once, and at no other load here."


def test_spread_forbids_the_claim(tmp_path):
    noisy = {"off": [[100, 140, 80]], "k3": [[110, 120, 90]]}
    (words,) = verdict(told(write_results(tmp_path / "r.jsonl", noisy, [1])))
    assert "too close to off for the spread to name a winner" in words and "wins" not in words and "beats" not in words


def test_arms_that_cannot_be_told_apart_may_both_beat_off(tmp_path):
    """What is said of the load and what is said of fixed drafts must not read as if one denied the other."""
    speeds = {"off": [[100, 101, 99], [400, 404, 396]], "k1": [[150, 148, 149], [300, 303, 297]]}
    speeds["k3"] = [[149, 150, 152], [200, 203, 197]]
    words = verdict(told(write_results(tmp_path / "r.jsonl", speeds, [1, 8])))
    assert words[0].startswith("1 at once: k3 (150 tokens/s) is too close to k1 for the spread to name a winner: 1.00")
    assert ". k3 beats off: 1.50" in words[0]
    assert words[2] == "Fixed drafts were shown to beat off with 1 at once, and at no other load here."


def test_who_wins_is_faster_than_every_other_and_not_the_second_alone(tmp_path):
    speeds = {"a": [[150, 151, 149]], "b": [[130, 131, 129]], "wild": [[100, 200, 90]]}
    (words,) = verdict(told(write_results(tmp_path / "r.jsonl", speeds, [1])))
    assert words.startswith("1 at once: a (150 tokens/s) is too close to wild for the spread to name a winner")


def test_drafts_that_pay_at_a_high_load_are_not_said_to_pay_below_it(tmp_path):
    speeds = {"off": [[100, 140, 80], [400, 404, 396]], "k1": [[110, 120, 90], [500, 505, 495]]}
    words = verdict(told(write_results(tmp_path / "r.jsonl", speeds, [1, 8])))
    assert words[-1] == "Fixed drafts were shown to beat off with 8 at once, and at no other load here."


def test_fixed_drafts_that_gain_nothing_are_no_word_against_auto(tmp_path):
    speeds = {"off": [[100, 101, 99]] * 2, "k1": [[90, 91, 89]] * 2, "auto": [[120, 121, 119]] * 2}
    words = verdict(told(write_results(tmp_path / "r.jsonl", speeds, [1, 8])))
    assert words[2].startswith("1 at once: auto wins")
    assert words[-1] == "No fixed number of drafts was shown to beat off at any load here."


def test_a_busy_machine_is_named(tmp_path):
    quiet, busy = (told(write_results(tmp_path / f"{load}.jsonl", STEADY, [1, 8], busy=load)) for load in (0.4, 3.0))
    assert warnings(quiet) == []
    assert warnings(busy)[0].startswith("The machine was busy before the run (load average 3 on 2 cores)")


def test_one_repeat_is_no_claim(tmp_path):
    (words,) = verdict(told(write_results(tmp_path / "r.jsonl", {"a": [[1]], "b": [[100]]}, [1])))
    assert "one repeat shows no spread" in words and "wins" not in words


def test_noise_shared_by_both_arms_of_a_repeat_does_not_hide_a_gain():
    """The machine's speed varies by two between repeats; within each, the arm is 3 % faster."""
    ratio = ratio_of([(103, 100), (206.1, 200), (154.4, 150)])
    assert ratio.word == "faster" and ratio.middle == pytest.approx(1.03, rel=0.01)


def test_auto_is_compared_with_the_best_other_arm_and_with_off(tmp_path):
    speeds = {**STEADY, "auto": [[147, 148, 146], [398, 402, 394]]}
    words = verdict(told(write_results(tmp_path / "r.jsonl", speeds, [1, 8])))
    assert words[0].startswith("auto beside the best other arm of each load: 0.980x (")
    assert "of k3 with 1 at once; 0.995x" in words[0] and "of off with 8 at once" in words[0]
    assert words[1].startswith("auto beside off: 1.470x")


def test_auto_beside_off_alone_is_said_once(tmp_path):
    speeds = {"off": STEADY["off"], "auto": STEADY["k3"]}
    words = verdict(told(write_results(tmp_path / "r.jsonl", speeds, [1, 8])))
    assert [line for line in words if line.startswith("auto beside")] == [words[0]]
    assert words[0].startswith("auto beside off: 1.500x")


def test_arms_take_turns_and_none_is_always_first():
    arms = [Arm(name, "http://x") for name in "abc"]
    order = ["".join(block.arm.name for block in blocks(arms, [1], 6))[i : i + 3] for i in range(0, 18, 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in order)
    assert {turn[0] for turn in order} == {"a", "b", "c"}


@pytest.mark.parametrize("arms", [2, 3])
def test_the_order_of_arms_favours_none(arms):
    """Over enough repeats every arm comes as often early as late."""
    names = [Arm(str(number), "http://x") for number in range(arms)]
    places = {arm.name: 0 for arm in names}
    for index, block in enumerate(blocks(names, [1], 2 * arms)):
        places[block.arm.name] += index % arms
    assert len(set(places.values())) == 1


def test_a_cut_off_file_is_read_up_to_the_cut(tmp_path):
    path = write_results(tmp_path / "r.jsonl", STEADY, [1, 8], end=None)
    text = path.read_text()
    path.write_text(text[: len(text) - 700])
    seen = told(path)
    assert seen.results.ended == "the run was cut off" and 0 < len(seen.results.blocks) < 12
    assert (
        verdict(seen)[0]
        == f"Unfinished: the run was cut off. These figures are of {len(seen.results.blocks)} of 12 blocks."
    )


def test_a_broken_block_is_in_no_figure(tmp_path):
    writer = Writer(tmp_path / "r.jsonl")
    arms = [{"name": "a", "url": "u", "body": {}, "model": "m"}]
    writer.run({"mode": "sweep", "arms": arms, "loads": [1], "repeats": 2})
    write_block(writer, Block(0, Arm("a", "u"), 1, 0), 50)
    write_block(writer, Block(1, Arm("a", "u"), 1, 1), 9000, whole=False)
    seen = told(tmp_path / "r.jsonl")
    assert seen.median("a", 1) == pytest.approx(50, rel=1e-3)
    assert any("4 answers belong to a block that was not finished" in line for line in warnings(seen))


def test_a_run_that_measured_nothing_still_has_a_page(tmp_path):
    path = write_results(tmp_path / "r.jsonl", {"a": [[]], "b": [[1]]}, [1])
    lines = [line for line in path.read_text().splitlines() if json.loads(line)["type"] in ("run", "end")]
    path.write_text("\n".join(lines))
    assert verdict(told(path)) == ["Nothing was measured to its end, so there is no verdict."]
    assert "Nothing was measured" in page(told(path))


def test_the_picture_is_drawn_where_it_can_be(tmp_path):
    pytest.importorskip("matplotlib")
    assert write_png(told(write_results(tmp_path / "r.jsonl", STEADY, [1, 8])), tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


class Checker(HTMLParser):
    """Tags that are open, and every address the page would load something from."""

    VOID = ("meta", "path", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open, self.loads = [], []

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href", "data", "srcset")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(tmp_path):
    text = page(told(write_results(tmp_path / "r.jsonl", STEADY, [1, 8])))
    checker = Checker()
    checker.feed(text)
    assert (checker.open, checker.loads) == ([], [])
    assert not re.search(r"url\(|@import|<script", text)
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text and "width=device-width" in text
    for title in ("Output tokens per second", "Throughput over that of off", "Time to first token", "planned drafts"):
        assert title in text
    assert "nan" not in text and "inf" not in re.sub(r"info|infinity", "", text)


def test_names_cannot_break_the_page(tmp_path):
    evil = "<script>alert('x')</script>"
    text = page(told(write_results(tmp_path / "r.jsonl", {evil: [[1, 2]], "b": [[1, 2]]}, [1])))
    assert "<script" not in text and "&lt;script" in text


def test_a_comparison_is_kept_and_its_repetition_pointed_out(tmp_path, capsys):
    path = str(write_results(tmp_path / "r.jsonl", STEADY, [1, 8]))
    ledger = tmp_path / "ledger.jsonl"
    call("compare", path, "k3", "off", "--ledger", str(ledger), "--question", "K = 3?")
    first = capsys.readouterr()
    assert first.out.startswith("k3 is faster than off at load 1; slower than off at load 8.")
    assert first.err == ""
    call("compare", path, "k3", "off", "--ledger", str(ledger), "--question", "K = 3?")
    assert "decided before" in capsys.readouterr().err
    rows = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert len(rows) == 2 and rows[0]["evidence"]["8"].startswith("0.750x") and rows[0]["machine"].startswith("abacus")


def test_comparing_an_arm_that_is_not_there_names_those_that_are(tmp_path):
    path = write_results(tmp_path / "r.jsonl", STEADY, [1, 8])
    with pytest.raises(OverdriveError, match=r"no measured arm 'k9'.*off, k3"):
        call("compare", str(path), "k9", "off")


def test_a_line_that_lacks_something_is_said_in_one_line(tmp_path):
    path = write_results(tmp_path / "r.jsonl", STEADY, [1, 8])
    path.write_text(path.read_text().replace('"first"', '"last"', 1).replace('"start"', '"begin"', 1))
    with pytest.raises(OverdriveError, match="a line lacks"):
        read_results(path)


@pytest.mark.parametrize("text", ["", "hello", '{"type": "run"}\n', "[1]\n"])
def test_another_file_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(OverdriveError, match="not a file of results"):
        call("report", str(tmp_path / "x.jsonl"))


def test_the_steady_part_begins_with_the_last_first_token_and_ends_with_the_first_idle_user():
    """Two users, four answers of 11 tokens:

    user 1: |0 ==== 10|10 ==== 20|
    user 2: |    2 ==== 12|12 ==== 22|     steady: 2 .. 20, 10 tokens in 10 s and user
    """
    spans = [(0, 10), (2, 12), (10, 20), (12, 22)]
    samples = [Sample("plain", 11, begin, begin + 1e-9, end, 1, 11) for begin, end in spans]
    told = figures(Measured("a", 2, 0, samples, seconds=22), closed=True)
    assert (told.steady, round(told.window, 6)) == (True, 18)
    assert told.tokens_per_s == pytest.approx((36 + 3) / 18)
    assert told.users == pytest.approx(2)


def test_tokens_are_spread_evenly_between_first_and_last():
    sample = Sample("plain", 11, 0.0, 10.0, 20.0, 1, 11)
    assert tokens_within(sample, 0, 30) == 11
    assert tokens_within(sample, 0, 10) + tokens_within(sample, 10.0001, 30) == pytest.approx(11, abs=1e-3)


def test_quantiles_are_values_that_were_seen():
    told = quantiles([float(value) for value in range(1, 101)])
    assert (told.p50, told.p95, told.p99) == (50, 95, 99)


@pytest.mark.parametrize("span", [(0, 1), (0.93, 1.61), (0, 812.5), (-0.1, 0.2), (3, 3)])
def test_ticks_are_round_and_within(span):
    marks = ticks(*span)
    assert 1 <= len(marks) <= 7 and all(span[0] - 1e-9 <= mark <= span[1] + 1e-9 for mark in marks)
