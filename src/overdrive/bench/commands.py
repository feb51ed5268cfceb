"""`overdrive bench`: what the command line offers, and from its words to jobs. Heavy imports wait for their use."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from overdrive.api_keys import client_key
from overdrive.bench.options import BenchOptions, check, parse_loads
from overdrive.errors import OverdriveError

if TYPE_CHECKING:
    from overdrive.bench.plan import Maker
    from overdrive.bench.run import Job

EXAMPLES = """
Examples:
  overdrive bench sweep http://127.0.0.1:8000 --prompts question.jsonl --concurrency 1,2,4,8 \\
    --arm off='{"speculation": {"enabled": false}}' --arm k3='{"speculation": {"max_drafts": 3}}' --arm auto='{}'
  overdrive bench sweep http://127.0.0.1:8000 --arm off=@off --arm k1=@fixed:1 --arm k3=@fixed:3 --arm auto=@auto
  overdrive bench sweep --arm ours=http://127.0.0.1:8000 --arm theirs=http://127.0.0.1:9000
  overdrive bench trace http://127.0.0.1:8000 --trace AzureLLMInferenceTrace_conv.csv --speed 0.5 --requests 100
  overdrive bench report bench-20260101-120000.jsonl
  overdrive bench compare bench-20260101-120000.jsonl k3 off --ledger decisions.jsonl
