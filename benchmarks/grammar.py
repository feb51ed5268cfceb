"""What constraints cost, and what they give back: streams, forced tokens, hostile grammars.

Run: PYTHONPATH=src python benchmarks/grammar.py streams [--rows 1 16 64] [--arms off auto] [--tokens 48]
         [--pairs 40] [--seconds 220]
         [--model llama-3.1-8b --load-format dummy --tokenizer SMOLLM2.gguf --draft none]
     PYTHONPATH=src python benchmarks/grammar.py forced --bfcl FOLDER [--count 40]
     PYTHONPATH=src python benchmarks/grammar.py hostile

streams: constrained streams over free ones of the same lengths, by turns in one engine, in pairs whose order turns too:
the ratio is that of the two of a pair, so that a machine whose speed changes changes both. Told are the median of all
pairs, its 95 % interval (order statistics) and the quartiles. Each row count and arm takes --seconds at most, loading
aside; runs of few --tokens give more pairs. forced: tokens per round on
tool calls with and without what grammars make certain among the drafts; FOLDER is that of the Berkeley Function-Calling
Leaderboard's questions. hostile: a plain stream's pace while grammars compile that were made to be expensive.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from overdrive import LLM
from overdrive.draft.forced import ForcedRuns
from overdrive.engine import Engine
from overdrive.heap import freeze_heap
from overdrive.llm import Parameters
from overdrive.loop import LoopTimes
from overdrive.types import FinishReason, GrammarSpec, SamplingParams

Request = tuple[list[int], SamplingParams]


# -- forced tokens -----------------------------------------------------------------------------------------------------

TYPES = {"dict": "object", "float": "number", "double": "number", "tuple": "array", "list": "array", "String": "string"}
KNOWN = {"object", "number", "array", "string", "integer", "boolean", "null"}


def as_schema(node: Any) -> Any:
    """BFCL's own types as those of JSON Schema; what is none stands for anything."""
    if isinstance(node, list):
        return [as_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: as_schema(value) for key, value in node.items() if key not in ("default", "optional")}
    kind = found.get("type")
    if isinstance(kind, str):
        found["type"] = TYPES.get(kind, kind)
        if found["type"] not in KNOWN:
            del found["type"]
    return found


def conversations(folder: Path, count: int) -> Iterator[tuple[list[dict], list[dict]]]:
    """First turns and their tools."""
    for name in ("simple_python", "multiple", "live_simple"):
        with gzip.open(folder / "questions" / f"{name}.jsonl.gz", "rt") as file:
            for line, _ in zip(file, range(count), strict=False):
                raw = json.loads(line)
                tools = [
                    {
                        "type": "function",
                        "function": {
                            "name": tool["name"].replace(".", "_"),
                            "description": tool["description"],
                            "parameters": {**as_schema(tool["parameters"]), "additionalProperties": False},
                        },
                    }
                    for tool in raw["function"]
                ]
                yield raw["question"][0], tools


def forced(args: argparse.Namespace, console: Console) -> None:
    """Tokens per round of every arm over the same conversations."""
    given: dict[str, Any] = {"draft": args.draft, "drafts": args.drafts, "overlap": args.overlap}
    given["speculation"] = "fixed"
    with LLM(args.model, max_rows=4, kv_tokens=16384, progress=False, **given) as llm:
        runner = llm._engine._loop._runner
        runs, totals = runner._forced, {True: [0, 0], False: [0, 0]}
        texts: dict[bool, list[str]] = {True: [], False: []}
        for turn, tools in track(list(conversations(args.bfcl, args.count)), console=console):
            for certain in (True, False):
                runner._forced = runs if certain else ForcedRuns(len(runs.following), 0)
                before = llm._engine.stats()
                [answer] = llm.chat(turn, tools=tools, tool_choice="required", temperature=0, max_tokens=args.tokens)
                while not llm._engine.idle:  # a step that was launched before its end was known
                    llm._engine.advance()
                after = llm._engine.stats()
                totals[certain][0] += after.generated - before.generated - 1
                totals[certain][1] += after.rounds - before.rounds - 1
                texts[certain].append(answer.text + "".join(f"{c.name}{c.arguments}" for c in answer.tool_calls))
        rates = {certain: tokens / rounds for certain, (tokens, rounds) in totals.items()}
        assert texts[True] == texts[False]
        console.print(f"{args.draft}, K {args.drafts}: {rates[False]:.2f} tokens a round without what is certain,")
        console.print(f"{rates[True]:.2f} with it: x {rates[True] / rates[False]:.2f}, {totals[True][0]} tokens")


