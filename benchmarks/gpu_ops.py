"""Time of a decoder's element-wise operations on a CUDA device, as replays of a CUDA graph, beside torch's.

    PYTHONPATH=src python benchmarks/gpu_ops.py [--hidden 4096] [--mlp 14336] [--rows 1,4,32,256,1000] [--tune]

Prints microseconds per call: the best of five batches of replays of a graph of 32 calls. `ours` are the Triton kernels,
`early` the same with programmatic dependent launches, `torch` the same operations of plain torch in a graph. The last
lines are all of a layer's element-wise work (two added norms, rotation, activation) by each of them and by
torch.compile of the plain form, which is given up after 30 s of compiling; GB/s counts what that work must read and
write. --tune tries warps and parts of the two operations that a step of one row waits for most. Takes under a minute
without it.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from overdrive.device.cuda import ops_kernels
from overdrive.device.cuda.ops import CudaOps, next_power
from overdrive.model.ops import Ops, TorchOps
from shared import replayed_us

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
CALLS = 32
COMPILE_SECONDS = 30
WAYS: dict[str, Ops] = {
    "ours": CudaOps(DTYPE, DEVICE),
    "early": CudaOps(DTYPE, DEVICE, early=True),
    "torch": TorchOps(DTYPE, DEVICE),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """Tensors of a layer at `rows` tokens."""

    rows: int
    hidden: int
    mlp: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128

    def tensors(self) -> dict[str, Tensor]:
        shapes = {
            "residual": (self.rows, self.hidden),
            "x": (self.rows, self.hidden),
            "weight": (self.hidden,),
            "head_weight": (self.head_dim,),
            "table": (32000, self.hidden),
            "taps": (self.rows, 3 * self.hidden),
            "qkv": (self.rows, self.heads + 2 * self.kv_heads, self.head_dim),
            "gate_up": (self.rows, 2 * self.mlp),
            "cos": (4096, self.head_dim // 2),
            "sin": (4096, self.head_dim // 2),
        }
        drawn = {name: torch.randn(shape, device=DEVICE).to(DTYPE) for name, shape in shapes.items()}
        return drawn | {"ids": torch.randint(4096, (self.rows,), device=DEVICE)}

    def operations(self, ops: Ops) -> dict[str, Callable[[], object]]:
        """Each operation as the model calls it."""
        t = self.tensors()
        q, k, _ = t["qkv"].split_with_sizes((self.heads, self.kv_heads, self.kv_heads), dim=1)
        middle = t["taps"][:, self.hidden : 2 * self.hidden]
        return {
            "embed": lambda: ops.embed(t["ids"], t["table"]),
            "copy into columns": lambda: ops.copy(t["x"], middle),
            "rms_norm": lambda: ops.rms_norm(t["x"], t["weight"], 1e-5),
            "rms_norm of q": lambda: ops.rms_norm(q, t["head_weight"], 1e-5),
            "add_rms_norm": lambda: ops.add_rms_norm(t["residual"], t["x"], t["weight"], 1e-5),
            "rope": lambda: ops.rope(q, k, t["ids"], t["cos"], t["sin"]),
            "silu_mul": lambda: ops.silu_mul(t["gate_up"]),
        }

    def glue(self, ops: Ops) -> Callable[[], object]:
        """All of a layer's element-wise work."""
        t = self.tensors()
        q, k, _ = t["qkv"].split_with_sizes((self.heads, self.kv_heads, self.kv_heads), dim=1)

        def work() -> tuple[Tensor, ...]:
            ops.rope(q, k, t["ids"], t["cos"], t["sin"])
            first = ops.add_rms_norm(t["residual"], t["x"], t["weight"], 1e-5)
            gated = ops.silu_mul(t["gate_up"])
            return first, gated, ops.add_rms_norm(t["residual"], t["x"], t["weight"], 1e-5)

        return work

    @property
    def glue_bytes(self) -> int:
        rotated = 2 * (self.heads + self.kv_heads) * self.head_dim
        return self.rows * DTYPE.itemsize * (2 * 4 * self.hidden + rotated + 3 * self.mlp)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in the block once it has taken so long."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def compiled_us(layer: Layer) -> float:
    """The plain form's glue by torch.compile, which must not take one layer's tensors for another's."""
    torch.compiler.reset()
    work = torch.compile(layer.glue(WAYS["torch"]), dynamic=False)
    for _ in range(3):
        work()
    return replayed_us(work, CALLS)


