"""How often each token stands in a request, kept only for requests whose penalties ask for it.

Rows of the table are handed to slots on admission and taken back by the slot's next one, so memory follows the number
of penalised requests, not slots x vocabulary. Counts advance on the device; the host never reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class TokenCounts:
    """Counts per penalised slot.

    entry: [slots] int64, the slot's row in the tables below, -1 for slots without penalties.
    output: [entries, V] int32, occurrences in the output. prompt: [entries, V] bool, whether it is in the prompt.
    """

    def __init__(self, slots: int, vocab_size: int, device: torch.device) -> None:
        self.entry = torch.full((slots,), -1, dtype=torch.int64, device=device)
        self.output = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self.prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self._free: list[int] = []
        self._held: dict[int, int] = {}  # slot -> entry, the host's copy of `entry`

    def forget(self, slot: int) -> None:
        """The slot's next request is not penalised."""
        if slot in self._held:
            self.entry[slot] = -1  # first: where this fails, the next one may not have the entry
            self._free.append(self._held.pop(slot))

    def admit(self, slot: int, tokens: Sequence[int], prompt_len: int) -> None:
        """Count afresh for `slot`: the first `prompt_len` of `tokens` are its prompt, the rest output so far."""
        entry = self._held.get(slot)
        if entry is None:
            entry = self._take()
            self._held[slot] = entry
        self.entry[slot] = entry  # in any case: the admission that took it may have failed here
        ids = torch.as_tensor(tokens, dtype=torch.int64, device=self.output.device)
        vocab_size = self.output.shape[1]
        self.prompt[entry] = False
        self.prompt[entry, ids[:prompt_len]] = True
        self.output[entry] = torch.bincount(ids[prompt_len:], minlength=vocab_size).to(torch.int32)

    def absorb(self, slots: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """Add `tokens[r, :counts[r]]` to the output of `slots[r]`. slots: [R]. tokens: [R, K+1]. counts: [R]."""
        if not self._held:
            return
        entries = self.entry[slots].unsqueeze(1).expand_as(tokens)  # [R, K+1]
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        new = (steps < counts.unsqueeze(1)) & (entries >= 0)
        self.output.index_put_((entries.clamp(min=0), tokens), new.to(torch.int32), accumulate=True)

    def _take(self) -> int:
        if not self._free:
            have, vocab_size = self.output.shape
            more = max(1, min(have, len(self.entry) - have))
            output = torch.cat([self.output, self.output.new_zeros((more, vocab_size))])
            prompt = torch.cat([self.prompt, self.prompt.new_zeros((more, vocab_size))])
            self.output, self.prompt = output, prompt  # both, or none where memory does not last
            self._free = list(range(have + more - 1, have - 1, -1))
        return self._free.pop()
