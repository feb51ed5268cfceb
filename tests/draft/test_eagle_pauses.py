"""A head that was left out for hundreds of steps drafts what it would have drafted had it never stopped."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from overdrive.config import DraftOptions, EngineOptions, MemoryOptions, ModelOptions, SchedulerOptions
from overdrive.draft.base import Drafts
from overdrive.draft.eagle3.choice import EagleChoice
from overdrive.draft.eagle3.config import HeadConfig
from overdrive.draft.eagle3.drafter import EagleDrafter
from overdrive.draft.eagle3.loading import random_head
from overdrive.engine import build
from overdrive.model.forms import torch_form
from overdrive.policy.controller import Controller, FixedDrafts, LoadView
from overdrive.request import Request
from overdrive.text import open_text
from overdrive.types import Plan, SamplingParams, Why
from tests.draft.schedules import prompt_stream
from tests.loop.tiny_engine import VOCAB, tiny, tiny_bench

DRAFTS = 3
PAUSE = 200


@dataclass
class Notes:
    """Drafts of the only row, and by how many pairs the head lagged, both by the length of the text."""

    drafts: dict[int, list[int]] = field(default_factory=dict)
    lags: dict[int, int] = field(default_factory=dict)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Notes]:
    """Begins new notes, which every EAGLE-3 drafter writes from then on."""
    propose, pads = EagleDrafter.propose, [Notes()]

    def noting(self: EagleDrafter, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        [slot], [cap], length = slots.tolist(), caps.tolist(), int(self._lengths[slots])
        pads[-1].lags[length] = self.lag(slot)
        drafts = propose(self, slots, caps, width)
        pads[-1].drafts[length] = drafts.tokens[0, :cap].tolist()
        return drafts

    def begin() -> Notes:
        pads.append(Notes())
        return pads[-1]

    monkeypatch.setattr(EagleDrafter, "propose", noting)
    return begin


class Pause(Controller):
    """DRAFTS but for a pause: from text length `begin` on, for `steps` steps and until the text is one of `lengths`."""

    plans = tuple(range(1, 16))

    def __init__(self, begin: int, steps: int, lengths: Collection[int]) -> None:
        self._end = min(length for length in lengths if length >= begin + steps)
        self._begin = begin

    def choose(self, view: LoadView) -> Plan:
        paused = self._begin <= view.context_tokens < self._end
        return Plan(0 if paused else DRAFTS, Why(rule="pause"))


def resumed(never: Mapping[int, object], paused: Mapping[int, object], begin: int) -> int:
    """The text's length when drafting went on behind `begin`: there the other run, which never stopped, drafted too."""
    length = min(length for length in paused if length >= begin + PAUSE)
    assert length in never
    assert not [other for other in paused if begin <= other < length]
    return length


def check_as_if_never_stopped(never: Notes, paused: Notes, begin: int) -> None:
    """Drafts after the pause at text length `begin`, of the proposal that reads what was missed and of all later."""
    length = resumed(never.drafts, paused.drafts, begin)
    assert paused.lags[length] > PAUSE
    after = {at: drafts for at, drafts in never.drafts.items() if at >= length}
    assert len(after) > 10
    assert {at: drafts for at, drafts in paused.drafts.items() if at >= length} == after


def tiny_answer(controller: Controller, params: SamplingParams, window: int, **head) -> list[int]:
    """What an engine with a random head answers to a random prompt of 30 tokens."""
    config = HeadConfig.for_target(tiny().config, draft_vocab=40, taps=(0, 1, 2), **head)
    choice = EagleChoice(
        random_head(config, torch_form("float64", torch.device("cpu")), tiny(), seed=3), Path(), window, torch.float64
    )
    rng = random.Random(params.seed)
    b = tiny_bench(prompt_stream(), controller, choice.open, lookahead=0, max_rows=1, max_model_len=400)
    b.scheduler.submit(Request("r", tuple(rng.randrange(VOCAB) for _ in range(30)), params, 0))
    b.run()
    return b.answers["r"]


@pytest.mark.parametrize(("temperature", "head"), [(0.0, {}), (1.0, {"layers": 2})])
def test_after_200_steps_without_drafts_they_are_those_of_a_head_that_never_stopped(
    noted: Callable[[], Notes], temperature: float, head: dict
) -> None:
    params, begin = SamplingParams(max_tokens=320, temperature=temperature, seed=7), 60
    never = noted()
    text = tiny_answer(FixedDrafts(DRAFTS), params, 256, **head)
    paused = noted()
    assert tiny_answer(Pause(begin, PAUSE, never.drafts), params, 256, **head) == text
    check_as_if_never_stopped(never, paused, begin)


def test_beyond_the_window_drafts_are_others_and_the_text_is_the_same(noted: Callable[[], Notes]) -> None:
    params, begin = SamplingParams(max_tokens=320, temperature=0.0, seed=7), 60
    never = noted()
    text = tiny_answer(FixedDrafts(DRAFTS), params, PAUSE // 2)
    paused = noted()
    assert tiny_answer(Pause(begin, PAUSE, never.drafts), params, PAUSE // 2) == text
    length = resumed(never.drafts, paused.drafts, begin)
    assert any(paused.drafts[at] != never.drafts[at] for at in paused.drafts.keys() & never.drafts if at >= length)


def smollm2_answer(controller: Controller, text: str, params: SamplingParams) -> tuple[int, list[int]]:
    """The prompt's length in tokens, and what an engine with the head that ships answers."""
    options = EngineOptions(
        model=ModelOptions(max_model_len=1024),
        memory=MemoryOptions(kv_tokens=2048),
        scheduler=SchedulerOptions(max_rows=1),
        draft=DraftOptions(draft="eagle3", drafts=DRAFTS),
    )
    engine = build("smollm2", options, lambda *_: None, controller)
    tokenizer, template = open_text(Path(engine.info.source), options.model)
    ids = tokenizer.encode(template.render([{"role": "user", "content": text}]), False)
    request = engine.submit("r", ids, params)
    while not engine.idle:
        engine.advance()
    engine.close()
    return len(ids), list(request.output)


@pytest.mark.smollm2
@pytest.mark.parametrize(
    ("prompt", "temperature"),
    [
        ("Explain how rain forms, in great detail.", 0.0),
        pytest.param("Write a Python class for a stack, with many tests.", 0.8, marks=pytest.mark.slow),
    ],
)
def test_the_head_that_ships_drafts_after_200_steps_as_if_it_had_never_stopped(
    noted: Callable[[], Notes], prompt: str, temperature: float
) -> None:
    """A token's result does not depend on its batch on the CPU's kernels, so there are not even near-ties to allow."""
    params = SamplingParams(max_tokens=280, temperature=temperature, seed=7)
    never = noted()
    prompt_len, text = smollm2_answer(FixedDrafts(DRAFTS), prompt, params)
    paused, begin = noted(), prompt_len + 40
    assert smollm2_answer(Pause(begin, PAUSE, never.drafts), prompt, params) == (prompt_len, text)
    check_as_if_never_stopped(never, paused, begin)
