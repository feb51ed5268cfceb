"""The CUDA sampler: the rules of `overdrive.device.sampling` in static shapes, without waiting for the device.

A step is launched with the rules that its rows need, which the host knows (`StaticSamplingState.rules`): every set of
rules is another graph. Logit rows that no row of the step owns are drawn too, and read by nobody.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overdrive.device.cuda.sampling_state import Rules, StaticSamplingState
from overdrive.device.sampling import Layout, Masks, finite, sample

SLICE = 256
"""Logit rows whose adjusted logits exist at once while all rules are applied."""

PARTS = 128
"""Most parts that the logits of a row are divided into, each for one program."""

LANES = 4096
"""Logits that a program that has a row to itself looks at at once."""


class Scratch:
    """What the kernels leave for each other. Made before any graph is captured: graphs know it by address.

    scores, tops: [N, PARTS] float32, columns: [N, PARTS] int32, of each part the best score, the largest logit, and the
    column of the best score. ahead: [N, PARTS] int32, before, total: [N, PARTS] float64, how many logits, of what mass,
    stand before the row's winner, and the mass of all. adjusted: [SLICE, V] float32. near: [SLICE, LANES] float32,
    those that may be among a row's k largest, and n_near: [SLICE] int32, how many.
    """

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self.scores, self.tops = torch.zeros((2, rows, PARTS), dtype=torch.float32, device=device)
        self.columns = torch.zeros((rows, PARTS), dtype=torch.int32, device=device)
        self.ahead = torch.zeros((rows, PARTS), dtype=torch.int32, device=device)
        self.before, self.total = torch.zeros((2, rows, PARTS), dtype=torch.float64, device=device)
        rows = min(rows, SLICE)
        self.adjusted = torch.zeros((rows, vocab_size), dtype=torch.float32, device=device)
        self.near = torch.zeros((rows, LANES), dtype=torch.float32, device=device)
        self.n_near = torch.zeros(rows, dtype=torch.int32, device=device)


class CudaSampler:
    """Draws a token for every logit row. Holds no state but scratch memory."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device | str) -> None:
        """rows: most logit rows of a call. vocab_size: most logits of a row."""
        device = torch.device(device)
        self._scratch = Scratch(rows, vocab_size, device) if device.type == "cuda" else None

    def draw(
        self,
        logits: Tensor,
        layout: Layout,
        drafts: Tensor,
        state: StaticSamplingState,
        rules: Rules,
        ids: Tensor | None = None,
        out: Tensor | None = None,
        masks: Masks | None = None,
    ) -> Tensor:
        """One token for each logit row, [N] int64, written into `out` where it is given, which may be a column.

        logits: [N, V], rows contiguous, not changed. layout, drafts, masks: as for `overdrive.device.sampling.Sampler`.
        rules: at least what the slots of the rows that count need. ids: [V] int64, ascending, the target's id of each
        logit of a draft network whose vocabulary is a part of the target's: what is drawn is a target id, by the rules
        and with the noise of the target's.
        """
        out = out if out is not None else torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        if self._scratch is not None:
            from overdrive.device.cuda import sampling_kernels

            sampling_kernels.draw(logits, layout, drafts, state, rules, ids, out, masks, self._scratch)
        else:
            out.copy_(torch_draw(logits, layout, drafts, state, rules, ids, masks))
        return out


def torch_draw(
    logits: Tensor,
    layout: Layout,
    drafts: Tensor,
    state: StaticSamplingState,
    rules: Rules,
    ids: Tensor | None = None,
    masks: Masks | None = None,
) -> Tensor:
    """`CudaSampler.draw` by the reference: ids that a draft network lacks stand lowest."""
    if ids is not None:
        spread = torch.full((len(logits), state.vocab_size), -torch.inf, dtype=state.dtype, device=logits.device)
        logits = spread.index_copy_(1, ids, finite(logits.to(state.dtype)))
    if rules == "plain":
        return finite(logits).argmax(dim=1)
    return sample(logits, layout, drafts, state, masks)
