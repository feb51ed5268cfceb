"""The CPU sampler: the batch's logit rows shared out over the team's threads, each drawn by `drawing.draw_row`.

The kernel gets addresses (see team.py); its argument block is two counters, then `SIZES`, then `ARRAYS`.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import carray, cfunc, types
from numba.core.ccallback import CFunc
from numba.extending import intrinsic
from torch import Tensor

from overdrive.device.cpu.drawing import Lists, Rule, Scratch, draw_row
from overdrive.device.cpu.filters import BINS, BLOCK
from overdrive.device.cpu.fingerprint import SOURCE
from overdrive.device.cpu.memory import load_ints, take
from overdrive.device.cpu.team import Call, Team
from overdrive.device.sampling import Layout, Masks, SamplingState

SIZES = 8  # logit rows, vocabulary, slots, drafts, entries, biases, stops, mask rows
ARRAYS = 24


class CpuSampler:
    """A `Sampler` on the CPU that runs on `team`, as every kernel of its stream."""

    def __init__(self, vocab_size: int, dtype: torch.dtype, team: Team) -> None:
        kernel = _kernel(str(dtype).removeprefix("torch."))
        self._call = Call(team, kernel, "q" * (SIZES + ARRAYS))
        self._scratch = (
            torch.empty((team.threads, vocab_size), dtype=dtype),
            torch.empty((team.threads, vocab_size), dtype=torch.int32),
            torch.empty((team.threads, -(-vocab_size // BLOCK)), dtype=dtype),
            torch.empty((team.threads, BLOCK // 2), dtype=dtype),
            torch.empty((team.threads, BLOCK), dtype=torch.int32),
            torch.empty((team.threads, 2 * BINS), dtype=torch.float64),
        )
        self._no_bits = torch.empty((0, 0), dtype=torch.int32)

    def __call__(
        self, logits: Tensor, layout: Layout, drafts: Tensor, state: SamplingState, masks: Masks | None = None
    ) -> Tensor:
        """As `overdrive.device.sampling.sample`."""
        tokens = torch.empty(len(logits), dtype=torch.int64)
        bits = masks.bits if masks is not None else self._no_bits
        index = masks.index if masks is not None else torch.full_like(layout.rows, -1)
        counts = state.counts
        arrays = [
            *(logits.to(state.dtype), layout.rows, layout.slots, layout.depths, layout.positions, drafts),
            *(state.reals, state.integers, state.top_p, counts.entry, counts.output, counts.prompt),
            *(state.bias_ids, state.bias, state.stop_ids, bits, index, tokens, *self._scratch),
        ]
        arrays = [array.contiguous() for array in arrays]  # alive until the kernel has returned
        slots, entries, masked = len(state.top_p), len(counts.output), len(bits)
        sizes = (slots, drafts.shape[1], entries, state.bias.shape[1], state.stop_ids.shape[1], masked)
        call = self._call if len(logits) > 1 else self._call.alone  # one logit row: nothing to share out
        call(len(logits), state.vocab_size, *sizes, *(array.data_ptr() for array in arrays))
        return tokens


@intrinsic
def _at(context, address):
    """A pointer to `address`."""

    def emit(context, b, signature, arguments):
        return b.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), emit


def _kernel(kind: str) -> CFunc:
    """Kernel for logits of NumPy type `kind`."""
    real, source = getattr(np, kind), SOURCE
    whole, half, word, flag = np.int64, np.int32, np.uint32, np.bool_

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018  (makes the source part of the cache key)
        n_logits, vocab, n_slots, n_drafts, entries, n_biases, n_stops, n_masks = load_ints(a + 8, 8)
        p = load_ints(a + 72, 24)
        logits = carray(_at(p[0]), (n_logits, vocab), real)
        rows, slots = carray(_at(p[1]), n_logits, whole), carray(_at(p[2]), n_logits, whole)
        depths, positions = carray(_at(p[3]), n_logits, whole), carray(_at(p[4]), n_logits, whole)
        reals, integers = carray(_at(p[6]), (5, n_slots), real), carray(_at(p[7]), (4, n_slots), whole)
        top_p, entry = carray(_at(p[8]), n_slots, np.float64), carray(_at(p[9]), n_slots, whole)
        output, prompt = carray(_at(p[10]), (entries, vocab), half), carray(_at(p[11]), (entries, vocab), flag)
        bias_ids = carray(_at(p[12]), (n_slots, n_biases), whole)
        bias = carray(_at(p[13]), (n_slots, n_biases), real)
        stop_ids = carray(_at(p[14]), (n_slots, n_stops), whole)
        bits = carray(_at(p[15]), (n_masks, (vocab + 31) // 32), half)
        index, tokens = carray(_at(p[16]), n_logits, whole), carray(_at(p[17]), n_logits, whole)
        blocks = (vocab + BLOCK - 1) // BLOCK
        scratch = Scratch(
            carray(_at(p[18] + thread * vocab * logits.itemsize), vocab, real),
            carray(_at(p[19] + thread * vocab * 4), vocab, half),
            carray(_at(p[20] + thread * blocks * logits.itemsize), blocks, real),
            carray(_at(p[21] + thread * BLOCK // 2 * logits.itemsize), BLOCK // 2, real),
            carray(_at(p[22] + thread * BLOCK * 4), BLOCK, word),
            carray(_at(p[23] + thread * 2 * BINS * 8), 2 * BINS, np.float64),
        )
        n = take(a)
        while n < n_logits:
            slot = slots[n]
            drafts = carray(_at(p[5] + rows[n] * n_drafts * 8), depths[n], whole)
            counted = vocab if entry[slot] >= 0 else 0
            rule = Rule(
                reals[0, slot],
                reals[1, slot],
                reals[2, slot],
                reals[3, slot],
                reals[4, slot],
                top_p[slot],
                integers[0, slot],
                integers[1, slot],
                positions[n],
            )
            lists = Lists(
                output[entry[slot], :counted],
                prompt[entry[slot], :counted],
                drafts,
                bias_ids[slot],
                bias[slot],
                stop_ids[slot, : n_stops if positions[n] < integers[2, slot] else 0],
                bits[index[n], : bits.shape[1] if index[n] >= 0 else 0],
            )
            tokens[n] = draw_row(logits[n], rule, lists, scratch)
            n = take(a)

    return kernel
