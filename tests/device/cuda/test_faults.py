"""An engine whose device fails: launches that break midway, kernels that do not start, memory that does not last.

What a device does not decide is tried on the CPU too. Who was in company when a step was lost has all of its text, who
was alone an error and a part, and whoever comes later never notices.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from overdrive import LLM
from overdrive.completion import Answer
from overdrive.llm import Prompt
from overdrive.types import FinishReason
from tests.llm.conftest import open_tiny, write_tiny
from tests.loop.breaking import Breaking, Errors, now_and_then

TEXTS = ["the cat sat on the mat and the cat", "abcabcabcabc", "zz", "the cat sat on the mat but"]
WANTED = {"max_tokens": 24, "temperature": 0.8, "seed": 3, "frequency_penalty": 0.4}
LONG = list(range(1, 250)) * 2
HELD = {"guided_regex": "[0-9]{6}-[A-F]{4}"}
ENGINES = [
    pytest.param({"device": "cpu", "overlap": "on"}, id="cpu"),
    pytest.param({"device": "cpu", "overlap": "off"}, id="inline"),
    pytest.param({"device": "cuda", "graphs": True}, id="graphs", marks=pytest.mark.cuda),
    pytest.param({"device": "cuda", "graphs": False}, id="cuda", marks=pytest.mark.cuda),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads as wide as the kernels want them."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
    return write_tiny(tmp_path_factory.mktemp("tiny"), **sizes)


@pytest.fixture(scope="module", params=ENGINES)
def llm(folder: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with open_tiny(folder, precision="float32", draft="ngram", ngram_min=1, **request.param) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """What is over is gone without a garbage collection, which may be far."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def runner_of(llm: LLM) -> Any:
    return llm._engine._loop._runner


