"""The decode step of a batch of slots: all of its state on the device, nothing for the host to decide.

A step feeds every slot's last token, draws the next one, and marks the rows that have ended; ended rows run along
without effect until the host gives their slot to somebody else. On CUDA the step is captured in graphs. Knows nothing
of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.model.transformer import Transformer
from overdrive.train.generate.attention import DecodeAttention, SlotCache
from overdrive.train.generate.sampling import draw


@dataclass(frozen=True, slots=True)
class Slots:
    """What the device knows of each of B rows. All are [B] but `answers`, int32 [B, length + 1], the last one scratch.

    ids: int64, the token to feed. positions: int64, where it stands. counts: int64, answer tokens drawn so far.
    limits: int64, most of them. temperature, top_p: float32. alive: bool, whether the answer goes on.
    """

    ids: Tensor
    positions: Tensor
    counts: Tensor
    limits: Tensor
    temperature: Tensor
    top_p: Tensor
    alive: Tensor
    answers: Tensor

    @classmethod
    def allocate(cls, slots: int, length: int, device: torch.device) -> Slots:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            ids=zeros(slots),
            positions=zeros(slots),
            counts=zeros(slots),
            limits=zeros(slots),
            temperature=zeros(slots, dtype=torch.float32),
            top_p=zeros(slots, dtype=torch.float32) + 1,
            alive=zeros(slots, dtype=torch.bool),
            answers=zeros(slots, length + 1, dtype=torch.int32),
        )

    def record(self, drawn: Tensor, stops: Tensor) -> None:
        """Append the drawn ids [B] to the rows that are alive, and end those that reached a stop or their limit."""
        scratch = self.answers.shape[1] - 1
        place = torch.where(self.alive, self.counts, scratch).unsqueeze(1)
        self.answers.scatter_(1, place, drawn.unsqueeze(1).to(torch.int32))
        self.counts.add_(self.alive)
        self.positions.add_(self.alive)
        self.ids.copy_(torch.where(self.alive, drawn, self.ids))
        ended = (drawn.unsqueeze(1) == stops).any(1) | (self.counts >= self.limits)
        self.alive.logical_and_(~ended)


class DecodeStep:
    """One token for every slot that is alive. The caller holds torch.inference_mode.

    stops: int64, ids that end an answer.
    """

    def __init__(
        self,
        model: Transformer,
        cache: SlotCache,
        slots: Slots,
        attention: DecodeAttention,
        stops: Tensor,
        generator: torch.Generator,
    ) -> None:
        self._model, self._cache, self._slots, self._attention = model, cache, slots, attention
        self._stops, self._generator = stops, generator
        self._rows = torch.arange(len(slots.ids), device=slots.ids.device)

    def __call__(self, limit: int) -> None:
        """limit: no row that is alive has more than this many tokens, the fed one included."""
        slots = self._slots
        places = self._rows * self._cache.length + slots.positions
        lengths = torch.where(slots.alive, slots.positions + 1, 1).to(torch.int32)
        attention = self._attention(self._cache, self._model.config, places, lengths, limit)
        hidden = self._model.forward(token_batch(slots.ids, slots.positions), attention).final
        drawn = draw(self._model.logits(hidden), slots.temperature, slots.top_p, self._generator)
        slots.record(drawn, self._stops)


def token_batch(ids: Tensor, positions: Tensor) -> Batch:
    """Tokens [T] at positions [T] as the model wants them; pages mean nothing to an attention over slots."""
    none = positions[:0]
    return Batch(
        ids=ids,
        positions=positions,
        rows=none,
        offsets=none,
        page_table=none,
        starts=none,
        gaps=none,
        writes=none,
        wanted=none,
    )


class CapturedStep:
    """A step as CUDA graphs, one per limit; a call replays the smallest that covers what it is given.

    Made while no row is alive: the warm-up runs steps for real. Keeps the step: graphs read its tensors where they lay.
    """

    def __init__(
        self, step: Callable[[int], None], limits: Sequence[int], generator: torch.Generator, device: torch.device
    ) -> None:
        """limits: ascending."""
        self._step, self._limits, self._generator = step, tuple(limits), generator
        self._warm_up(device)
        graphs: list[torch.cuda.CUDAGraph] = []
        for limit in reversed(self._limits):  # the largest first: the others find room in its memory
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(generator)
            with torch.cuda.graph(graph, pool=graphs[0].pool() if graphs else None):
                step(limit)
            graphs.append(graph)
        self._graphs = graphs[::-1]

    def __call__(self, limit: int) -> None:
        which = next(index for index, covered in enumerate(self._limits) if covered >= limit)
        self._graphs[which].replay()

    def _warm_up(self, device: torch.device) -> None:
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step(self._limits[-1])
        torch.cuda.current_stream(device).wait_stream(side)
