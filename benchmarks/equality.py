"""Promise 1 on a real model: is SmolLM2's text the same whatever the engine does?

Run: PYTHONPATH=src python benchmarks/equality.py --prompts question.jsonl [--count 40] [--new 48] [--precision auto]
     [--draft auto] [--device cpu] [--near 1e-4]

The same prompts, half greedy and half sampled, are answered under every arm: K = 0, 1, 3, 5, 7 and random every step,
alone and with batch mates, drafts with long pauses within and beyond the catch-up window, pages of 4/16/64, chunks of
16/128, overlap on and off, prefix cache on and off, too few pages for all (forced preemption). Each answer is compared
with the first arm's (K = 0, one request at a time). A difference counts as a near-tie when, at the first differing
token, the scores of the two tokens (logit / temperature + noise) are closer than `--near`, or when logits disturbed by
up to half of that draw the one token and the other: a filter's boundary can be as close as a score. Logits are computed
anew in float32 from the text before it. The differences of scores are printed; the exit code is 1 if a difference is no
near-tie. In bfloat16 a logit near 20 is known to about 0.1, so that ties are wide: give --near 0.5 (and try
--deterministic, which does away with what depends on the batch).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from overdrive.config import (
    DeviceOptions,
    DraftOptions,
    EngineOptions,
    MemoryOptions,
    ModelOptions,
    SchedulerOptions,
)
from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.batch import Batch
from overdrive.device.noise import keyed_noise
from overdrive.device.sampling import Layout, SamplingState, sample
from overdrive.engine import Engine, build
from overdrive.model.weights import load
from overdrive.policy.controller import Controller, FixedDrafts, LoadView
from overdrive.text import open_text
from overdrive.types import Plan, SamplingParams, Why

MAX_LEN = 2048
TRIALS = 256
"""Disturbed logits that are drawn from."""


class Pauses(Controller):
    """Long stretches without drafts between some of another K each: a draft network has to catch up every time."""

    plans = tuple(range(1, 16))

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._drafts = self._left = 0

    def choose(self, view: LoadView) -> Plan:
        if not self._left:
            self._drafts = 0 if self._drafts else self._rng.choice([1, 3, 5, 7])
            self._left = self._rng.randint(1, 40)
        self._left -= 1
        return Plan(self._drafts, Why(rule="pauses"))


class RandomDrafts(Controller):
    """Another K every step."""

    plans = tuple(range(1, 16))

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def choose(self, view: LoadView) -> Plan:
        return Plan(self._rng.choice([0, 1, 3, 5, 7]), Why(rule="random"))


@dataclass(frozen=True)
class Arm:
    """One way to run the engine. rows: requests at once. kv_tokens: 0 is plenty."""

    name: str
    controller: Controller = field(default_factory=lambda: FixedDrafts(0))
    rows: int = 8
    page: int = 16
    chunk: int = 128
    overlap: str = "off"
    cached: bool = True
    kv_tokens: int = 0
    window: int = 256


ARMS = [
    Arm("alone, K=0", rows=1),
    *(Arm(f"8 at once, K={k}", FixedDrafts(k)) for k in (0, 1, 3, 5, 7)),
    Arm("8 at once, K random", RandomDrafts(1)),
    Arm("8 at once, drafts with pauses", Pauses(5)),
    Arm("40 at once, drafts with pauses beyond the window", Pauses(6), rows=40, chunk=16, window=17),
    Arm("40 at once, K=3", FixedDrafts(3), rows=40),
    Arm("pages of 4, chunks of 16, K=3", FixedDrafts(3), page=4, chunk=16),
    Arm("pages of 64, K random", RandomDrafts(2), page=64),
    Arm("overlap, K=3", FixedDrafts(3), overlap="on"),
    Arm("overlap, K random, chunks of 16", RandomDrafts(3), overlap="on", chunk=16),
    Arm("no prefix cache, K=5", FixedDrafts(5), cached=False),
    Arm("preempted, K random", RandomDrafts(4), rows=24, kv_tokens=2304),
]


def params_of(index: int, new: int) -> SamplingParams:
    """Even prompts greedy, odd ones sampled in several ways."""
    if index % 2 == 0:
        return SamplingParams(max_tokens=new, temperature=0.0)
    top_p, top_k, penalty = [(1.0, 0, 0.0), (0.9, 0, 0.0), (1.0, 40, 0.5), (0.95, 50, 0.0)][index // 2 % 4]
    return SamplingParams(
        max_tokens=new, temperature=0.8, top_p=top_p, top_k=top_k, frequency_penalty=penalty, seed=1000 + index
    )


def answer_all(
    arm: Arm, prompts: list[list[int]], args: argparse.Namespace, new: int
) -> tuple[list[list[int]], Engine]:
    options = EngineOptions(
        model=ModelOptions(max_model_len=MAX_LEN, precision=args.precision, deterministic=args.deterministic),
        memory=MemoryOptions(page_size=arm.page, kv_tokens=arm.kv_tokens or 64 * 1024, prefix_cache=arm.cached),
        scheduler=SchedulerOptions(max_rows=arm.rows, chunk=arm.chunk, max_step_tokens=max(256, 8 * arm.rows)),
        draft=DraftOptions(draft=args.draft, drafts=7, ngram_min=2, draft_window=arm.window),
        device=DeviceOptions(overlap=arm.overlap, device=args.device),
    )
    engine = build("smollm2", options, lambda *_: None, arm.controller)
    requests = [engine.submit(str(i), prompt, params_of(i, new)) for i, prompt in enumerate(prompts)]
    while not engine.idle:
        engine.advance()
    engine.close()
    return [list(request.output) for request in requests], engine


class Judge:
    """Scores of two tokens after a text, computed from nothing with the reference attention."""

    def __init__(self, device: str) -> None:
        options = ModelOptions(max_model_len=MAX_LEN, precision="float32")
        self._device = torch.device(device)
        self._loaded = load("smollm2", options, self._device, lambda *_: None)

    def judge(
        self, prompt: list[int], output: list[int], params: SamplingParams, ids: tuple[int, int], near: float
    ) -> tuple[bool, float]:
        """Whether either token may follow, by the module's rule, and the difference of their scores."""
        logits = self._logits([*prompt, *output])
        gap = self._gap(logits, len(prompt) + len(output), params, ids)
        return gap <= near or set(ids) <= self._drawn(logits, prompt, output, params, near), gap

    @staticmethod
    def _drawn(
        logits: torch.Tensor, prompt: list[int], output: list[int], params: SamplingParams, near: float
    ) -> set[int]:
        """Tokens that disturbed logits draw."""
        state = SamplingState(1, len(logits), torch.float32)
        state.admit(0, params, [*prompt, *output], len(prompt))
        generator = torch.Generator().manual_seed(0)
        disturbed = logits + (torch.rand((TRIALS, len(logits)), generator=generator) - 0.5) * near
        zeros = torch.zeros(TRIALS, dtype=torch.int64)
        layout = Layout(zeros, zeros, zeros, zeros + len(prompt) + len(output))
        return set(sample(disturbed, layout, torch.zeros((1, 0), dtype=torch.int64), state).tolist())

    @torch.inference_mode()
    def _logits(self, tokens: list[int]) -> torch.Tensor:
        """[V], on the host, after `tokens`."""
        config, model = self._loaded.config, self._loaded.transformer
        count = len(tokens)
        with self._device:
            kv = PagedKV.allocate(config, 2, MAX_LEN, torch.float32, self._device)
            places = torch.arange(count)
            batch = Batch(
                ids=torch.tensor(tokens),
                positions=places,
                rows=torch.zeros(count, dtype=torch.int64),
                offsets=torch.tensor([0, count]),
                page_table=torch.tensor([[1]], dtype=torch.int32),
                starts=torch.tensor([0]),
                gaps=torch.tensor([[0, 0]]),
                writes=MAX_LEN + places,
                wanted=places[-1:],
            )
        hidden = model.forward(batch, ReferenceAttention(kv, batch, config)).final
        return model.logits(hidden[-1:])[0].cpu()

    @staticmethod
    def _gap(logits: torch.Tensor, count: int, params: SamplingParams, ids: tuple[int, int]) -> float:
        """|score of one - score of the other|; penalties cancel but for equal counts."""
        pair = torch.tensor(ids)
        scores = logits[pair].double()
        if params.temperature == 0:
            return float((scores[0] - scores[1]).abs())
        where = torch.tensor([count])
        noise = keyed_noise(torch.tensor([params.seed]), where, pair.unsqueeze(0), torch.float32)[0]
        scores = scores / params.temperature + noise
        return float((scores[0] - scores[1]).abs())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--new", type=int, default=48)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--draft", default="auto", help="who drafts")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--near", type=float, default=1e-4, help="difference of scores below which two tokens tie")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    rows = [row for row in rows if len(row["turns"][0]) < 2500]
    step = max(1, len(rows) // args.count)
    texts = [row["turns"][0] for row in rows[::step]][: args.count]
    _, first_engine = answer_all(ARMS[0], [[1, 2]], args, 1)
    tokenizer, template = open_text(Path(first_engine.info.source), ModelOptions())
    prompts = [tokenizer.encode(template.render([{"role": "user", "content": text}]), False) for text in texts]
    print(f"{len(prompts)} prompts, {sum(map(len, prompts))} prompt tokens, {args.new} new each")
    print(f"{args.device}, precision {args.precision}, draft {args.draft}, near-ties closer than {args.near:g}")
    judge = Judge(args.device)
    wrong = 0
    base: list[list[int]] = []
    for arm in ARMS:
        started = time.perf_counter()
        answers, engine = answer_all(arm, prompts, args, args.new)
        base = base or answers
        equal, bad, ties = 0, 0, []
        for i, (found, meant) in enumerate(zip(answers, base, strict=True)):
            if found == meant:
                equal += 1
                continue
            at = next(j for j, (a, b) in enumerate(zip(found, meant, strict=True)) if a != b)
            params, pair = params_of(i, args.new), (found[at], meant[at])
            near, gap = judge.judge(prompts[i], list(meant[:at]), params, pair, args.near)
            bad += not near
            ties.append(gap)
        wrong += bad
        stats = engine.stats()
        gaps = " ".join(f"{gap:.1e}" for gap in sorted(ties, reverse=True)[:8])
        accepted = sum(sum(part.accepted) for part in stats.drafts)
        print(
            f"{arm.name:>34}: {equal} equal, {len(ties) - bad} near-ties, {bad} WRONG {gaps} | "
            f"{time.perf_counter() - started:.0f} s, {accepted} drafts accepted, "
            f"{stats.preemptions} preemptions",
            flush=True,
        )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
