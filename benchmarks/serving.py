"""SmolLM2 on this machine: output tokens/s of overdrive and of transformers' generate, in one interleaved run.

Run: PYTHONPATH=src python benchmarks/serving.py [--prompts FILE] [--repeats 3] [--arms k0 ngram3 overlap transformers]

Every arm is a process of its own that loads once and then answers the same prompts when its turn comes, one arm at a
time (A B C A B C ...). Greedy, a fixed number of new tokens, end tokens ignored so that all arms write equally much;
the time includes the prompts. The first round of every arm is a warm-up and is not counted. Ratios are of medians.
Prompts: --prompts is Spec-Bench's question.jsonl; without it a few chat prompts of this file are used.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SMOLLM2 = "smollm2"
CHAT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
COPY = ("summarization",)
ARMS = {
    "k0": {"draft": "none", "drafts": 0, "overlap": "off"},
    "ngram3": {"draft": "ngram", "drafts": 3, "overlap": "off"},
    "ngram5": {"draft": "ngram", "drafts": 5, "overlap": "off"},
    "overlap": {"draft": "none", "drafts": 0, "overlap": "on"},
    "int8": {"draft": "none", "drafts": 0, "overlap": "off", "precision": "int8"},
    "transformers": {},
}
FALLBACK = [
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain to a ten-year-old why the sky is blue.",
    "Give me a weekly plan to learn to run five kilometres.",
    "Compare the advantages of trains and aeroplanes for a trip of 600 km.",
]


def read_prompts(path: Path | None, categories: tuple[str, ...], most_chars: int) -> list[str]:
    """First turns of these categories that are not too long, in the file's order."""
    if path is None:
        return FALLBACK
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["turns"][0] for row in rows if row["category"] in categories and len(row["turns"][0]) <= most_chars]


Generate = Callable[[list[list[int]], int], tuple[int, float]]
"""(prompts, new tokens of each) to (output tokens, time when the first of them were there or 0)."""


def code_edits(path: Path) -> list[str]:
    """One prompt for each piece of code: write it again with a small change."""
    pieces = [row.get("code") or row["prompt"] + row["canonical_solution"] for row in map(json.loads, path.open())]
    ask = "Add a docstring to this Python code and write the whole code again, otherwise unchanged:"
    return [f"{ask}\n```python\n{piece.strip()}\n```" for piece in pieces if 300 < len(piece) < 1500]


def open_overdrive(arm: dict) -> tuple[Callable[[str], list[int]], Generate]:
    """Tokeniser and batch generator of this engine."""
    from overdrive.config import DeviceOptions, DraftOptions, EngineOptions, ModelOptions
    from overdrive.engine import build
    from overdrive.text import open_text
    from overdrive.types import SamplingParams

    options = EngineOptions(
        model=ModelOptions(max_model_len=4096, precision=arm.get("precision", "auto")),
        draft=DraftOptions(draft=arm["draft"], drafts=arm["drafts"]),
        device=DeviceOptions(overlap=arm["overlap"]),
    )
    engine = build(SMOLLM2, options, lambda *_: None)
    tokenizer, template = open_text(Path(engine.info.source), options.model)
    served = 0

    def encode(text: str) -> list[int]:
        return tokenizer.encode(template.render([{"role": "user", "content": text}]), False)

    def generate(prompts: list[list[int]], new: int) -> tuple[int, float]:
        nonlocal served
        params = SamplingParams(max_tokens=new, temperature=0.0)
        requests = []
        for prompt in prompts:
            served += 1
            requests.append(engine.submit(str(served), prompt, params))
        first = 0.0
        while not engine.idle:
            engine.advance()
            first = first or time.perf_counter() * any(request.output_len for request in requests)
        return sum(request.output_len for request in requests), first

    return encode, generate


