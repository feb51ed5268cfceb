"""Time of a model's products on a CUDA device by precision of the weights, as replays of a CUDA graph.

    PYTHONPATH=src python benchmarks/gpu_linear.py [--hidden 4096] [--mlp 14336] [--rows 1,4,32,256,1000]

Prints milliseconds for the four products of a layer times --layers, and for the output head: `scores` keeps its float32
sums, `rounded` is the plain product widened afterwards. Each call reads other weights than the one before, as layers of
a model do, so that nothing stays in the second-level cache. Takes under a minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from overdrive.device.cuda.linear import Fp8Linear, Int4Linear, Int8Linear, ScoringLinear
from overdrive.model.transformer import DenseLinear, Linear
from shared import replayed_us

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
COPIES = 4
KINDS: dict[str, Callable[[Tensor], Linear]] = {
    "bfloat16": DenseLinear,
    "fp8": Fp8Linear,
    "int8": Int8Linear,
    "int4": Int4Linear,
}


class RoundedScores:
    """The head as a plain product whose results are widened."""

    def __init__(self, weight: Tensor) -> None:
        self._linear = DenseLinear(weight)

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear(x).float()


def replayed_ms(work: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    return replayed_us(work, calls=1, replays=4) / 1000


def weight(outputs: int, inputs: int) -> Tensor:
    return torch.randn((outputs, inputs), device=DEVICE).mul_(inputs**-0.5).to(DTYPE)


def layer_ms(kind: Callable[[Tensor], Linear], shapes: Sequence[tuple[int, int]], rows: Sequence[int]) -> list[float]:
    """One layer's products in turn, by rows."""
    layers = [[kind(weight(*shape)) for shape in shapes] for _ in range(COPIES)]
    times = []
    for count in rows:
        inputs = [torch.randn((count, width), device=DEVICE).to(DTYPE) for _, width in shapes]

        def work(inputs: list[Tensor] = inputs) -> None:
            for linears in layers:
                for linear, x in zip(linears, inputs, strict=True):
                    linear(x)

        times.append(replayed_ms(work) / COPIES)
    return times


def head_ms(head: Linear, hidden: int, rows: Sequence[int]) -> list[float]:
    inputs = [torch.randn((count, hidden), device=DEVICE).to(DTYPE) for count in rows]
    return [replayed_ms(partial(head, x)) for x in inputs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--mlp", type=int, default=14336)
    parser.add_argument("--qkv", type=int, default=6144)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rows", default="1,4,32,256,1000")
    options = parser.parse_args()
    rows, hidden, mlp = [int(count) for count in options.rows.split(",")], options.hidden, options.mlp
    shapes = [(options.qkv, hidden), (hidden, hidden), (2 * mlp, hidden), (hidden, mlp)]
    print(f"{torch.cuda.get_device_name()}, {options.layers} layers of {shapes}, ms by rows")
    print(f"{'':16}" + "".join(f"{count:>9}" for count in rows))
    with torch.inference_mode():
        for name, kind in KINDS.items():
            times = [ms * options.layers for ms in layer_ms(kind, shapes, rows)]
            print(f"{name:16}" + "".join(f"{ms:9.2f}" for ms in times), flush=True)
        table = weight(options.vocab, hidden)
        for name, head in (("head, scores", ScoringLinear(table)), ("head, rounded", RoundedScores(table))):
            print(f"{name:16}" + "".join(f"{ms:9.2f}" for ms in head_ms(head, hidden, rows)))


if __name__ == "__main__":
    main()
