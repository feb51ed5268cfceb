"""`Generator` in plain torch over a static cache: continuous batching without an engine, fast on a GPU.

Slots are filled with prompts in groups and decoded in strides of a few steps. The host looks at a stride's end only
when the next one is under way: everything it does then (what ended, what to ask next, which prompts to prefill) is
queued behind that, so a device never waits for it. A row that ends idles for a stride in return. Knows jobs and slots;
must never know text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overdrive.model.transformer import Transformer
from overdrive.train.generate.attention import MaskedDecode, PrefillAttention, SlotCache, decode_attention
from overdrive.train.generate.decode import CapturedStep, DecodeStep, Slots, token_batch
from overdrive.train.generate.jobs import Feed, Job, check
from overdrive.train.generate.looks import Look, Looks

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
        stride: int = 8,
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
            self._looks = Looks(self._slots)
        self._running: dict[int, Job] = {}  # by slot
        self._since: dict[int, int] = {}  # by slot: the first stride that runs its job
        self._free = list(range(slots))

    def run(self, feed: Feed) -> None:
        """Until the feed has no more jobs and every answer is given back. Raises ValueError for one that cannot fit."""
        ready: deque[Job] = deque()
        looks: deque[Look] = deque()
        while True:
            ready.extend(feed.take(max(0, max(len(self._free), self._reserve) - len(ready))))
            with torch.inference_mode():
                self._fill(ready)
                if not self._running:
                    return
                looks.append(self._advance())
                ended = self._collect(looks.popleft()) if len(looks) > 1 else []
            for job, answer in ended:
                feed.done(job.key, answer)

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
        return CapturedStep(step, [*limits, self._cache.length], generator, device)

    def _advance(self) -> Look:
        """A stride of steps and a look at its end, launched and not waited for."""
        longest = max(self._longest(slot) for slot in self._running)
        for _ in range(self._stride):
            self._step(longest)
        return self._looks.take()

    def _longest(self, slot: int) -> int:
        """Most tokens whose keys the slot can hold after the next stride."""
        job, steps = self._running[slot], (self._looks.next_stride + 1 - self._since[slot]) * self._stride
        return len(job.prompt) + min(steps, job.max_tokens) - 1

    def _collect(self, look: Look) -> list[tuple[Job, list[int]]]:
        """Wait for the look; the answers that were complete by then, whose slots are free again."""
        look.wait()
        alive, counts, answers = look.alive.tolist(), look.counts.tolist(), look.answers.numpy()
        over = [slot for slot in self._running if not alive[slot] and self._since[slot] <= look.stride]
        self._free.extend(over)
        return [(self._running.pop(slot), answers[slot, : counts[slot]].tolist()) for slot in over]

    def _fill(self, ready: deque[Job]) -> None:
        """Give free slots to jobs that wait."""
        placed = [(self._free.pop(), ready.popleft()) for _ in range(min(len(self._free), len(ready)))]
        if not placed:
            return
        for slot, job in placed:
            check(job, self.max_len)
            self._running[slot], self._since[slot] = job, self._looks.next_stride
        self._admit(placed)
        for group, padded in groups(placed):
            self._prefill(group, padded)

    def _admit(self, placed: Sequence[tuple[int, Job]]) -> None:
        """Tell the device of new rows. A prompt's last token is fed by the first decode step, which draws from it."""
        slots = self._slots
        whole = [(slot, job.prompt[-1], len(job.prompt) - 1, job.max_tokens) for slot, job in placed]
        which, ids, positions, limits = self._moved(np.array(whole, dtype=np.int64).T)
        temperature, top_p = self._moved(np.array([(j.temperature, j.top_p) for _, j in placed], dtype=np.float32).T)
        slots.ids.index_copy_(0, which, ids)
        slots.positions.index_copy_(0, which, positions)
        slots.limits.index_copy_(0, which, limits)
        slots.temperature.index_copy_(0, which, temperature)
        slots.top_p.index_copy_(0, which, top_p)
        slots.counts.index_fill_(0, which, 0)
        slots.alive.index_fill_(0, which, True)

    def _prefill(self, group: Sequence[tuple[int, Job]], padded: int) -> None:
        """Keys and values of the prompts but for their last tokens, each padded to `padded`."""
        ids = np.zeros((len(group), padded), dtype=np.int64)
        for row, (_, job) in enumerate(group):
            ids[row, : len(job.prompt) - 1] = job.prompt[:-1]
        first = self._moved(np.array([slot for slot, _ in group])) * self._cache.length
        within = torch.arange(padded, device=self._device)
        places = (first.unsqueeze(1) + within).flatten()
        attention = PrefillAttention(self._cache, self._model.config, places, padded)
        self._model.forward(token_batch(self._moved(ids).flatten(), within.repeat(len(group))), attention)

    def _moved(self, array: NDArray[Any]) -> Tensor:
        """The array on the device. From pinned memory, or the copy would wait for all that is queued."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self._device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)


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
