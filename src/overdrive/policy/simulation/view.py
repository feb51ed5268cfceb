"""What a controller is told of the simulated rows: as much as the scheduler would tell it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from overdrive.policy.controller import LoadView
from overdrive.policy.simulation.rows import Rows
from overdrive.types import MAX_DRAFTS


def view_of(rows: Rows, decode: NDArray[np.int64], prefill: int, sampled: Sequence[bool]) -> LoadView:
    """decode: slots of the decode rows. prefill: prompt tokens of the step. sampled: by kind of request."""
    caps = np.bincount(np.clip(rows.most_drafts(decode), 0, MAX_DRAFTS), minlength=MAX_DRAFTS + 1)
    return LoadView(
        decode_rows=len(decode),
        prefill_tokens=prefill,
        context_tokens=int(rows.upper_len(decode).sum()),
        sampled_rows=int(np.asarray(sampled)[rows.kind[decode]].sum()),
        caps=tuple(caps.tolist()),
    )
