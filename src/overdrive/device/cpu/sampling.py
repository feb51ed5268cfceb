"""The CPU sampler: the batch's logit rows shared out over the team's threads, each drawn by `drawing.draw_row`.

The kernel gets addresses (see team.py). Its argument block: a counter, SIZES, BATCH, STATE and SCRATCH values.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import carray, cfunc, types
from numba.core.ccallback import CFunc
from numba.extending import intrinsic
from torch import Tensor

from overdrive.device.cpu.drawing import Lists, Rule, Scratch, draw_row
from overdrive.device.cpu.filters import BINS, BLOCK, inner
from overdrive.device.cpu.fingerprint import SOURCE
from overdrive.device.cpu.memory import load_int, load_ints, take
from overdrive.device.cpu.team import Call, Team
from overdrive.device.sampling import Layout, Masks, SamplingState

SIZES, BATCH, STATE, SCRATCH = 6, 9, 9, 6


class CpuSampler:
    """A `Sampler` on the CPU that runs on `team`, as every kernel of its stream."""

    def __init__(self, vocab_size: int, dtype: torch.dtype, team: Team) -> None:
        kernel, arguments = _kernel(str(dtype).removeprefix("torch.")), "q" * (SIZES + BATCH + STATE + SCRATCH)
        self._call = Call(team, kernel, arguments)
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
        batch = (logits.to(state.dtype), layout.rows, layout.slots, layout.depths, layout.positions, drafts)
        tables = (state.reals, state.integers, state.top_p, counts.entry, counts.output, counts.prompt)
        tensors = (*batch, bits, index, tokens, *tables, state.bias_ids, state.bias, state.stop_ids, *self._scratch)
        arrays = [tensor.contiguous() for tensor in tensors]  # alive until the kernel has returned
        sizes = (len(logits), state.vocab_size, len(state.top_p), drafts.shape[1])
        widths = (state.bias.shape[1], state.stop_ids.shape[1])
        call = self._call if len(logits) > 1 else self._call.alone  # one logit row: nothing to share out
        call(*sizes, *widths, *(array.data_ptr() for array in arrays))
        return tokens


@intrinsic
def _at(context, address):
    """A pointer to `address`."""

    def emit(context, b, signature, arguments):
        return b.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), emit


@inner
def _array(address, size, kind):
    return carray(_at(address), size, kind)


@inner
def _scratch(a, thread, vocab, real, itemsize):
    """One thread's part of the scratch that the argument block `a` names."""
    x, ids, maxima, folded, hashes, work = load_ints(a + 8 + 8 * (SIZES + BATCH + STATE), SCRATCH)
    blocks = (vocab + BLOCK - 1) // BLOCK
    return Scratch(
        _array(x + thread * vocab * itemsize, vocab, real),
        _array(ids + thread * vocab * 4, vocab, np.int32),
        _array(maxima + thread * blocks * itemsize, blocks, real),
        _array(folded + thread * (BLOCK // 2) * itemsize, BLOCK // 2, real),
        _array(hashes + thread * BLOCK * 4, BLOCK, np.uint32),
        _array(work + thread * 2 * BINS * 8, 2 * BINS, np.float64),
    )


@inner
def _rule(reals, integers, top_p, position, slots, slot):
    """reals: [5 * slots] and integers: [4 * slots], in the order of `SamplingState`; the address of top_p."""
    return Rule(
        reals[slot],
        reals[slots + slot],
        reals[2 * slots + slot],
        reals[3 * slots + slot],
        reals[4 * slots + slot],
        _array(top_p + 8 * slot, 1, np.float64)[0],
        integers[slot],
        integers[slots + slot],
        position,
    )


def _kernel(kind: str) -> CFunc:
    """Kernel for logits of NumPy type `kind`."""
    real, itemsize, source = getattr(np, kind), np.dtype(kind).itemsize, SOURCE
    whole, half, flag = np.int64, np.int32, np.bool_

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018  (makes the source part of the cache key)
        n_logits, vocab, n_slots, n_drafts, n_biases, n_stops = load_ints(a + 8, SIZES)
        logits, rows, slots, depths, positions, drafts, bits, index, tokens = load_ints(a + 8 + 8 * SIZES, BATCH)
        reals, integers, top_p, entries, output, prompt, bias_ids, bias, stop_ids = load_ints(
            a + 8 + 8 * (SIZES + BATCH), STATE
        )
        scratch = _scratch(a, thread, vocab, real, itemsize)
        slot_reals, slot_integers = _array(reals, 5 * n_slots, real), _array(integers, 4 * n_slots, whole)
        drawn, words = _array(tokens, n_logits, whole), (vocab + 31) // 32
        n = take(a)
        while n < n_logits:
            slot, position = load_int(slots + 8 * n), load_int(positions + 8 * n)
            entry, mask = load_int(entries + 8 * slot), load_int(index + 8 * n)
            banned = position < slot_integers[2 * n_slots + slot]
            rule = _rule(slot_reals, slot_integers, top_p, position, n_slots, slot)
            lists = Lists(
                _array(output + entry * vocab * 4, vocab if entry >= 0 else 0, half),
                _array(prompt + entry * vocab, vocab if entry >= 0 else 0, flag),
                _array(drafts + load_int(rows + 8 * n) * n_drafts * 8, load_int(depths + 8 * n), whole),
                _array(bias_ids + slot * n_biases * 8, n_biases, whole),
                _array(bias + slot * n_biases * itemsize, n_biases, real),
                _array(stop_ids + slot * n_stops * 8, n_stops if banned else 0, whole),
                _array(bits + mask * words * 4, words if mask >= 0 else 0, half),
            )
            drawn[n] = draw_row(_array(logits + n * vocab * itemsize, vocab, real), rule, lists, scratch)
            n = take(a)

    return kernel
