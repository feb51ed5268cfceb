"""Laws of the passes a CPU device opens: taps cost no Python, recorded or not they are those of the reference."""

from __future__ import annotations

import pytest
import torch

from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.cpu.device import CpuDevice
from overdrive.device.cpu.team import Team
from overdrive.model.assemble import assemble
from overdrive.model.dummy import RandomCheckpoint, random_transformer, tiny_config
from overdrive.model.forms import cpu_form
from overdrive.model.transformer import Transformer
from tests.model.paged import make_batch

CONFIG = tiny_config()
TAPS = (0, 1, 2)


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice(Team(2), 0, torch.device("cpu"))


def packed_transformer(device: CpuDevice) -> Transformer:
    """The tiny model over the CPU's kernels, in float32."""
    form = cpu_form("float32", device.team)
    return assemble(CONFIG, RandomCheckpoint(CONFIG, 0), form, 64, lambda label, done, total: None)


@torch.inference_mode()
def test_taps_are_recorded_and_those_of_the_reference(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = packed_transformer(device), random_transformer(CONFIG, dtype=torch.float32)
    kv, other = (PagedKV.allocate(CONFIG, 9, 16, torch.float32) for _ in range(2))
    written, passes = model.forward, []
    monkeypatch.setattr(model, "forward", lambda *given: passes.append(1) or written(*given))
    forward, plain = device.forward(model, kv, TAPS), device.forward(model, kv)
    for ids in ([5, 9, 2], [7, 7, 1], [40, 3, 8]):
        batch = make_batch([(ids, 4), (ids[:1], 0)], [[1], [2]], 16)
        expected = reference.forward(batch, ReferenceAttention(other, batch, CONFIG), TAPS)
        hidden = forward(batch)
        torch.testing.assert_close(hidden.taps, expected.taps, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(hidden.final, expected.final, atol=1e-5, rtol=1e-5)
        final = hidden.final.clone()
        assert torch.equal(plain(batch).final, final)
    assert len(passes) == 2, "one recording each"
    assert plain(batch).taps.shape == (4, 0)


@torch.inference_mode()
def test_float64_goes_to_the_reference(device: CpuDevice) -> None:
    model = random_transformer(CONFIG)
    kv = PagedKV.allocate(CONFIG, 9, 16, torch.float64)
    batch = make_batch([([5, 9, 2], 0)], [[1]], 16)
    expected = model.forward(batch, ReferenceAttention(kv, batch, CONFIG), TAPS)
    hidden = device.forward(model, kv, TAPS)(batch)
    assert torch.equal(hidden.taps, expected.taps) and torch.equal(hidden.final, expected.final)
