"""Acceptance of drafts by the engine on real prompts: per category, per position, and tokens per round.

Run: PYTHONPATH=src python benchmarks/acceptance.py --prompts spec_bench/question.jsonl [--draft eagle3] [--drafts 3]
     [--temperature 0] [--new 128] [--per-category 40] [--draft-model FOLDER] [--precision auto]

Prompts are JSON lines with `category` and `turns` (or `prompt`); every turn is asked, with the model's own answers
between. Rows longer than --most-prompt tokens are left out, loudly. Seeds are the lines' numbers. Counts are those that
the engine reports: a draft counts at a position only if all before it were right. The mean gives every category the
same weight.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from overdrive.completion import Completion
from overdrive.llm import LLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--draft", default="eagle3")
    parser.add_argument("--draft-model", default="")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--per-category", type=int, default=40)
    parser.add_argument("--most-prompt", type=int, default=3000)
    parser.add_argument("--without", nargs="*", default=["translation"], help="categories left out of the mean")
    options = parser.parse_args()
    rows = read(options.prompts, options.per_category)
    names = {"draft": options.draft, "drafts": options.drafts, "draft_model": options.draft_model}
    names["precision"] = options.precision
    with LLM(options.model, progress=False, **names) as llm:
        answers = ask(llm, rows, options)
    show(answers, options)


def read(path: Path, most: int) -> list[tuple[int, str, list[str]]]:
    """(number, category, turns) of at most `most` lines of each category."""
    seen: dict[str, int] = defaultdict(int)
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        raw = json.loads(line)
        category = raw.get("category", "all")
        seen[category] += 1
        if seen[category] <= most:
            rows.append((number, category, raw.get("turns") or [raw["prompt"]]))
    return rows


def ask(llm: LLM, rows: list[tuple[int, str, list[str]]], options: argparse.Namespace) -> dict[str, list[Completion]]:
    """Answers by category, first turns of all rows before the second ones."""
    chats = [(number, category, turns, []) for number, category, turns in rows]
    answers: dict[str, list[Completion]] = defaultdict(list)
    params = {"max_tokens": options.new, "temperature": options.temperature}
    for turn in range(max(len(turns) for _, _, turns in rows)):
        going = [chat for chat in chats if len(chat[2]) > turn]
        for begin in track(range(0, len(going), 32), f"turn {turn + 1}"):
            part = going[begin : begin + 32]
            for _, _, turns, messages in part:
                messages.append({"role": "user", "content": turns[turn]})
            seeds = [{**params, "seed": number} for number, *_ in part]
            for (_, category, _, messages), got in zip(part, llm.chat([m for *_, m in part], each=seeds), strict=True):
                messages.append({"role": "assistant", "content": got.text})
                answers[category].append(got)
    return answers


def show(answers: dict[str, list[Completion]], options: argparse.Namespace) -> None:
    kind = "greedy" if options.temperature == 0 else f"temperature {options.temperature:g}"
    table = Table(title=f"{options.draft}, {options.drafts} drafts, {kind}")
    for name in ("category", *(f"draft {k + 1}" for k in range(options.drafts)), "tokens/round", "tokens"):
        table.add_column(name, justify="left" if name == "category" else "right")
    lines = {category: summary(got, options.drafts) for category, got in sorted(answers.items())}
    for category, (rates, per_round, tokens) in lines.items():
        table.add_row(category, *(f"{rate:.3f}" for rate in rates), f"{per_round:.2f}", str(tokens))
    counted = [line for category, line in lines.items() if category not in options.without]
    means = [sum(line[0][k] for line in counted) / len(counted) for k in range(options.drafts)]
    per_round = sum(line[1] for line in counted) / len(counted)
    name = "mean" + (f" without {', '.join(options.without)}" if options.without else "")
    table.add_row(name, *(f"{rate:.3f}" for rate in means), f"{per_round:.2f}", "")
    Console(width=120).print(table)


def summary(answers: list[Completion], drafts: int) -> tuple[list[float], float, int]:
    """Acceptance of each position where it was reached, tokens per round, tokens; the first token is the prompt's."""
    offered, accepted = [0] * drafts, [0] * drafts
    rounds = tokens = 0
    for answer in answers:
        rounds += answer.drafts.rounds - 1
        tokens += len(answer.token_ids) - 1
        for report in answer.drafts.sources.values():
            for k, count in enumerate(report.accepted[:drafts]):
                accepted[k] += count
                offered[k] += min(report.offered[k], report.accepted[k - 1]) if k else report.offered[0]
    return [a / max(1, o) for a, o in zip(accepted, offered, strict=True)], tokens / max(1, rounds), tokens


if __name__ == "__main__":
    main()
