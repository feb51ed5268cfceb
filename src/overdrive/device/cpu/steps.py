"""`Steps` on the CPU in numpy, whose small operations take a fifth of the time that torch's take."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.sampling import Layout, Masks
from overdrive.device.state import SlotState
from overdrive.device.verify import Imposed, Verified, lucky
from overdrive.grammar.sheet import MaskSheet


class CpuSteps:
    """The same numbers as `overdrive.device.steps.TorchSteps`, for tensors in main memory."""

    def flatten(
        self,
        state: SlotState,
        slots: Tensor,
        known: Tensor,
        emits: Tensor,
        drafts: Tensor,
        n_drafts: Tensor,
        upper_len: int,
    ) -> tuple[Batch, Layout]:
        """As `overdrive.device.batch.flatten`."""
        slot, news, guesses = slots.numpy(), known.numpy(), drafts.numpy()
        history, table, size = state.history.numpy(), state.page_table.numpy(), state.page_size
        fed = news + n_drafts.numpy()
        offsets = np.zeros(len(slot) + 1, dtype=np.int64)
        np.cumsum(fed, out=offsets[1:])
        rows = np.repeat(np.arange(len(slot)), fed)  # [T]
        within = np.arange(offsets[-1]) - offsets[rows]
        positions = state.computed.numpy()[slot][rows] + within
        of_slot, ahead = slot[rows], within - news[rows]  # ahead: index of the draft, negative for known tokens
        ids = history[of_slot, positions].astype(np.int64)
        if guesses.shape[1]:
            ids = np.where(ahead >= 0, guesses[rows, np.maximum(ahead, 0)], ids)
        pages = table[of_slot, positions // size].astype(np.int64)
        wanted = np.flatnonzero((ahead >= -1) & emits.numpy()[rows])
        batch = Batch(
            ids=torch.from_numpy(ids),
            positions=torch.from_numpy(positions),
            rows=torch.from_numpy(rows),
            offsets=torch.from_numpy(offsets),
            page_table=torch.from_numpy(table[slot, : -(-upper_len // size)]),
            starts=torch.zeros_like(slots),
            gaps=torch.from_numpy(np.zeros((len(slot), 2), np.int64)),
            writes=torch.from_numpy(pages * size + positions % size),
            wanted=torch.from_numpy(wanted),
        )
        parts = rows[wanted], of_slot[wanted], ahead[wanted] + 1, positions[wanted] + 1
        return batch, Layout(*(torch.from_numpy(part) for part in parts))

    def masks(self, sheet: MaskSheet, layout: Layout) -> Masks:
        """As `overdrive.device.steps.masks`."""
        lines = sheet.index[layout.rows.numpy(), layout.depths.numpy()]
        return Masks(torch.from_numpy(sheet.bits), torch.from_numpy(lines))

    def agree(
        self, drawn: Tensor, layout: Layout, drafts: Tensor, n_drafts: Tensor, imposed: Imposed | None = None
    ) -> Verified:
        """As `overdrive.device.verify.agree`."""
        guesses = drafts.numpy()
        rows, width = guesses.shape
        tokens = np.full((rows, width + 1), -1, dtype=np.int64)
        tokens[layout.rows.numpy(), layout.depths.numpy()] = drawn.numpy()
        drew = tokens >= 0
        offered = np.arange(width) < n_drafts.numpy()[:, None]  # [R, K]
        agreed = guesses == tokens[:, :-1] if imposed is None else lucky(imposed, layout, drafts).numpy()
        agreed = agreed & offered & drew[:, 1:]
        counts = np.where(drew[:, 0], np.logical_and.accumulate(agreed, axis=1).sum(axis=1) + 1, 0)
        tokens[np.arange(width + 1) >= counts[:, None]] = 0
        return Verified(torch.from_numpy(tokens), torch.from_numpy(counts))

    def advance(self, state: SlotState, slots: Tensor, known: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """As `SlotState.advance`."""
        slot, found, new = slots.numpy(), tokens.numpy(), counts.numpy()
        lengths, computed = state.lengths.numpy(), state.computed.numpy()
        rows, depths = np.nonzero(np.arange(found.shape[1]) < new[:, None])
        of_slot = slot[rows]
        state.history.numpy()[of_slot, lengths[of_slot] + depths] = found[rows, depths]
        lengths[slot] += new
        computed[slot] += known.numpy() + np.maximum(new - 1, 0)
