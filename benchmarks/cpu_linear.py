"""Time of all matrix products of one step on the CPU, by number of token rows: packed weights beside torch float32.

    python benchmarks/cpu_linear.py [--threads 2] [--rows 1,4,16,64,256] [--arms q4_1,int8,float32,torch] [--rounds 7]

The shapes are SmolLM2-135M's: 30 layers of hidden width 576 and MLP width 1536, and a head of 49,152 outputs, counted
for at most 16 rows (prefill wants the logits of one token). `q4_1` is that model's own mixture: 4-bit blocks in the
layers, 8-bit blocks in the head. Arms take turns within a round; printed are the least milliseconds of all rounds, and
as multiples of one row and of torch. Results of an arm are compared bit by bit with those of one row at a time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import gguf
import numpy as np
import torch
from torch import Tensor

from overdrive.device.cpu.linear import LinearKernels, PackedLinear
from overdrive.device.cpu.packing import Packed, pack_float32, pack_gguf, pack_int8
from overdrive.device.cpu.team import Team

LAYERS, HIDDEN, MLP, KV, VOCAB = 30, 576, 1536, 192, 49152
LAYER_SHAPES = [(HIDDEN + 2 * KV, HIDDEN), (HIDDEN, HIDDEN), (2 * MLP, HIDDEN), (HIDDEN, MLP)]
HEAD_ROWS = 16
SETTLE = 0.02  # seconds in which torch's threads, which spin on after their work, leave the cores to the next arm


def pack_blocks(weight: Tensor) -> Packed:
    """As SmolLM2's file has it: the head in 8-bit blocks, the rest in 4-bit blocks."""
    kind = gguf.GGMLQuantizationType.Q8_0 if len(weight) == VOCAB else gguf.GGMLQuantizationType.Q4_1
    return pack_gguf(gguf.quantize(weight.numpy(), kind), kind, *weight.shape)


def torch_product(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """torch's faster form for few rows."""
    return lambda x: torch.mm(weight, x.T).T


def build(arm: str, weights: list[Tensor], kernels: LinearKernels) -> list[Callable[[Tensor], Tensor]]:
    """The products of one step, in order, the head last."""
    if arm == "torch":
        return [torch_product(weight) for weight in weights]
    pack = {"q4_1": pack_blocks, "int8": pack_int8, "float32": pack_float32}[arm]
    return [PackedLinear(kernels, pack(weight)) for weight in weights]


def step(products: list[Callable[[Tensor], Tensor]], inputs: list[Tensor], rows: int) -> float:
    """Seconds of one step over the first `rows` rows of each product's input."""
    start = time.perf_counter()
    for product, x in zip(products[:-1], inputs[:-1], strict=True):
        product(x[:rows])
    products[-1](inputs[-1][: min(rows, HEAD_ROWS)])
    return time.perf_counter() - start


def check(products: list[Callable[[Tensor], Tensor]], inputs: list[Tensor], rows: list[int]) -> bool:
    """Whether every row's result equals that of the row alone, for one layer's products."""
    return all(
        torch.equal(product(x[:n]), torch.cat([product(row[None]) for row in x[:n]]))
        for product, x in zip(products[:4], inputs[:4], strict=True)
        for n in rows
        if n <= 64
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,2,4,8,16,32,64,128,256,512")
    parser.add_argument("--arms", default="q4_1,int8,float32,torch")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [int(n) for n in options.rows.split(",")]
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=generator) * 0.04 for shape in LAYER_SHAPES] * LAYERS
    weights = [weight.clone() for weight in weights] + [torch.randn(VOCAB, HIDDEN, generator=generator) * 0.04]
    inputs = [torch.randn(max(rows), weight.shape[1], generator=generator) for weight in weights[:4]] * LAYERS
    inputs.append(inputs[0])
    kernels = LinearKernels(Team(options.threads))
    arms = {arm: build(arm, weights, kernels) for arm in options.arms.split(",")}
    times = {arm: np.full(len(rows), np.inf) for arm in arms}
    for _ in range(options.rounds):
        for i, n in enumerate(rows):
            for arm, products in arms.items():
                time.sleep(SETTLE)
                times[arm][i] = min(times[arm][i], step(products, inputs, n))
    print_table(rows, times)
    for arm in arms.keys() - {"torch"}:
        print(f"{arm}: every row bit-equal to the row alone: {check(arms[arm], inputs, rows)}")


def print_table(rows: list[int], times: dict[str, np.ndarray]) -> None:
    print(f"{'rows':>10}" + "".join(f"{n:>9}" for n in rows))
    for arm, best in times.items():
        print(f"{arm + ' ms':>10}" + "".join(f"{t * 1e3:9.1f}" for t in best))
        print(f"{'x row 1':>10}" + "".join(f"{t / best[0]:9.2f}" for t in best))
        if "torch" in times:
            print(f"{'x torch':>10}" + "".join(f"{t:9.2f}" for t in best / times["torch"]))


if __name__ == "__main__":
    main()