def open_transformers(_: dict) -> tuple[Callable[[str], list[int]], Generate]:
    """The same weights, dequantised to float32, in transformers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from overdrive.machine import usable_cores
    from overdrive.model.assemble import expected_shapes
    from overdrive.model.gguf import GGUFCheckpoint
    from overdrive.model.smollm2 import smollm2_path
    from overdrive.text import load_chat_template, load_tokenizer

    torch.set_num_threads(usable_cores())
    path = smollm2_path(lambda *_: None)
    tokenizer = load_tokenizer(path)
    template = load_chat_template(path, tokenizer)
    file = GGUFCheckpoint(path)
    c = file.config
    shape = LlamaConfig(
        vocab_size=c.vocab, hidden_size=c.hidden, intermediate_size=c.mlp, num_hidden_layers=c.layers,
        num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, max_position_embeddings=c.max_positions,
        rms_norm_eps=c.norm_eps, rope_parameters={"rope_type": "default", "rope_theta": c.rope.theta},
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(shape).eval()
    weights = {name: file.tensor(name).float() for name in expected_shapes(c)}
    model.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})

    def encode(text: str) -> list[int]:
        return tokenizer.encode(template.render([{"role": "user", "content": text}]), False)

    def generate(prompts: list[list[int]], new: int) -> tuple[int, float]:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0
            )
        return int((out.shape[1] - width) * len(prompts)), 0.0

    return encode, generate


def work(name: str) -> None:
    """A worker: one line of JSON in, one line of JSON out."""
    opened = open_transformers(ARMS[name]) if name == "transformers" else open_overdrive(ARMS[name])
    encode, generate = opened
    print(json.dumps({"ready": name}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        prompts = [encode(text) for text in job["texts"]]
        started = time.perf_counter()
        tokens, first = generate(prompts, job["new"])
        ended = time.perf_counter()
        found = {"tokens": tokens, "seconds": ended - started, "decoding": ended - first if first else 0.0}
        print(json.dumps(found), flush=True)


class Worker:
    """An arm in its own process."""

    def __init__(self, name: str) -> None:
        self.name = name
        command = [sys.executable, __file__, "--work", name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def _read(self) -> dict:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"the arm {self.name} ended early")

    def run(self, texts: list[str], new: int) -> dict:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"texts": texts, "new": new}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def sweep(workers: list[Worker], loads: list[int], prompts: list[str], new: int, repeats: int) -> list[dict]:
    """Every arm at every load, interleaved; each repeat takes other prompts, the same ones for all arms."""
    rows = []
    for load in loads:
        for repeat in range(repeats + 1):
            texts = [prompts[(repeat * load + i) % len(prompts)] for i in range(load)]
            for worker in workers:
                found = worker.run(texts, new if repeat else 8)
                if repeat:
                    rows.append({"arm": worker.name, "load": load, "repeat": repeat, **found})
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def report(title: str, rows: list[dict], base: str) -> None:
    """Median tokens/s by arm and load, spread, and the ratio to `base`."""
    print(f"\n{title}")
    head = f"{'load':>5} {'arm':>13} {'tok/s':>8} {'min':>8} {'max':>8} {'x ' + base:>15}"
    print(f"{head} {'ms/token behind the first, one stream':>39}")
    for load in sorted({row["load"] for row in rows}):
        rates: dict[str, list[float]] = {}
        decoding: dict[str, list[float]] = {}
        for row in rows:
            if row["load"] == load:
                rates.setdefault(row["arm"], []).append(row["tokens"] / row["seconds"])
                decoding.setdefault(row["arm"], []).append(1e3 * row["decoding"] * load / (row["tokens"] - load))
        for arm, found in rates.items():
            median = statistics.median(found)
            ratio = median / statistics.median(rates[base]) if base in rates else float("nan")
            print(
                f"{load:>5} {arm:>13} {median:>8.1f} {min(found):>8.1f} {max(found):>8.1f} "
                f"{ratio:>15.2f} {statistics.median(decoding[arm]):>39.1f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--arms", nargs="+", default=["k0", "ngram3", "overlap", "transformers"], choices=sorted(ARMS))
    parser.add_argument("--loads", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--copy", action="store_true", help="copy-heavy prompts (summaries) instead of chat")
    parser.add_argument("--code", type=Path, help="copy-heavy prompts: edits of the `code` in this JSON lines file")
    parser.add_argument("--out", type=Path, help="append the measurements as JSON lines")
    parser.add_argument("--work", choices=sorted(ARMS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work)
        return
    if args.prompts is None:
        print("no --prompts: using the few chat prompts of this file", file=sys.stderr)
    prompts = read_prompts(args.prompts, COPY if args.copy else CHAT, 6000 if args.copy else 1200)
    if args.code:
        prompts = code_edits(args.code)
    workers = [Worker(name) for name in args.arms]
    print(f"arms ready: {', '.join(args.arms)}; load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    rows = sweep(workers, args.loads, prompts, args.new, args.repeats)
    for worker in workers:
        worker.close()
    kind = "code edit" if args.code else "copy-heavy" if args.copy else "chat"
    title = f"{kind} prompts, {args.new} new tokens, {args.repeats} repeats"
    report(title, rows, "transformers" if "transformers" in args.arms else args.arms[0])
    if args.out:
        with args.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
