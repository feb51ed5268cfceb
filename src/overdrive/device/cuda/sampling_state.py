"""Sampling parameters by slot at addresses that never move, set in batches that wait for nothing.

The same tables as `overdrive.device.sampling.SamplingState`, which its rules read, at their full size from the start:
penalties have a line of counts for every slot, lists as many places as the server lets a request have. What each slot
asks for is also kept on the host, since a step is launched with only those rules that its rows need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from overdrive.device.sampling import SamplingState, slot_integers, slot_lists, slot_reals
from overdrive.device.token_counts import TokenCounts
from overdrive.types import Admission, SamplingParams

Rules = Literal["plain", "noisy", "full"]
"""Which rules a step's rows need: none but the argmax; temperature and noise for some; all of them."""

LEVELS: tuple[Rules, ...] = ("plain", "noisy", "full")

STOPS, BIASES = 512, 1024
"""Places for stop ids and biases of a slot. A request with more widens the table: see `version`."""


def rules_of(params: SamplingParams) -> Rules:
    """What a request's draws need."""
    if params.penalised or params.logit_bias or params.min_tokens:
        return "full"
    if not params.temperature > 0:
        return "plain"
    return "full" if params.top_k > 0 or params.top_p < 1 or params.min_p > 0 else "noisy"


class StaticSamplingState(SamplingState):
    """`SamplingState` for CUDA graphs. slots: those of the device state, the last one, of padding rows, included.

    n_biases, n_stops: [slots] int64, how many entries of the slot's lists there are; stop ids only where min_tokens
    asks for them.
    version: counts how often a table has moved. Graphs that read the tables are good for the version that they were
    captured at; those of a later version must be captured anew, or their work be run without a graph.
    """

    def __init__(self, slots: int, vocab_size: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        super().__init__(slots, vocab_size, dtype, device)
        device = torch.device(device)
        self.stop_ids = torch.full((slots, STOPS), -1, dtype=torch.int64, device=device)
        self.bias_ids = torch.full((slots, BIASES), -1, dtype=torch.int64, device=device)
        self.bias = torch.zeros((slots, BIASES), dtype=dtype, device=device)
        self.n_biases, self.n_stops = torch.zeros((2, slots), dtype=torch.int64, device=device)
        # A slot's line of counts is its own number, so that no table ever grows.
        self.counts.output = torch.zeros((slots, vocab_size), dtype=torch.int32, device=device)
        self.counts.prompt = torch.zeros((slots, vocab_size), dtype=torch.bool, device=device)
        self.version = 0
        self._levels = np.zeros(slots, dtype=np.int8)
        self._listed: set[int] = set()  # slots whose lists are not empty

    def rules(self, slots: Iterable[int]) -> Rules:
        """What a step over these slots must be launched with."""
        return LEVELS[max((int(self._levels[slot]) for slot in slots), default=0)]

    def admit(self, slot: int, params: SamplingParams, tokens: Sequence[int], prompt_len: int) -> None:
        """As `SamplingState.admit`."""
        self.admit_all([Admission("", slot, tuple(tokens), prompt_len, 0, params)])

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        """Give slots to requests. Enqueues copies and writes on the current stream; nothing waits."""
        if not admissions:
            return
        slots = [admission.slot for admission in admissions]
        reals, integers = [], []
        for admission in admissions:
            params = admission.params
            level, entry = LEVELS.index(rules_of(params)), admission.slot if params.penalised else -1
            self._levels[admission.slot] = level
            reals.append((*slot_reals(params), params.top_p))
            integers.append((*slot_integers(params, admission.prompt_len, self.vocab_size), entry, level == 0))
        self._write_scalars(slots, np.array(reals), np.array(integers))
        for admission in admissions:
            self._admit_lists(admission.slot, admission.params)
            if admission.params.penalised:
                self._count(admission)

    def absorb(self, slots: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """As `SamplingState.absorb`, in static shapes. A step needs it where its rules are "full"."""
        if tokens.is_cuda:
            from overdrive.device.cuda import sampling_kernels

            sampling_kernels.absorb(self.counts, slots, tokens, counts)
        else:
            torch_absorb(self.counts, slots, tokens, counts)

    def _write_scalars(self, slots: list[int], reals: np.ndarray, integers: np.ndarray) -> None:
        """slots: [n]. reals: [n, 6] and integers: [n, 6], lines of the tables in order, then the single ones."""
        packed = np.concatenate([np.array(slots)[:, None], integers, reals.view(np.int64)], axis=1)
        column = self._cross(packed.T.copy())  # [13, n]: integers, and reals bit by bit
        at, whole, real = column[0], column[1:7], column[7:].view(torch.float64)
        self.integers.index_copy_(1, at, whole[:4])
        self.reals.index_copy_(1, at, real[:5].to(self.dtype))
        self.counts.entry.index_copy_(0, at, whole[4])
        self.plain.index_copy_(0, at, whole[5].bool())
        self.top_p.index_copy_(0, at, real[5])

    def _admit_lists(self, slot: int, params: SamplingParams) -> None:
        """Only a slot whose lists are not empty, or were not, costs anything."""
        stops, bias = slot_lists(params, self.vocab_size)
        stops = stops if params.min_tokens else []
        if stops or bias or slot in self._listed:
            self._listed.add(slot)  # before anything is written, of which a failure may leave a part
            self._reserve(len(stops), len(bias))
            self._write_list(self.stop_ids, slot, stops, -1)
            self._write_list(self.bias_ids, slot, list(bias), -1)
            self._write_list(self.bias, slot, list(bias.values()), 0)
            self.n_stops[slot], self.n_biases[slot] = len(stops), len(bias)
        if not (stops or bias):
            self._listed.discard(slot)

    def _reserve(self, stops: int, biases: int) -> None:
        """Widen tables that are too narrow, by doubling; what was captured with the old ones is out of date.

        No table moves before there is memory for all that move with it.
        """
        while stops > self.stop_ids.shape[1]:
            self.stop_ids = torch.nn.functional.pad(self.stop_ids, (0, self.stop_ids.shape[1]), value=-1)
            self.version += 1
        while biases > self.bias_ids.shape[1]:
            ids = torch.nn.functional.pad(self.bias_ids, (0, self.bias_ids.shape[1]), value=-1)
            bias = torch.nn.functional.pad(self.bias, (0, self.bias.shape[1]))
            self.bias_ids, self.bias = ids, bias
            self.version += 1

    def _write_list(self, table: Tensor, slot: int, values: Sequence[float], pad: int) -> None:
        line = np.full(table.shape[1], pad, dtype=np.float64)  # ids are exact in it
        line[: len(values)] = values
        table[slot].copy_(self._cross(line))

    def _count(self, admission: Admission) -> None:
        """Count the tokens of a penalised request afresh, on the device."""
        output, prompt = self.counts.output[admission.slot], self.counts.prompt[admission.slot]
        ids = self._cross(np.array(admission.tokens, dtype=np.int64))
        spoken = ids[admission.prompt_len :]
        output.zero_().index_add_(0, spoken, torch.ones_like(spoken, dtype=torch.int32))
        prompt.zero_().index_fill_(0, ids[: admission.prompt_len], True)

    def _cross(self, values: np.ndarray) -> Tensor:
        """The values on the device; a copy from pinned memory is not waited for."""
        device, host = self.reals.device, torch.from_numpy(values)
        return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def torch_absorb(table: TokenCounts, slots: Tensor, tokens: Tensor, counts: Tensor) -> None:
    """`StaticSamplingState.absorb` in torch."""
    entries = table.entry[slots].unsqueeze(1)  # [R, 1]
    new = (torch.arange(tokens.shape[1], device=tokens.device) < counts.unsqueeze(1)) & (entries >= 0)
    places = entries.clamp(min=0) * table.output.shape[1] + torch.where(new, tokens, 0)
    table.output.view(-1).scatter_add_(0, places.view(-1), new.view(-1).to(torch.int32))
