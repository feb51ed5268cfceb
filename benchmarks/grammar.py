"""What constraints cost, and what they give back: streams, forced tokens, hostile grammars.

Run: PYTHONPATH=src python benchmarks/grammar.py streams [--rows 1 16 64] [--model smollm2]
     PYTHONPATH=src python benchmarks/grammar.py forced --bfcl FOLDER [--count 40]
     PYTHONPATH=src python benchmarks/grammar.py hostile

streams: constrained streams over free ones of the same lengths, by turns in one engine. forced: tokens per round on
tool calls with and without what grammars make certain among the drafts; FOLDER is that of the Berkeley Function-Calling
Leaderboard's questions. hostile: a plain stream's pace while grammars compile that were made to be expensive.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from overdrive import LLM
from overdrive.draft.forced import ForcedRuns
from overdrive.types import SamplingParams

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
    with LLM(args.model, drafts=args.drafts, draft=args.draft, max_rows=4, kv_tokens=16384, progress=False) as llm:
        runner = llm._engine._loop._runner
        runs, totals = runner._forced, {True: [0, 0], False: [0, 0]}
        texts: dict[bool, list[str]] = {True: [], False: []}
        for turn, tools in track(list(conversations(args.bfcl, args.count)), console=console):
            for certain in (True, False):
                runner._forced = runs if certain else ForcedRuns(len(runs.following), 0)
                before = llm._engine.stats()
                [answer] = llm.chat(turn, tools=tools, tool_choice="required", temperature=0, max_tokens=args.tokens)
                after = llm._engine.stats()
                totals[certain][0] += after.generated - before.generated - 1
                totals[certain][1] += after.rounds - before.rounds - 1
                texts[certain].append(answer.text + "".join(f"{c.name}{c.arguments}" for c in answer.tool_calls))
        rates = {certain: tokens / rounds for certain, (tokens, rounds) in totals.items()}
        assert texts[True] == texts[False]
        console.print(f"{args.draft}, K {args.drafts}: {rates[False]:.2f} tokens a round without what is certain,")
        console.print(f"{rates[True]:.2f} with it: x {rates[True] / rates[False]:.2f}, {totals[True][0]} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["streams", "forced", "hostile"])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft", default="eagle3")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--bfcl", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=120)
    args = parser.parse_args()
    {"forced": forced}[args.what](args, Console())


if __name__ == "__main__":
    main()