def print_operations(layers: list[Layer]) -> None:
    print(f"{'':20}{'':>7}" + "".join(f"{layer.rows:>9}" for layer in layers))
    table: dict[tuple[str, str], list[float]] = {}
    for layer in layers:
        for way, ops in WAYS.items():
            for name, work in layer.operations(ops).items():
                table.setdefault((name, way), []).append(replayed_us(work, CALLS))
    for (name, way), times in sorted(table.items(), key=lambda line: list(table).index((line[0][0], "ours"))):
        print(f"{name if way == 'ours' else '':20}{way:>7}" + "".join(f"{us:9.2f}" for us in times))


def print_glue(layers: list[Layer]) -> None:
    for way, ops in WAYS.items():
        times = [replayed_us(layer.glue(ops)) for layer in layers]
        print(f"{'layer' if way == 'ours' else '':20}{way:>7}" + "".join(f"{us:9.2f}" for us in times))
        if way == "ours":
            rates = [layer.glue_bytes / us / 1e3 for layer, us in zip(layers, times, strict=True)]
            print(f"{'':20}{'GB/s':>7}" + "".join(f"{rate:9.0f}" for rate in rates))
    began = time.monotonic()
    try:
        with at_most(COMPILE_SECONDS):
            times = [compiled_us(layer) for layer in layers]
    except Exception as error:  # compiling needs a C compiler, and fails in many ways without
        print(f"{'':20}{'compile':>7}   given up: {type(error).__name__}: {str(error).splitlines()[0][:80]}")
        return
    spent = f"   ({time.monotonic() - began:.0f} s to compile)"
    print(f"{'':20}{'compile':>7}" + "".join(f"{us:9.2f}" for us in times) + spent)


def tune(layers: list[Layer]) -> None:
    """Other warps for the added norm, other parts for the activation."""
    print("\nadd_rms_norm by warps")
    for warps in (4, 8, 16, 32):
        print(f"{warps:>27}" + "".join(f"{norm_us(layer, warps):9.2f}" for layer in layers), flush=True)
    print("silu_mul by elements of a part and warps")
    for block, warps in product((256, 512, 1024, 2048), (1, 2, 4, 8)):
        if 2 <= block // (warps * 32) <= 16:
            print(f"{block:>20}{warps:>7}" + "".join(f"{gate_us(layer, block, warps):9.2f}" for layer in layers))


def norm_us(layer: Layer, warps: int) -> float:
    t = layer.tensors()
    out, block = torch.empty_like(t["x"]), next_power(layer.hidden)

    def work() -> None:
        ops_kernels.add_norm_rows[(layer.rows,)](
            t["residual"], t["x"], t["weight"], out, layer.hidden, layer.hidden, 1e-5,
            EARLY=False, WIDTH=layer.hidden, BLOCK=block, num_warps=warps,
        )  # fmt: skip

    return replayed_us(work, CALLS)


def gate_us(layer: Layer, block: int, warps: int) -> float:
    gate_up = layer.tensors()["gate_up"]
    out = torch.empty((layer.rows, layer.mlp), dtype=DTYPE, device=DEVICE)
    grid = (layer.rows, -(-layer.mlp // block))

    def work() -> None:
        ops_kernels.gate_rows[grid](
            gate_up, out, 2 * layer.mlp, EARLY=False, WIDTH=layer.mlp, BLOCK=block, num_warps=warps
        )

    return replayed_us(work, CALLS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--mlp", type=int, default=14336)
    parser.add_argument("--rows", default="1,4,32,256,1000")
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    layers = [Layer(int(rows), options.hidden, options.mlp) for rows in options.rows.split(",")]
    print(f"{torch.cuda.get_device_name()}, H={options.hidden}, F={options.mlp}, {DTYPE}, us per call, by rows")
    with torch.inference_mode():
        print_operations(layers)
        print_glue(layers)
        if options.tune:
            tune(layers)


if __name__ == "__main__":
    main()