# -- streams -----------------------------------------------------------------------------------------------------------

PEOPLE = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "home": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "string"}}},
            "likes": {"type": "array", "items": {"enum": ["music", "food", "sport", "books"]}},
        },
        "required": ["name", "age", "home"],
    },
    "minItems": 50,
}
TOPICS = ("sailors", "painters", "farmers", "pilots", "cooks", "singers", "doctors", "bakers")


def _prompt(llm: LLM, said: str) -> list[int]:
    return llm._turn([{"role": "user", "content": said}], None, Parameters()).prompt


def timed(engine: Engine, requests: Sequence[Request]) -> float:
    """Tokens a second of requests that start together, from the first token of the last of them on."""
    running = {str(number): 0 for number in range(len(requests))}
    for number, (prompt, params) in enumerate(requests):
        engine.submit(str(number), prompt, params)
    started, tokens = 0.0, 0
    while not engine.idle:
        for delta in engine.advance():
            running[delta.request.id] += len(delta.tokens)
            if delta.finish is not None and delta.finish.reason is not FinishReason.LENGTH:
                raise RuntimeError(f"an answer ended too soon: {delta.finish}")
            if started:
                tokens += len(delta.tokens)
        if not started and all(running.values()):
            started = time.perf_counter()
    return tokens / (time.perf_counter() - started)


def streams(args: argparse.Namespace, console: Console) -> None:
    """Constrained over free streams, for each arm and number of rows."""
    for arm in args.arms:
        given: dict[str, Any] = {"draft": args.draft, "drafts": args.drafts, "overlap": args.overlap}
        given |= {"speculation": arm, "max_rows": max(args.rows), "kv_tokens": max(args.rows) * 512}
        given |= {"load_format": args.load_format, "tokenizer": args.tokenizer, "chat_template": args.chat_template}
        with LLM(args.model, progress=False, **given) as llm:
            prompts = [_prompt(llm, f"List {topic} as JSON.") for topic in TOPICS]
            freeze_heap()  # as in the engine's own process: a full collection takes as long as 40 steps
            for rows in args.rows:
                chosen = [prompts[row % len(prompts)] for row in range(rows)]
                before = replace(llm._engine._loop.times)
                pairs = _pairs(llm, chosen, args)
                masks = _masks_of_a_step(before, llm._engine._loop.times)
                console.print(f"{arm}, {rows} rows: {told(pairs)}; masks {1e3 * masks:.2f} ms a constrained step")


def _pairs(llm: LLM, prompts: Sequence[list[int]], args: argparse.Namespace) -> list[tuple[float, float]]:
    """Tokens a second of constrained and of free streams, pair by pair; the first pair finds cold caches."""
    free = SamplingParams(max_tokens=args.tokens, temperature=0.0)
    spec = GrammarSpec("json_schema", json.dumps(PEOPLE))
    held = replace(free, grammar=spec, stop_token_ids=llm.info.eos_ids)
    pairs: list[tuple[float, float]] = []
    until = time.perf_counter() + args.seconds
    for turn in range(1 + args.pairs):
        order = (held, free) if turn % 2 else (free, held)
        found = {params: timed(llm._engine, [(prompt, params) for prompt in prompts]) for params in order}
        if turn:
            pairs.append((found[held], found[free]))
            taken = (args.seconds - (until - time.perf_counter())) / (turn + 1)
            if time.perf_counter() + taken > until:
                break
    return pairs


def _masks_of_a_step(before: LoopTimes, after: LoopTimes) -> float:
    """Seconds, of the steps between: about half of them are constrained."""
    return 2 * (after.masked - before.masked) / (after.steps - before.steps)


def told(pairs: Sequence[tuple[float, float]]) -> str:
    """The median ratio, its interval and the spread, in words."""
    found = sorted(held / free for held, free in pairs)
    held, free = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    least, most = interval(found)
    low, middle, high = statistics.quantiles(found, n=4) if len(found) > 1 else found * 3
    return (
        f"constrained {held:.0f} tokens/s, free {free:.0f}, ratio {middle:.3f} (95 % of it {least:.3f} .. {most:.3f}, "
        f"quartiles {low:.3f} .. {high:.3f}, {len(found)} pairs)"
    )