def generate(llm: LLM, prompts: Sequence[Prompt], each: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """`LLM.generate`, but for errors, which the answers have as their finish."""
    sources = [partial(llm._text, llm._encode(prompt, index, True)) for index, prompt in enumerate(prompts)]
    answers = llm._answers(sources, each, {})
    for answer in answers:
        llm._submit(answer)
    while any(answer.finish is None for answer in answers):
        llm._advance()
    return answers


def ask(llm: LLM) -> list[Answer]:
    """Greedy and sampled ones, some of which must follow a grammar."""
    each = [{**WANTED, **([{}, HELD, {}, {"temperature": 0.0}][i % 4])} for i in range(8)]
    return generate(llm, [*TEXTS, *TEXTS], each)


def failed(answer: Answer) -> bool:
    return answer.finish is not None and answer.finish.reason is FinishReason.ERROR


def check(llm: LLM, found: list[Answer], expected: list[Answer]) -> int:
    """How many were lost: they have a part of their text. All others have all of it, and everything has come back."""
    lost = 0
    for answer, right in zip(found, expected, strict=True):
        if failed(answer):
            lost += 1
            assert answer.ids == right.ids[: len(answer.ids)]
        else:
            assert (answer.ids, answer.finish) == (right.ids, right.finish)
    stats = llm._engine.stats()
    assert (stats.running, stats.waiting, stats.slots_used, stats.pages_used, stats.matchers) == (0, 0, 0, 0, 0)
    assert not llm._engine.failure
    return lost


def break_launches(llm: LLM, patch: pytest.MonkeyPatch, errors: Errors) -> None:
    """Whatever torch is asked for in a launch may fail from now on."""
    stream = runner_of(llm)._stream
    launch, breaking = stream.launch, Breaking(errors)

    def breakable(work: Callable[[], None]) -> None:
        def broken() -> None:
            with breaking:
                work()

        launch(broken)

    patch.setattr(stream, "launch", breakable)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
def test_launches_that_break_midway_cost_nobody_in_company_anything(llm: LLM, kind: type[Exception]) -> None:
    expected, lost, before = ask(llm), 0, llm._engine.stats().faults
    for seed in range(3):
        with pytest.MonkeyPatch.context() as patch:
            break_launches(llm, patch, now_and_then(random.Random(seed), (kind,), usual=800, most=3))
            lost += check(llm, ask(llm), expected)
        assert not check(llm, ask(llm), expected), "nothing is wrong any more"
    assert llm._engine.stats().faults - before >= 3
    assert lost <= 6


def test_where_memory_does_not_last_for_many_rows_fewer_run_and_prefixes_stay(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, before = ask(llm), llm._engine.stats()
    runner, forward = runner_of(llm), runner_of(llm)._forward

    def narrow(flight: Any) -> None:
        if len(flight.step.rows) > 2:
            raise torch.OutOfMemoryError("no room for so many rows")
        forward(flight)

    monkeypatch.setattr(runner, "_forward", narrow)
    found = ask(llm)
    assert not check(llm, found, expected)
    after = llm._engine.stats()
    assert after.faults > before.faults and after.preemptions > before.preemptions
    assert any(answer.cached for answer in found)


def test_a_request_that_no_memory_is_enough_for_ends_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, runner, forward = ask(llm), runner_of(llm), runner_of(llm)._forward

    def refuse(flight: Any) -> None:
        if any(row.prompt_logprobs >= 0 for row in flight.step.rows):
            raise torch.OutOfMemoryError("no room for all those logits")
        forward(flight)

    monkeypatch.setattr(runner, "_forward", refuse)
    each = [{**WANTED, **({"prompt_logprobs": 1} if i == 1 else {})} for i in range(4)]
    found = generate(llm, TEXTS, each)
    assert [failed(answer) for answer in found] == [False, True, False, False]
    assert [found[0].ids, found[2].ids] == [expected[0].ids, expected[2].ids]
    assert not check(llm, ask(llm), expected)


KERNELS = ["step_kernels.enter", "step_kernels.flatten", "step_kernels.accept", "sampling_kernels.draw"]


def fail_at(function: Callable[..., Any], numbers: set[int], behind: bool) -> Callable[..., Any]:
    """The function, whose calls of these numbers raise, before or behind their work."""
    calls = 0

    def failing(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        result = function(*args, **named) if behind or calls not in numbers else None
        if calls in numbers:
            raise RuntimeError("CUDA error: too many resources requested for launch")
        return result

    return failing


@pytest.mark.cuda
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_that_does_not_start_costs_nobody_in_company_anything(
    folder: Path, kernel: str, behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_tiny(folder, precision="float32", draft="ngram", ngram_min=1, device="cuda", graphs=False) as llm:
        expected = ask(llm)
        module, name = kernel.split(".")
        where = import_module(f"overdrive.device.cuda.{module}")
        monkeypatch.setattr(where, name, fail_at(getattr(where, name), {3}, behind))
        assert not check(llm, ask(llm), expected)
        assert llm._engine.stats().faults == 1


@pytest.mark.cuda
@pytest.mark.parametrize("behind", [False, True])
def test_a_graph_that_does_not_start_costs_nobody_in_company_anything(
    folder: Path, behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_tiny(folder, precision="float32", draft="ngram", ngram_min=1, device="cuda", graphs=True) as llm:
        expected, graphs = ask(llm), runner_of(llm)._graphs
        monkeypatch.setattr(graphs, "run", fail_at(graphs.run, {5, 23}, behind))
        assert check(llm, ask(llm), expected) <= 1
        assert llm._engine.stats().faults == 2


@contextmanager
def no_memory_left() -> Iterator[None]:
    """torch's allocator has nothing to give but what is free within blocks that it holds already."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + (64 << 20)) / total))
    held: list[torch.Tensor] = []
    with ExitStack() as stack:
        stack.callback(torch.cuda.set_per_process_memory_fraction, 1.0)
        for size in (16 << 20, 2 << 20, 256 << 10):
            try:
                while len(held) < 10_000:
                    held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                continue
        yield
        held.clear()


@pytest.mark.cuda
@pytest.mark.parametrize("graphs", [True, False])
def test_when_memory_is_there_again_all_is_well(folder: Path, graphs: bool) -> None:
    """While it is not, every request ends: with its text, or with an error that says so."""
    long = {"prompt_logprobs": 5, "max_tokens": 8}
    options = {"device": "cuda", "graphs": graphs, "max_step_tokens": 2048, "chunk": 2048}
    with open_tiny(folder, precision="float32", draft="ngram", ngram_min=1, **options) as llm:
        expected = ask(llm)
        with no_memory_left():
            for answer in generate(llm, [LONG, *TEXTS], [long] * 5):
                assert answer.finish and (not failed(answer) or "memory" in answer.finish.message)
        assert not check(llm, ask(llm), expected)
        [answer] = generate(llm, [LONG], [long])
        assert not failed(answer)
