"""Answer tokens per second of the batched generator that writes training data.

    python benchmarks/generation.py --device cuda --seconds 60 [--model smollm2] [--slots 1024,2048]

Prompts are random ids of ragged lengths (32-384), three of four answers are sampled (temperature .8, top-p .95), and
answers end at random lengths up to 512 tokens, about 230 on average. Building the model and the graphs is not counted.
"""

from __future__ import annotations

import argparse
import random
import time

import torch

from overdrive.config import ModelOptions
from overdrive.train.generate.batched import BatchedGenerator
from overdrive.train.generate.jobs import Job
from overdrive.train.generate.target import open_target


class TimedFeed:
    """Random jobs until the time is over. tokens: of complete answers."""

    def __init__(self, seconds: float, vocab: int) -> None:
        self._draw = random.Random(0)
        self._start, self._seconds, self._vocab = time.perf_counter(), seconds, vocab
        self._key = self.tokens = self.answers = 0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def take(self, most: int) -> list[Job]:
        return [self._job() for _ in range(most)] if self.seconds < self._seconds else []

    def done(self, key: int, answer: list[int]) -> None:
        self.tokens += len(answer)
        self.answers += 1

    def _job(self) -> Job:
        draw = self._draw
        self._key += 1
        return Job(
            key=self._key,
            prompt=[draw.randrange(self._vocab) for _ in range(draw.randint(32, 384))],
            max_tokens=min(512, 20 + int(draw.expovariate(1 / 230))),
            temperature=0.8 if self._key % 4 else 0.0,
            top_p=0.95,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--slots", default="1024,2048")
    options = parser.parse_args()
    device = torch.device(options.device)
    target = open_target(options.model, ModelOptions(), device, 1024, lambda label, done, total: None)
    for slots in map(int, options.slots.split(",")):
        start = time.perf_counter()
        # No id ends an answer: the random limits do, so that every run has the same work.
        generator = BatchedGenerator(target.transformer, (), slots=slots, max_len=1024)
        built = time.perf_counter() - start
        feed = TimedFeed(options.seconds, target.config.vocab)
        generator.run(feed)
        print(
            f"{slots} slots, {generator.attention}: {feed.tokens / feed.seconds:,.0f} answer tokens/s "
            f"({feed.answers} answers, {feed.tokens:,} tokens in {feed.seconds:.1f} s; built in {built:.1f} s)",
            flush=True,
        )
        del generator


if __name__ == "__main__":
    main()