def interval(found: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, of sorted values: as many of each end are left out as a fair coin allows. All of
    them where there are fewer than six, which is too few to say."""
    outside, tail = 0, 0.5 ** len(found)
    while outside < len(found) // 2 and tail + math.comb(len(found), outside + 1) * 0.5 ** len(found) <= 0.025:
        outside += 1
        tail += math.comb(len(found), outside) * 0.5 ** len(found)
    return found[outside], found[-1 - outside]


# -- hostile grammars --------------------------------------------------------------------------------------------------


def hostile_grammars() -> dict[str, GrammarSpec]:
    """Deep, wide, turning in circles, and a pattern that backtracking matchers choke on."""
    deep: Any = {"type": "string"}
    for level in range(60):
        deep = {"type": "object", "properties": {f"k{level}": deep}, "required": [f"k{level}"]}
    rng = random.Random(0)
    wide = {"enum": ["".join(rng.choices("abcdefghij klmnop", k=20)) for _ in range(20_000)]}
    node = {"type": "object", "properties": {"x": {"$ref": "#/$defs/b"}, "y": {"$ref": "#/$defs/a"}}}
    other = {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}}
    circles = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [node, {"$ref": "#/$defs/b"}]}, "b": other}}
    schemas = {"deep": deep, "wide": wide, "circles": circles}
    specs = {name: GrammarSpec("json_schema", json.dumps(schema)) for name, schema in schemas.items()}
    return specs | {"pattern": GrammarSpec("regex", "((a+)+b?){1,50}(.*a.{40}){4}!")}


def hostile(args: argparse.Namespace, console: Console) -> None:
    """Seconds between the tokens of a plain stream, alone and beside four hostile requests."""
    given: dict[str, Any] = {"draft": args.draft, "drafts": args.drafts, "overlap": args.overlap}
    with LLM(args.model, max_rows=8, kv_tokens=16384, progress=False, **given) as llm:
        prompt = _prompt(llm, "Tell a long story.")
        plain = SamplingParams(max_tokens=400, temperature=0.0)
        for name, others in (("alone", {}), ("beside hostile grammars", hostile_grammars())):
            console.print(f"{name}: " + _pace(llm, prompt, plain, others))


def _pace(llm: LLM, prompt: list[int], plain: SamplingParams, others: dict[str, GrammarSpec]) -> str:
    engine, ends = llm._engine, {}
    engine.submit("plain", prompt, plain)
    stamps: list[float] = []
    started = time.perf_counter()
    while not engine.idle:
        for delta in engine.advance():
            if delta.request.id == "plain":
                stamps += [time.perf_counter()] * len(delta.tokens)
            if delta.finish is not None:
                ends[delta.request.id] = (delta.finish.reason.value, time.perf_counter() - started)
        if len(stamps) >= 20:
            for name, spec in others.items():
                held = SamplingParams(max_tokens=40, temperature=1.0, grammar=spec, stop_token_ids=llm.info.eos_ids)
                engine.submit(name, prompt, held)
            others = {}
    rate = (len(stamps) - 21) / (stamps[-1] - stamps[20])
    longest = max(b - a for a, b in itertools.pairwise(stamps))
    told = ", ".join(f"{name} {reason} after {seconds:.1f} s" for name, (reason, seconds) in ends.items())
    return f"{rate:.1f} tokens/s, longest gap {1e3 * longest:.0f} ms; {told}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["streams", "forced", "hostile"])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--load-format", default="auto", help="dummy: random weights, of a model by name or config.json"
    )
    parser.add_argument("--tokenizer", default="", help="of streams, where the model has none")
    parser.add_argument("--chat-template", default="", help="the same")
    parser.add_argument("--draft", default="eagle3")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--arms", nargs="+", default=["off", "auto"], help="of --speculation")
    parser.add_argument("--pairs", type=int, default=40, help="of runs, at most")
    parser.add_argument("--seconds", type=float, default=220.0, help="for each row count and arm, at most")
    parser.add_argument("--overlap", default="auto")
    parser.add_argument("--bfcl", type=Path)
    parser.add_argument("--count", type=int, default=20, help="conversations of each kind")
    parser.add_argument("--tokens", type=int, default=0, help="of an answer; by default 48 of a stream, 120 of a call")
    args = parser.parse_args()
    args.tokens = args.tokens or (48 if args.what == "streams" else 120)
    {"forced": forced, "streams": streams, "hostile": hostile}[args.what](args, Console(width=160))


if __name__ == "__main__":
    main()
