"""`Generator` in plain torch over a static cache: continuous batching without an engine, fast on a GPU.

Slots are filled with prompts in groups and decoded in strides of a few steps; between strides the host looks which rows
have ended. What the host does with finished answers happens while the device runs the next stride. Knows jobs and
slots; must never know text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch

from overdrive.model.transformer import Transformer
from overdrive.train.generate.attention import MaskedDecode, PrefillAttention, SlotCache, decode_attention
from overdrive.train.generate.decode import DecodeStep, Slots, captured, token_batch
from overdrive.train.generate.jobs import Feed, Job, check

_GROUP_TOKENS = 1 << 15  # of one prefill, padding included: enough to fill a GPU, little enough for its memory
_PAD = 32
_BUCKET = 128


class BatchedGenerator:
    """Draws answers for many prompts at once, on CUDA or (for tests) on a CPU. Used by one thread.

    slots: rows at once. max_len: most tokens of a prompt and its answer. stops: ids that end an answer.
    stride: steps between two looks at what has ended. seed: of all draws; the same jobs in the same order give the
    same answers on the same machine. attention: name of the one that decodes, for people.
    """

    def __init__(
        self,
        model: Transformer,
        stops: Iterable[int],
        *,
        slots: int = 1024,
        max_len: int = 1024,
        stride: int = 16,
        seed: int = 0,
    ) -> None:
        self.stops, self.max_len = tuple(sorted(set(stops))), max_len
        self._model, self._stride, self._device = model, stride, model.device
        self._reserve = slots // 4  # jobs at hand for rows that end
        with torch.inference_mode():
            length = -(-max_len // _BUCKET) * _BUCKET  # padding of a prefill stays within its slot
            self._slots = Slots.allocate(slots, max_len, model.device)
            self._cache = SlotCache.allocate(model.config, slots, length, model.dtype, model.device)
            self._step = self._make_step(seed)
        self._running: dict[int, Job] = {}  # by slot
        self._ages: dict[int, int] = {}  # steps since a slot was filled
        self._free = list(range(slots))

    def run(self, feed: Feed) -> None:
        """Until the feed has no more jobs and every answer is given back. Raises ValueError for one that cannot fit."""
        ready: deque[Job] = deque()
        ended: list[tuple[Job, list[int]]] = []
        while True:
            for job, answer in ended:  # the device is busy with the last stride meanwhile
                feed.done(job.key, answer)
            ready.extend(feed.take(max(0, max(len(self._free), self._reserve) - len(ready))))
            with torch.inference_mode():
                ended = self._collect()
                self._fill(ready)
                if self._running:
                    self._advance()
                elif not ended:
                    return

    def _make_step(self, seed: int) -> Callable[[int], None]:
        model, device = self._model, self._device
        generator = torch.Generator(device).manual_seed(seed)
        attention = decode_attention(model.config, model.dtype, device)
        self.attention = attention.__name__
        stops = torch.tensor(self.stops, dtype=torch.int64, device=device)
        step = DecodeStep(model, self._cache, self._slots, attention, stops, generator)
        if device.type != "cuda":
            return step
        # An attention that reads no more than a row's own length needs no bound.
        limits = list(range(_BUCKET, self._cache.length, _BUCKET)) if attention is MaskedDecode else []
        return captured(step, [*limits, self._cache.length], generator, device)

    def _advance(self) -> None:
        """A stride of steps, launched and not waited for."""
        for slot in self._running:
            self._ages[slot] += self._stride
        longest = max(self._longest(slot) for slot in self._running)
        for _ in range(self._stride):
            self._step(longest)

    def _longest(self, slot: int) -> int:
        """Most tokens whose keys the slot can hold after its steps."""
        job = self._running[slot]
        return len(job.prompt) + min(self._ages[slot], job.max_tokens) - 1

    def _collect(self) -> list[tuple[Job, list[int]]]:
        """Wait for the device; the answers that are complete, whose slots are free again."""
        alive = self._slots.alive.tolist()
        over = [slot for slot in self._running if not alive[slot]]
        if not over:
            return []
        which = torch.tensor(over, device=self._device)
        counts = self._slots.counts[which].tolist()
        answers = self._slots.answers[which, : max(counts)].cpu().numpy()
        self._free.extend(over)
        return [
            (self._running.pop(slot), answer[:count].tolist())
            for slot, answer, count in zip(over, answers, counts, strict=True)
        ]

    def _fill(self, ready: deque[Job]) -> None:
        """Give free slots to jobs that wait."""
        placed = [(self._free.pop(), ready.popleft()) for _ in range(min(len(self._free), len(ready)))]
        if not placed:
            return
        for slot, job in placed:
            check(job, self.max_len)
            self._running[slot], self._ages[slot] = job, 0
        self._admit(placed)
        for group, padded in groups(placed):
            self._prefill(group, padded)

    def _admit(self, placed: Sequence[tuple[int, Job]]) -> None:
        """Tell the device of new rows. A prompt's last token is fed by the first decode step, which draws from it."""
        slots, device = self._slots, self._device
        which = torch.tensor([slot for slot, _ in placed], device=device)
        jobs = [job for _, job in placed]
        slots.ids[which] = torch.tensor([job.prompt[-1] for job in jobs], device=device)
        slots.positions[which] = torch.tensor([len(job.prompt) - 1 for job in jobs], device=device)
        slots.counts[which] = 0
        slots.limits[which] = torch.tensor([job.max_tokens for job in jobs], device=device)
        slots.temperature[which] = torch.tensor([float(job.temperature) for job in jobs], device=device)
        slots.top_p[which] = torch.tensor([float(job.top_p) for job in jobs], device=device)
        slots.alive[which] = True

    def _prefill(self, group: Sequence[tuple[int, Job]], padded: int) -> None:
        """Keys and values of the prompts but for their last tokens, each padded to `padded`."""
        ids = np.zeros((len(group), padded), dtype=np.int64)
        for row, (_, job) in enumerate(group):
            ids[row, : len(job.prompt) - 1] = job.prompt[:-1]
        first = torch.tensor([slot for slot, _ in group], device=self._device) * self._cache.length
        within = torch.arange(padded, device=self._device)
        places = (first.unsqueeze(1) + within).flatten()
        fed = torch.from_numpy(ids).to(self._device).flatten()
        attention = PrefillAttention(self._cache, self._model.config, places, padded)
        self._model.forward(token_batch(fed, within.repeat(len(group))), attention)


def groups(placed: Sequence[tuple[int, Job]]) -> Iterator[tuple[list[tuple[int, Job]], int]]:
    """Rows to prefill together and the length they are padded to: similar lengths, a bounded number of tokens.

    A prompt of one token has nothing to prefill.
    """
    group: list[tuple[int, Job]] = []
    for slot, job in sorted(placed, key=lambda row: len(row[1].prompt)):
        if len(job.prompt) == 1:
            continue
        if group and (len(group) + 1) * _padded(job) > _GROUP_TOKENS:
            yield group, _padded(group[-1][1])
            group = []
        group.append((slot, job))
    if group:
        yield group, _padded(group[-1][1])


def _padded(job: Job) -> int:
    """Length of a prompt without its last token, rounded up: few shapes, and never beyond the slot."""
    return -(-(len(job.prompt) - 1) // _PAD) * _PAD