"""

bench = App(
    name="bench",
    help="Measure any OpenAI-compatible server: arms take turns; a difference within the spread is no win.",
    help_format="plaintext",
    help_epilogue=EXAMPLES,
    default_parameter=Parameter(negative_iterable=()),
)
Url = Annotated[str, Parameter(help="Address of the server; may be left out when every arm names its own.")]
Common = Annotated[BenchOptions, Parameter(name="*", group="Measurement")]


@bench.command
def sweep(
    url: Url = "",
    /,
    *,
    concurrency: str = "1,2,5,10,30,70,100,250",
    rounds: int = 4,
    least: int = 8,
    common: Common = BenchOptions(),
) -> None:
    """Measure at several loads; at each, a constant number of users ask one request after the other.

    Parameters
    ----------
    concurrency:
        Users at once, such as 1,2,4,8.
    rounds:
        Requests per user in a turn of an arm.
    least:
        Requests in a turn, at least.
    """
    loads, maker = parse_loads(concurrency, "--concurrency"), _maker(common)
    if min(rounds, least) < 1:
        raise OverdriveError("--rounds and --least must be above 0")
    from overdrive.bench.load import closed

    asks = {float(users): maker.several(max(least, rounds * users)) for users in loads}
    settings = {"rounds": rounds, "least": least}
    job = _job("sweep", url, common, maker, asks, lambda load, some, send: closed(some, round(load), send), settings)
    _run(_foreseen(job))


@bench.command
def mixture(
    url: Url = "",
    /,
    *,
    concurrency: str = "8",
    sampled: float = 0.25,
    constrained: float = 0.0,
    long: float = 0.25,
    long_tokens: int = 2000,
    rounds: int = 8,
    common: Common = BenchOptions(),
) -> None:
    """Like sweep, with several kinds of requests at once.

    Parameters
    ----------
    concurrency:
        Users at once; several loads as 4,16.
    sampled:
        Share of requests at temperature 0.8.
    constrained:
        Share of requests whose answer must be a JSON object (response_format).
    long:
        Share of requests with a long prompt.
    long_tokens:
        Rough length of a long prompt.
    rounds:
        Requests per user in a turn of an arm.
    """
    loads, maker = parse_loads(concurrency, "--concurrency"), _maker(common)
    if min(rounds, long_tokens) < 1:
        raise OverdriveError("--rounds and --long-tokens must be above 0")
    from overdrive.bench.load import closed
    from overdrive.bench.plan import Mixture

    shares = Mixture(sampled, constrained, long, long_tokens)
    asks = {float(users): maker.mixed(rounds * users, shares, common.seed) for users in loads}
    settings = {"rounds": rounds, "mixture": asdict(shares)}
    job = _job("mixture", url, common, maker, asks, lambda load, some, send: closed(some, round(load), send), settings)
    _run(_foreseen(job))


@bench.command
def ramp(
    url: Url = "",
    /,
    *,
    peak: int = 32,
    stage_seconds: float = 10.0,
    common: Common = BenchOptions(),
) -> None:
    """Let users come one doubling after the other, 1 to --peak, and leave again.

    Parameters
    ----------
    peak:
        Users at the peak.
    stage_seconds:
        How long each number of users stays.
    """
    maker = _maker(common)
    if peak < 1 or stage_seconds <= 0:
        raise OverdriveError("--peak and --stage-seconds must be above 0")
    from overdrive.bench.load import ramp as shape
    from overdrive.bench.plan import stages

    levels = stages(peak)
    asks = {float(peak): maker.several(8 * peak)}
    settings = {"levels": levels, "stage_seconds": stage_seconds}
    _run(
        _job("ramp", url, common, maker, asks, lambda _, some, send: shape(some, levels, stage_seconds, send), settings)
    )


@bench.command
def trace(
    url: Url = "",
    /,
    *,
    trace: Path,
    speed: float = 1.0,
    requests: int = 200,
    most_prompt: int = 4000,
    most_output: int = 512,
    common: Common = BenchOptions(),
) -> None:
    """Send requests when a recorded service got them, with about their lengths.

    Parameters
    ----------
    trace:
        Arrivals and lengths: Azure's CSV or Mooncake's JSON lines (.gz too).
    speed:
        2 sends everything twice as fast.
    requests:
        How many from the beginning of the trace.
    most_prompt:
        Longer prompts are cut to so many tokens, roughly.
    most_output:
        Longer answers are cut to so many tokens.
    """
    maker = _maker(common)
    if min(speed, requests, most_prompt, most_output) <= 0:
        raise OverdriveError("--speed, --requests, --most-prompt and --most-output must be above 0")
    from overdrive.bench.load import replay
    from overdrive.bench.traces import clip, read_trace

    arrivals = [clip(one, most_prompt, most_output) for one in read_trace(trace)[:requests]]
    times = [one.seconds / speed for one in arrivals]
    settings = {"trace": trace.name, "speed": speed, "most_prompt": most_prompt, "most_output": most_output}
    asks = {speed: maker.trace(arrivals)}
    _run(_job("trace", url, common, maker, asks, lambda _, some, send: replay(some, times, send), settings))


@bench.command
def report(results: Path, /, *, out: Path | None = None) -> None:
    """Write the report of a file of results again, also of an unfinished run, and print its verdict.

    Parameters
    ----------
    results:
        A .jsonl file that a measurement wrote.
    out:
        The page; by default beside the results.
    """
    from overdrive.bench.outcome import write_report

    write_report(results, out)


@bench.command
def compare(results: Path, arm: str, other: str, /, *, ledger: Path | None = None, question: str = "") -> None:
    """Say whether one arm of a run is faster than another, and keep the answer in a ledger.

    Parameters
    ----------
    results:
        A .jsonl file that a measurement wrote.
    arm:
        The arm in question.
    other:
        The arm it is compared with.
    ledger:
        JSON lines to which the decision is appended; nothing is kept without it.
    question:
        What is being decided, in words.
    """
    from overdrive.bench.ledger import append, earlier
    from overdrive.bench.ledger import compare as decide
    from overdrive.bench.ratios import table
    from overdrive.bench.records import read_results

    decision = decide(table(read_results(results)), arm, other, question, results.name)
    print(decision.verdict)
    for load, ratio in decision.evidence.items():
        print(f"  load {load}: {ratio}")
    if ledger is not None:
        for row in earlier(ledger, decision):
            told = f"{row.get('date')}, commit {row.get('commit') or 'unknown'}: {row.get('verdict')}"
            print(f"overdrive: this was decided before on this machine ({told})", file=sys.stderr)
        append(ledger, decision)


def _maker(common: BenchOptions) -> Maker:
    """Checks the common options and reads the prompts."""
    check(common)
    from overdrive.bench.arms import parse_body
    from overdrive.bench.plan import Maker
    from overdrive.bench.prompts import read_source

    source = read_source(common.prompts, common.seed, common.prompt_tokens)
    return Maker(source, common.endpoint, common.max_tokens, parse_body(common.body, "--body"))


def _job(
    mode: str, url: str, common: BenchOptions, maker: Maker, asks: Any, shape: Any, settings: dict[str, Any]
) -> Job:
    from overdrive.bench.arms import parse_arms
    from overdrive.bench.run import Job
    from overdrive.bench.setting import setting

    if not url and not common.arm:
        raise OverdriveError("which server? Give its address, such as http://127.0.0.1:8000, or arms with one each")
    common_settings = {
        "prompts": maker.source.name,
        "max_tokens": common.max_tokens,
        "body": maker.common,
        "endpoint": common.endpoint,
        "seed": common.seed,
    }
    facts = {"mode": mode, **setting(), "settings": {**common_settings, **settings}}
    arms = parse_arms(common.arm, url)
    key = client_key(common.api_key, common.api_key_file)
    return Job(arms, asks, shape, common.repeats, common.model, common.timeout, key, facts, common.out)


def _foreseen(job: Job) -> Job:
    """The job, which will say how much it is."""
    from overdrive.bench.plan import outlook

    return replace(job, outlook=outlook(len(job.arms), job.asks.values(), job.repeats))


def _run(job: Job) -> None:
    """Measures, then reports what there is. Raises OverdriveError for a run that ended early, behind its report."""
    from overdrive.bench.display import Display
    from overdrive.bench.outcome import write_report
    from overdrive.bench.records import Writer
    from overdrive.bench.run import measure

    path = job.out or Path(f"bench-{datetime.now():%Y%m%d-%H%M%S}.jsonl")
    with Display() as display:
        why = asyncio.run(_heeding_sigterm(measure(job, lambda: Writer(path), display)))
    write_report(path)
    if why:
        raise OverdriveError(f"{why}; what was measured by then is in {path}, marked as unfinished")


async def _heeding_sigterm(run: Coroutine[None, None, str]) -> str:
    """What the run returns. SIGTERM interrupts it as Ctrl-C does: no server is left speculating as the last arm did."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError):  # on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run
