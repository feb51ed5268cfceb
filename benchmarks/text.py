"""What text costs the host: encoding prompts, decoding answers, streaming them, and looking for stop strings.

    python benchmarks/text.py MODEL            (a model folder, a tokenizer.json or a .gguf file)

Streaming is timed per engine step: every stream gets one run of committed tokens. `DecodeStream` is the tokenizers
library's own streaming decoder, for comparison.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import decoders
from tokenizers.decoders import DecodeStream

from overdrive.text import AnswerText, StopMatcher, Tokenizer, load_chat_template, load_tokenizer

PARAGRAPH = """Speculative decoding drafts a few tokens cheaply and lets the model verify them at once. Naïve servers
pay for it under load: 64 rows, 3 drafts, 25.6% slower.

```python
def verify(drafts, samples):
    return sum(1 for a, b in zip(drafts, samples) if a == b)
```
数据 и текст идут по частям — 🎉.
"""
STOPS = ("\n\nUser:", "###")
STREAMS = (1, 64, 256)
RUNS = (1, 4)
STEPS = 40

Step = Callable[[list[int]], object]


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Median time of `work`."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def report_loading(source: Path) -> Tokenizer:
    """Time to read the tokenizer and the chat template."""
    tokenizer = load_tokenizer(source)
    print(f"load tokenizer {seconds(lambda: load_tokenizer(source), 3) * 1e3:8.1f} ms, {tokenizer.vocab_size} ids")
    print(f"load template  {seconds(lambda: load_chat_template(source, tokenizer), 3) * 1e3:8.1f} ms")
    return tokenizer


def report_whole_texts(tokenizer: Tokenizer) -> None:
    """Encoding and decoding at once, short and long."""
    for copies in (1, 40):
        text = PARAGRAPH * copies
        ids = tokenizer.encode(text, add_special=False)
        encode = seconds(lambda text=text: tokenizer.encode(text, add_special=False)) / len(ids)
        decode = seconds(lambda ids=ids: tokenizer.decode(ids)) / len(ids)
        print(f"{len(ids):5d} tokens: encode {encode * 1e6:6.2f} us/token, decode {decode * 1e6:6.3f} us/token")


def streamers(tokenizer: Tokenizer) -> Iterator[tuple[str, Callable[[], Step]]]:
    """Ways to take a run of one stream's tokens, by name; each call of the maker is a new stream."""
    encoded = [stop.encode() for stop in STOPS]
    core = getattr(tokenizer, "_core", None)

    def matcher() -> Step:
        push = StopMatcher(encoded, tokenizer.token_bytes()).push
        return lambda run: [push(token) for token in run]

    yield "engine: stop matcher", matcher
    yield "server: text", lambda: AnswerText(tokenizer).push
    yield "server: text with stops", lambda: AnswerText(tokenizer, STOPS).push
    if core is not None:
        core.decoder = core.decoder or decoders.ByteLevel()

        def library() -> Step:
            stream = DecodeStream(skip_special_tokens=True)
            return lambda run: stream.step(core, run)

        yield "tokenizers' DecodeStream", library


def step_seconds(make: Callable[[], Step], ids: list[int], streams: int, run: int) -> float:
    """Median time of one step that gives each of `streams` streams a run of `run` tokens."""
    steps = [make() for _ in range(streams)]
    times = []
    for at in range(0, STEPS * run, run):
        piece = ids[at : at + run]
        begun = time.perf_counter()
        for step in steps:
            step(piece)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def report_streaming(tokenizer: Tokenizer) -> None:
    """Cost of one step for every way of streaming, number of streams and tokens per run."""
    ids = tokenizer.encode(PARAGRAPH * 4, add_special=False)
    print(f"{'one step':26}" + "".join(f"{f'{n} x {run}':>18}" for n in STREAMS for run in RUNS))
    for name, make in streamers(tokenizer):
        cells = []
        for streams in STREAMS:
            for run in RUNS:
                cost = step_seconds(make, ids, streams, run)
                cells.append(f"{cost * 1e3:8.3f}ms {cost / streams / run * 1e6:5.2f}us")
        print(f"{name:26}" + "".join(f"{cell:>18}" for cell in cells))
    print("(streams x tokens per run: whole step, and per token)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a model folder, a tokenizer.json or a .gguf file")
    tokenizer = report_loading(parser.parse_args().model)
    report_whole_texts(tokenizer)
    report_streaming(tokenizer)


if __name__ == "__main__":
    main()
