"""Time of sampling and bookkeeping on a CUDA device, by logit rows, as replays of a CUDA graph.

    PYTHONPATH=src python benchmarks/gpu_sampling.py [--vocab 128256] [--rows 1,4,64,256,1000] [--dtype bfloat16]

Prints microseconds per call: the median of five batches of replays. Logits are like a language model's (normal with
deviation 3 and a head of a few hundred better ones), but for `flat`, whose deviation is .5: nearly every token may win
there, as with random weights. `read` copies the logits once, which is as fast as memory allows. Takes under a minute,
compiling included.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cuda.logprobs import logprobs
from overdrive.device.cuda.sampling import CudaSampler
from overdrive.device.cuda.sampling_state import Rules, StaticSamplingState
from overdrive.device.cuda.steps import StepRows, accept, flatten
from overdrive.device.sampling import Layout
from overdrive.device.state import SlotState
from overdrive.types import Admission, SamplingParams
from shared import replayed_us

DEVICE = torch.device("cuda")
CASES: dict[str, tuple[Rules, SamplingParams]] = {
    "plain": ("plain", SamplingParams(max_tokens=64, temperature=0.0)),
    "noisy": ("noisy", SamplingParams(max_tokens=64, temperature=0.8)),
    "flat": ("noisy", SamplingParams(max_tokens=64, temperature=0.8)),
    "full, none": ("full", SamplingParams(max_tokens=64, temperature=0.8)),
    "top-p .9": ("full", SamplingParams(max_tokens=64, temperature=0.8, top_p=0.9)),
    "top-k 40": ("full", SamplingParams(max_tokens=64, temperature=0.8, top_k=40)),
    "k, p, min-p": ("full", SamplingParams(max_tokens=64, temperature=0.8, top_k=20, top_p=0.95, min_p=0.01)),
    "penalties": ("full", SamplingParams(max_tokens=64, temperature=0.8, frequency_penalty=0.5)),
}


def language_like(rows: int, vocab: int) -> Tensor:
    """[rows, vocab] float32."""
    random = torch.Generator(DEVICE).manual_seed(0)
    logits = torch.randn((rows, vocab), generator=random, device=DEVICE) * 3
    head = torch.randint(0, vocab, (rows, 300), generator=random, device=DEVICE)
    return logits.scatter_add_(1, head, (18 - 1.5 * torch.arange(1, 301, device=DEVICE).log2()).expand(rows, -1))


def of_rows(n: int) -> tuple[int, int]:
    """Rows and queries that make n logit rows: four of each row where there are many."""
    return (n // 4, 4) if n >= 64 else (n, 1)


def sampling_times(n: int, vocab: int, dtype: torch.dtype) -> dict[str, float]:
    rows, queries = of_rows(n)
    row = torch.arange(rows, device=DEVICE).repeat_interleave(queries)
    depth = torch.arange(queries, device=DEVICE).repeat(rows)
    layout = Layout(row, row, depth, 200 + depth)
    drafts = torch.zeros((rows, queries - 1), dtype=torch.int64, device=DEVICE)
    logits = language_like(n, vocab).to(dtype)
    flat = (torch.randn(n, vocab, device=DEVICE) * 0.5).to(dtype)
    sampler, out = CudaSampler(n, vocab, DEVICE), torch.zeros(n, dtype=torch.int64, device=DEVICE)
    state = StaticSamplingState(rows + 1, vocab, torch.float32, DEVICE)
    copy = torch.empty_like(logits)
    times = {"read": replayed_us(lambda: copy.copy_(logits)) / 2}
    for name, (rules, params) in CASES.items():
        state.admit_all([Admission("r", slot, tuple(range(200)), 100, 0, params) for slot in range(rows)])
        given = flat if name == "flat" else logits

        def draw(given: Tensor = given, rules: Rules = rules) -> Tensor:
            return sampler.draw(given, layout, drafts, state, rules, out=out)

        times[name] = replayed_us(draw)
    for best in (0, 20):
        times[f"logprobs {best}"] = replayed_us(lambda best=best: logprobs(logits, out, best))
    return times


def step_times(n: int) -> dict[str, float]:
    """Bookkeeping of a step with n logit rows, in a context of 8,192 positions."""
    rows, queries = of_rows(n)
    state = SlotState(rows + 1, 8192, 16, DEVICE)
    state.lengths.fill_(1000)
    state.computed.fill_(999)

    def whole(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=DEVICE)

    described = torch.stack([torch.arange(rows), *(torch.full((rows,), value) for value in (1, queries - 1, 1))])
    step = StepRows(described.to(DEVICE))
    table = torch.zeros((rows, state.page_table.shape[1]), dtype=torch.int32, device=DEVICE)
    batch = Batch(whole(n), whole(n), whole(n), whole(rows + 1), table, whole(rows), whole(rows, 2), whole(n), whole(n))
    layout = Layout(whole(n), whole(n), whole(n), whole(n))
    drafts, n_drafts, tokens, counts = whole(rows, queries - 1), whole(rows), whole(rows, queries), whole(rows)
    drawn = whole(n)
    return {
        "flatten": replayed_us(lambda: flatten(state, step, drafts, n_drafts, batch, layout)),
        # Every call adds a token to the 1,000, and there is room for all of them.
        "accept": replayed_us(lambda: accept(drawn, step, drafts, n_drafts, state, tokens, counts)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--rows", default="1,4,64,256,1000")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    counts = [int(count) for count in options.rows.split(",")]
    dtype = getattr(torch, options.dtype)
    columns = [sampling_times(n, options.vocab, dtype) | step_times(n) for n in counts]
    print(f"{torch.cuda.get_device_name()}, {options.vocab} logits a row, {options.dtype}, us per call")
    print(f"{'logit rows':<14}" + "".join(f"{n:>10}" for n in counts))
    for name in columns[0]:
        print(f"{name:<14}" + "".join(f"{column[name]:>10.1f}" for column in columns))


if __name__ == "__main__":
    main()
