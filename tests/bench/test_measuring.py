"""Laws of a run: every arm gets the same requests, what a server does wrong is said in one line, nothing is lost."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest

from overdrive.bench.arms import parse_arms
from overdrive.bench.client import Sample
from overdrive.bench.commands import bench
from overdrive.bench.load import closed, ramp, replay
from overdrive.bench.plan import Maker, Mixture, Pace, blocks, outlook, stages, time_left
from overdrive.bench.prompts import Source
from overdrive.bench.ratios import table
from overdrive.bench.records import read_results
from overdrive.bench.run import Job, measure
from overdrive.bench.verdict import verdict, warnings
from overdrive.errors import OverdriveError
from tests.patience import within

from .servers import OddServer

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))

from fakes import FakeServer, speak

MAKER = Maker(Source("texts", ["one", "two", "three"]), "chat", 6, {"temperature": 0})


@pytest.fixture
def odd():
    servers: list[OddServer] = []

    def make(**how) -> OddServer:
        servers.append(OddServer(**how))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def fake(tmp_path):
    server = FakeServer(f"ipc://{tmp_path}/engine")
    yield server
    server.close()


def run(path: Path, url: str, *more: str, command: str = "sweep") -> None:
    """`overdrive bench sweep`, small."""
    small = {"--repeats": "1", "--max-tokens": "6", "--prompt-tokens": "4"}
    if command == "sweep":
        small |= {"--concurrency": "2", "--rounds": "2", "--least": "4"}
    given = [word for name, value in small.items() if name not in more for word in (name, value)]
    bench(
        [command, url, *given, *more, "--out", str(path)],
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
    )


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """No wait for an engine's counters (the fake one's never change), no picture (matplotlib is slow to import)."""
    monkeypatch.setattr("overdrive.bench.run.STATS_SECONDS", 0.0)
    monkeypatch.setattr("overdrive.bench.outcome.write_png", lambda *_: False)


@pytest.fixture
def shifting(tmp_path):
    server = FakeServer(f"ipc://{tmp_path}/engine", speculation_control=True)
    yield server
    server.close()


@pytest.fixture
def keyed(tmp_path):
    server = FakeServer(f"ipc://{tmp_path}/engine", speculation_control=True, api_key=("sesame",))
    yield server
    server.close()


OFF, AUTO = """off={"speculation": {"enabled": false}}""", "auto={}"


def test_every_arm_sends_the_same_prompts_in_every_turn(fake, tmp_path):
    run(tmp_path / "r.jsonl", fake.url, "--arm", OFF, "--arm", AUTO, "--repeats", "2", "--concurrency", "1,3")
    told = read_results(tmp_path / "r.jsonl")
    assert (told.ended, told.lost, len(told.blocks)) == ("", 0, 8)
    assert {(block.arm, block.load, block.repeat) for block in told.blocks} == {
        (arm, load, repeat) for arm in ("off", "auto") for load in (1, 3) for repeat in (0, 1)
    }
    for load in (1, 3):
        sent = [sorted(one.prompt_tokens for one in block.samples) for block in told.blocks if block.load == load]
        assert all(prompts == sent[0] for prompts in sent)
    assert all(one.output_tokens == 6 and not one.error for block in told.blocks for one in block.samples)


def test_an_arm_is_fields_of_its_requests(fake, tmp_path):
    run(tmp_path / "r.jsonl", fake.url, "--arm", OFF, "--arm", """k2={"speculation": {"max_drafts": 2}}""")
    assert {submit.params.max_drafts for submit in fake.engine.submits[-8:]} == {0, 2}


def test_a_key_is_in_no_results_and_no_report(keyed, tmp_path, monkeypatch, capsys):
    (tmp_path / "key").write_text("sesame\n")
    run(tmp_path / "a.jsonl", keyed.url, "--api-key-file", str(tmp_path / "key"))
    monkeypatch.setenv("OVERDRIVE_API_KEY", "sesame")
    run(tmp_path / "b.jsonl", keyed.url, "--arm", "off=@off")
    written = [(tmp_path / name).read_text() for name in ("a.jsonl", "a.html", "b.jsonl", "b.html")]
    assert not [text for text in (*written, *capsys.readouterr()) if "sesame" in text]
    with pytest.raises(OverdriveError, match="--api-key-file") as error:
        run(tmp_path / "c.jsonl", keyed.url, "--api-key", "wrong")
    assert "wrong" not in str(error.value)


def test_an_arm_may_be_a_setting_of_the_servers_speculation(shifting, tmp_path):
    """Set for its trial, its warming up and each of its turns; in the end the server is as it was."""
    httpx.put(f"{shifting.url}/speculation", json={"speculation": "fixed:2"})
    shifting.engine.shifts.clear()
    arms = ["--arm", "off=@off", "--arm", 'k1=@fixed:1 {"top_p": 1}', "--repeats", "2"]
    run(tmp_path / "r.jsonl", shifting.url, *arms)
    assert shifting.engine.shifts == [*(["off", "fixed:1"] * 3), "fixed:1", "off", "fixed:2"]
    assert {submit.params.top_p for submit in shifting.engine.submits} == {1.0}


def test_a_server_that_lets_nobody_set_its_speculation_is_named(fake, odd, tmp_path):
    for url, said in ((fake.url, "--speculation-control"), (odd().url, "does not say how it speculates")):
        with pytest.raises(OverdriveError, match=said) as error:
            run(tmp_path / "r.jsonl", url, "--arm", "off=@off")
        assert "\n" not in str(error.value)
        assert not (tmp_path / "r.jsonl").exists()


def test_the_report_stands_beside_the_results(fake, tmp_path, capsys):
    run(tmp_path / "r.jsonl", fake.url, "--arm", OFF, "--arm", AUTO)
    said = capsys.readouterr().out
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert "2 at once: " in said.lower()
    assert "off: the server drafted more than 0 per step" in said  # the fake engine drafts whatever it is asked


def test_a_mixture_holds_its_kinds(fake, tmp_path):
    run(tmp_path / "r.jsonl", fake.url, "--concurrency", "2", "--rounds", "4", "--long-tokens", "30", command="mixture")
    (block,) = read_results(tmp_path / "r.jsonl").blocks
    kinds = [one.kind for one in block.samples]
    assert (kinds.count("sampled"), kinds.count("long"), kinds.count("plain")) == (2, 2, 4)
    assert "<td>sampled</td><td>2</td>" in (tmp_path / "r.html").read_text()


def test_a_trace_keeps_lengths_and_times(fake, tmp_path):
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,20,5"]
    rows.append("2023-11-16 18:17:04.1799600,500,9")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    more = ["--trace", str(tmp_path / "t.csv"), "--speed", "4", "--most-prompt", "10"]
    run(tmp_path / "r.jsonl", fake.url, *more, command="trace")
    (block,) = read_results(tmp_path / "r.jsonl").blocks
    first, second = sorted(block.samples, key=lambda one: one.start)
    assert (first.output_tokens, second.output_tokens) == (5, 9)
    assert second.start > 0.0499  # from the turn's beginning; the first may be late on a busy machine


def test_a_ramp_is_drawn_over_time(fake, tmp_path):
    run(tmp_path / "r.jsonl", fake.url, "--peak", "2", "--stage-seconds", "0.1", command="ramp")
    assert "over the first turn" in (tmp_path / "r.html").read_text()


def test_users_of_a_ramp_come_and_go():
    assert stages(12) == [1, 2, 4, 8, 12, 8, 4, 2, 1]
    assert stages(1) == [1]

    def most_at_once(seconds):
        now = most = 0

        async def send(ask):
            nonlocal now, most
            now, most = now + 1, max(most, now + 1)
            await asyncio.sleep(seconds / 10)
            now -= 1

        asyncio.run(ramp(MAKER.several(2), [1, 3, 1], seconds, send))
        assert now == 0 and most <= 3
        return most

    assert within(0.02, lambda seconds: most_at_once(seconds) == 3)


@pytest.mark.parametrize("shape", [lambda asks, send: closed(asks, 3, send), lambda a, s: replay(a, [0.0] * 9, s)])
def test_every_request_of_a_load_is_sent_once(shape):
    asks, sent = MAKER.several(9), []

    async def send(ask):
        await asyncio.sleep(0)
        sent.append(id(ask))

    asyncio.run(shape(asks, send))
    assert sorted(sent) == sorted(map(id, asks))


@pytest.mark.parametrize(
    ("how", "more", "said"),
    [
        ({"models": []}, [], "is no OpenAI-compatible server"),
        ({"models": ["a", "b"]}, [], "choose with --model: a, b"),
        ({"models": ["a"]}, ["--model", "c"], "no model 'c'"),
        ({"reject": lambda body: "speculation: unknown" if "speculation" in body else ""}, ["--arm", OFF], "arm off"),
    ],
)
def test_a_server_that_cannot_be_measured_is_refused_in_one_line(odd, tmp_path, how, more, said):
    with pytest.raises(OverdriveError, match=said) as error:
        run(tmp_path / "r.jsonl", odd(**how).url, *more)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"tokens": 9}, "ignores max_tokens"),
        ({"usage": False}, "sends no usage"),
        ({}, "accepts fields that do not exist"),
    ],
)
def test_what_a_server_ignores_is_said(odd, tmp_path, how, said):
    run(tmp_path / "r.jsonl", odd(**how).url, "--arm", OFF)
    told = table(read_results(tmp_path / "r.jsonl"))
    assert any(said in line for line in warnings(told))


def test_an_honest_server_is_not_accused(odd, tmp_path):
    run(tmp_path / "r.jsonl", odd().url, "--repeats", "3", "--rounds", "9")
    assert not read_results(tmp_path / "r.jsonl").notes


def test_a_server_that_is_not_there_is_said_in_words(tmp_path):
    with socket.socket() as held:  # bound and never listening
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(OverdriveError, match=rf"^no server answers at {url} \(connection refused\)$"):
            run(tmp_path / "r.jsonl", url, "--arm", OFF)
        with pytest.raises(OverdriveError, match=rf"^no server answers at {url} \(connection refused\)$"):
            run(tmp_path / "r.jsonl", url, "--arm", "off=@off")


def test_a_server_that_dies_leaves_marked_results(odd, tmp_path):
    """A trial, 4 of warming up and a first turn of 4 requests; the second turn never ends."""
    with pytest.raises(OverdriveError, match=r"stopped answering.*r\.jsonl"):
        run(tmp_path / "r.jsonl", odd(dies_after=11).url, "--repeats", "3")
    told = read_results(tmp_path / "r.jsonl")
    assert len(told.blocks) == 1
    assert "stopped answering" in told.ended
    assert told.lost >= 1
    assert verdict(table(told))[0].startswith("Unfinished: the server at http")
    assert "Unfinished" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_whole_blocks(fake, tmp_path, number):
    """It comes with the 30th request: a trial, 4 of warming up, and turns of 4."""

    def script(submit):
        if len(fake.engine.submits) == 30:
            os.kill(os.getpid(), number)
        return speak(submit)

    fake.engine.script = script
    with pytest.raises(OverdriveError, match="interrupted"):
        run(tmp_path / "r.jsonl", fake.url, "--repeats", "1000")
    told = read_results(tmp_path / "r.jsonl")
    assert told.ended == "the run was interrupted"
    assert 0 < len(told.blocks) <= 7


def test_requests_that_fail_are_counted_and_named(odd, tmp_path):
    count = 0

    def sometimes(body):
        nonlocal count
        count += 1
        return "no room" if count % 4 == 0 else ""

    run(tmp_path / "r.jsonl", odd(reject=sometimes).url)
    told = table(read_results(tmp_path / "r.jsonl"))
    assert any("1 of 4 requests failed, most often with: HTTP 400: no room" in line for line in warnings(told))


def test_results_are_never_overwritten(fake, tmp_path):
    (tmp_path / "r.jsonl").write_text("precious")
    with pytest.raises(OverdriveError, match="exists"):
        run(tmp_path / "r.jsonl", fake.url)
    assert (tmp_path / "r.jsonl").read_text() == "precious"


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        (["off"], "NAME="),
        (["off={"], "not valid JSON"),
        (["off=[1]"], "JSON object"),
        (['off={"stream": false}'], "set by the bench"),
        (["a={}", "a={}"], "twice"),
        (["a=http://:9x {}"], "not the address"),
        (["a=@off", "b={}"], "say @SETTING"),
    ],
)
def test_a_wrong_arm_is_named(arms, said):
    with pytest.raises(OverdriveError, match=said):
        parse_arms(arms, "http://x")


def test_an_arm_may_have_a_server_and_fields():
    (arm,) = parse_arms(['b=http://y:1/v1/ {"top_p": 1}'], "")
    assert (arm.name, arm.url, arm.body) == ("b", "http://y:1", {"top_p": 1})
    (arm,) = parse_arms(['b=http://y:1/v1/ @fixed:3 {"top_p": 1}'], "")
    assert (arm.url, arm.speculation, arm.body) == ("http://y:1", "fixed:3", {"top_p": 1})


def test_shares_of_a_mixture_above_one_are_refused():
    with pytest.raises(OverdriveError, match="shares"):
        Mixture(sampled=0.7, long=0.4).kinds(10, 0)
    assert math.isclose(Mixture(sampled=0.5).kinds(10, 0).count("sampled"), 5)


@pytest.mark.parametrize("row", ['{"turns": ["hi", "x"]}', '{"messages": [{"role": "user", "content": "hi"}]}'])
def test_prompts_are_found_in_common_shapes(tmp_path, row):
    from overdrive.bench.prompts import read_source

    (tmp_path / "p.jsonl").write_text(f"{row}\n\n{json.dumps({'other': 1})}\n")
    assert list(read_source(tmp_path / "p.jsonl", 0, 0).texts) == ["hi"]


def test_a_run_without_a_terminal_of_its_own_is_a_value(odd):
    """measure() is usable without the command line: nothing is read from the environment."""
    server, said = odd(), []

    class Quiet:
        def block(self, block, total):
            said.append(total)

        def answer(self, sample):
            pass

        def say(self, line):
            pass

    class Kept:
        run = note = request = block = end = lambda *_: None

    job = Job(parse_arms([], server.url), {1.0: MAKER.several(2)}, lambda load, asks, send: closed(asks, 1, send), 1)
    assert asyncio.run(measure(job, Kept, Quiet())) == ""
    assert said == [1]


def test_a_sweep_says_how_much_it_will_be_before_it_begins(tmp_path, fake, capsys):
    run(tmp_path / "out.jsonl", fake.url, "--arm", "a={}", "--arm", "b={}")
    told = capsys.readouterr().err
    assert told.index("8 answers, 48 tokens at most in all") < told.index("block 1 of 2")
    assert "--concurrency" in told


def test_how_much_a_run_is_is_said_before_it_begins():
    asks = [MAKER.several(1000), MAKER.several(1000)]
    assert "60,000 answers, 360,000 tokens at most in all" in outlook(3, asks, 10)


def test_how_long_a_run_takes_follows_from_how_its_arms_answer():
    """Two users who wait 1 s for a first token and 0.5 s for each of five more: a turn of 8 answers is 4 x 3.5 s."""
    arms, asks = parse_arms(("a={}", "b={}"), "http://x"), {2.0: MAKER.several(8), 4.0: MAKER.several(16)}
    samples = [Sample("plain", 6, start, start + 1.0, start + 3.5, 3, 6) for start in (0.0, 0.0, 3.5)]
    slow, lost = Pace.of(samples, 2), Sample("plain", 6, 9.0, 0.0, 99.0, error="lost")
    assert slow == Pace.of([*samples, lost], 2) and Pace.of([lost], 2) is None
    assert slow.seconds(asks[2.0]) == pytest.approx(14.0)
    paces, todo = {"a": slow, "b": Pace(2, 0.5, 0.25)}, list(blocks(arms, [2.0, 4.0], 4))
    assert "at most 4 minutes" in time_left(todo, asks, paces)  # 4 x (14 + 7) and twice that
    assert "at most 14 seconds" in time_left([block for block in todo if block.arm.name == "a"][3:4], asks, paces)


def test_how_long_the_rest_may_take_is_said_at_every_load(fake, tmp_path, capsys):
    run(tmp_path / "r.jsonl", fake.url, "--arm", OFF, "--arm", AUTO, "--concurrency", "1,3")
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("at most", "block"))]
    assert [line.split()[0] for line in said] == ["at", "block", "block"] * 2
