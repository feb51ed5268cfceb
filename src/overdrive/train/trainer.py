"""The training loop: batches, steps of the optimiser, the learning rate's course, checkpoints that continue exactly.

Knows the order of things; what is learnt is `objective.py`'s business, what is shown is the caller's. A run's next step
depends on the checkpoint alone (and, with a time limit, on the time that it took to get there).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from overdrive.errors import OverdriveError
from overdrive.train.batches import Lesson, clipped_lengths, make_lesson, plan_epoch, sample, trainable
from overdrive.train.dataset import Dataset
from overdrive.train.head import Head
from overdrive.train.loss import Kernel, slice_loss
from overdrive.train.objective import unrolled_loss
from overdrive.train.options import TrainOptions
from overdrive.train.target import Teacher

EPOCHS = 10.0
_LAST_RATE = 0.02  # of the peak, where the cosine ends


@dataclass(slots=True)
class Position:
    """How far a run is. batch: the next one of the epoch. tokens: trained on; answers: those of them in answers.

    seconds: spent in training, over all sittings.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    answers: int = 0
    seconds: float = 0.0


class Trainer:
    """Trains `head` on the train split. `position` is where it stands; `load` moves it to a checkpoint.

    Raises OverdriveError when there is nothing to train on.
    """

    def __init__(self, teacher: Teacher, head: Head, dataset: Dataset, options: TrainOptions) -> None:
        self.head, self._teacher, self._dataset, self._options = head, teacher, dataset, options
        found = trainable(dataset, options.max_len)
        self._conversations = sample(dataset, found, options.max_len, options.most_tokens)
        self._lengths: NDArray[np.int64] = clipped_lengths(dataset, self._conversations, options.max_len)
        self._parameters = list(head.weights.values())
        self._optimiser = torch.optim.AdamW(
            self._parameters,
            lr=options.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=options.weight_decay,
            fused=teacher.device.type == "cuda",
        )
        # Shapes change with every batch: one kernel for all of them.
        self._kernel: Kernel = torch.compile(slice_loss, dynamic=True) if options.compile else slice_loss
        self.position = Position()

    def share_done(self) -> float:
        """How much of the run is over, 0 to 1: of the tokens or of the time, whichever runs out first."""
        options, position = self._options, self.position
        epochs = options.epochs or (0.0 if options.minutes else EPOCHS)
        by_tokens = position.tokens / (epochs * int(self._lengths.sum())) if epochs else 0.0
        by_time = position.seconds / (60 * options.minutes) if options.minutes else 0.0
        return min(max(by_tokens, by_time), 1.0)

    def steps(self) -> Iterator[torch.Tensor]:
        """Train to the end, a step at a time; yields each step's loss, on the device, when `position` counts it.

        What the caller does between steps is part of the run's time.
        """
        began = time.monotonic() - self.position.seconds
        while (done := self.share_done()) < 1:
            for lesson in self._rest_of_epoch():
                loss = self._step(lesson, learning_rate(done, self._options))
                position = self.position
                position.step, position.batch = position.step + 1, position.batch + 1
                position.tokens, position.answers = position.tokens + lesson.tokens, position.answers + lesson.answers
                position.seconds = time.monotonic() - began
                yield loss
                position.seconds = time.monotonic() - began
                if (done := self.share_done()) >= 1:
                    return
            self.position.epoch, self.position.batch = self.position.epoch + 1, 0

    def _rest_of_epoch(self) -> Iterator[Lesson]:
        options = self._options
        rng = np.random.default_rng((options.train_seed, self.position.epoch))
        batches = plan_epoch(self._lengths, options.batch_tokens, rng)
        for batch in batches[self.position.batch :]:
            yield make_lesson(self._dataset, self._conversations[batch], options.max_len, self._teacher.device)

    def _step(self, lesson: Lesson, rate: float) -> torch.Tensor:
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        options = self._options
        loss = unrolled_loss(
            self.head, self._teacher, lesson, steps=options.steps, hard=options.hard, kernel=self._kernel
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, self._options.clip)
        self._optimiser.step()
        self._optimiser.zero_grad()
        return loss.detach()

    def save(self, path: Path) -> None:
        """Write everything the next step depends on; the file is whole or absent."""
        position = {name: getattr(self.position, name) for name in Position.__slots__}
        state = {
            "run": self._run(),
            "position": position,
            "tap_scale": self.head.tap_scale,
            "weights": {name: weight.detach() for name, weight in self.head.weights.items()},
            "optimiser": self._optimiser.state_dict(),
        }
        part = path.with_suffix(".part")
        torch.save(state, part)
        os.replace(part, path)

    def load(self, path: Path) -> None:
        """Continue from a checkpoint. Raises OverdriveError for one that is damaged or of another run."""
        try:
            state = torch.load(path, map_location=self._teacher.device, weights_only=True)
        except OSError as error:
            raise OverdriveError(f"{path} cannot be read ({error.strerror}); remove it to begin anew") from None
        except Exception:  # pickle, zipfile and torch each raise their own, and advise to trust the file
            raise OverdriveError(f"{path} is damaged; remove it to begin anew") from None
        if not isinstance(state, dict) or not {"run", "position", "weights", "optimiser", "tap_scale"} <= state.keys():
            raise OverdriveError(f"{path} is no checkpoint of a training run; remove it to begin anew")
        for name, value in self._run().items():
            if state["run"].get(name) != value:
                raise OverdriveError(
                    f"{path} belongs to a run whose {name} was {state['run'].get(name)}, not {value}; "
                    "give the same again, or another --out"
                )
        self.head.tap_scale.copy_(state["tap_scale"])
        with torch.no_grad():
            for name, weight in self.head.weights.items():
                weight.copy_(state["weights"][name])
        self._optimiser.load_state_dict(state["optimiser"])
        self.position = Position(**state["position"])

    def _run(self) -> dict[str, Any]:
        """What two sittings must share to be one run."""
        options, ids = self._options, self.head.draft_ids
        return {
            "target": self._teacher.fingerprint,
            "head": str(self.head.config),
            "draft vocabulary": int((ids * torch.arange(1, len(ids) + 1, device=ids.device)).sum()),
            "number of training tokens": int(self._lengths.sum()),
            "batch_tokens": options.batch_tokens,
            "steps": options.steps,
            "train_seed": options.train_seed,
        }


def learning_rate(done: float, options: TrainOptions) -> float:
    """Linear rise over the warm-up, then a cosine down to a small rest. done: share of the run that is over, 0 to 1."""
    warm = options.warmup
    if done < warm:
        return options.learning_rate * (done / warm * 0.99 + 0.01)
    fall = 0.5 * (1 + math.cos(math.pi * (done - warm) / (1 - warm)))
    return options.learning_rate * (_LAST_RATE + (1 - _LAST_RATE) * fall)
