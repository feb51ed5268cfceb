"""Laws of the head's network: it is the reference, for every option, however its pairs are cut into passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV
from overdrive.device.batch import Batch
from overdrive.device.cpu.device import CpuDevice
from overdrive.device.cpu.recording import Arena, Recording, Watch
from overdrive.device.cpu.team import Team
from overdrive.draft.eagle3.checkpoint import write
from overdrive.draft.eagle3.loading import assemble_head, dummy_head, load_head, random_head, random_tensors
from overdrive.draft.eagle3.network import EagleHead, HeadScored
from overdrive.model.assemble import Form
from overdrive.model.dummy import random_transformer, tiny_transformer
from overdrive.model.forms import cpu_form, torch_form
from overdrive.model.rope import RopeConfig
from overdrive.model.transformer import Transformer
from tests.draft.heads import rounded_tensors, target_config, tiny_head
from tests.draft.reference import Drafted, Reference
from tests.model.paged import make_batch

TARGET = target_config(layers=6, hidden=32)
TOKENS = [5, 9, 2, 61, 33, 8, 17, 4, 4, 50, 12]
K, PAGE = 4, 4
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"norm_output": True},
    "fc_norm": {"fc_norm": True},
    "own_embedding": {"own_embedding": True},
    "narrow": {"own_embedding": True, "hidden": 24},
    "whole_vocabulary": {"draft_vocab": TARGET.vocab},
    "one_tap": {"taps": (6,)},
    "five_taps": {"taps": (0, 1, 3, 5, 6), "fc_norm": True},
    "two_layers": {"layers": 2, "norm_before_residual": True, "norm_output": True},
    "rope_base": {"rope": RopeConfig(theta=100.0), "head_dim": 12},
}


def _head_config(**changes: Any):
    return tiny_head(TARGET, **({"head_dim": 16, "taps": (1, 3, 5)} | changes))


def _quiet(label: str, done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def target() -> Transformer:
    return random_transformer(TARGET)


@pytest.fixture(scope="module")
def float32_target() -> Transformer:
    return random_transformer(TARGET, dtype=torch.float32)


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice(Team(1), 0, torch.device("cpu"))


def _float64() -> Form:
    return torch_form("float64", torch.device("cpu"))


def _taps(head: EagleHead) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    width = len(head.config.taps) * head.config.target_hidden
    return torch.randn((len(TOKENS) - 1, width), generator=generator).to(head.dtype)


@torch.inference_mode()
def _draft(
    head: EagleHead, device: CpuDevice, taps: Tensor, k: int = K, chunk: int = 100, gap: tuple[int, int] = (0, 0)
) -> Drafted:
    """As the reference's, with pages and a cache: the known pairs `chunk` at a time, then one pair per draft.

    gap: pairs that are not read; they stand one place further.
    """
    pages = [[3, 1, 5, 2, 4]]
    kv = PagedKV.allocate(head.config, 6, PAGE, head.dtype)

    def read(batch, attention, taps):
        return head.forward(head.fuse(taps), batch.ids, batch.positions, attention)

    def feed(batch, attention, features):
        return head.forward(features, batch.ids, batch.positions, attention)

    read, feed = device.record(read, kv, head.config), device.record(feed, kv, head.config)

    def batch(ids: list[int], place: int):
        hidden = [gap[0] + 1, gap[1] + 1] if place > gap[1] > 0 else [0, 0]
        whole = make_batch([(ids, place)], pages, PAGE)
        return replace(whole, starts=torch.ones(1, dtype=torch.int64), gaps=torch.tensor([hidden]))

    for begin, end in ((0, gap[0]), (gap[1], len(taps))):
        for start in range(begin, end, chunk):
            stop = min(end, start + chunk)
            hidden = read(batch(TOKENS[start + 1 : stop + 1], start + 1), taps[start:stop])
    ids: list[int] = []
    logits, feedback = [], []
    for j in range(k):
        if j:
            hidden = feed(batch(ids[-1:], len(TOKENS) + j - 1), feedback[-1])
        logits.append(head.logits(hidden.normed[-1:]))
        feedback.append(hidden.feedback[-1:].clone())
        ids.append(int(head.target_ids[logits[-1].argmax()]))
    return Drafted(ids, torch.cat(logits), head.fuse(taps), torch.cat(feedback))


@pytest.mark.parametrize("option", OPTIONS)
def test_features_logits_and_drafted_ids_are_the_reference_s(option: str, target: Transformer, device: CpuDevice):
    config = _head_config(**OPTIONS[option])
    tensors = random_tensors(config, seed=1)
    head = assemble_head(config, tensors, target, _float64(), _quiet)
    taps = _taps(head)
    expected = Reference(config, tensors, target.embedding).draft(taps, TOKENS, K)
    got = _draft(head, device, taps)
    assert got.ids == expected.ids
    for ours, theirs in zip(got[1:], expected[1:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_every_option_changes_what_is_drafted(target: Transformer):
    """An option that changed nothing would be tested by nothing."""
    tensors = random_tensors(_head_config(layers=2, fc_norm=True, own_embedding=True), seed=1)

    def logits(**changes: Any) -> Tensor:
        config = _head_config(**changes)
        return (
            Reference(config, tensors, target.embedding if not config.own_embedding else torch.empty(0))
            .draft(torch.linspace(-1, 3, 960).view(10, 96), TOKENS, K)
            .logits
        )

    flags = ("norm_before_residual", "norm_output", "fc_norm")
    plain = logits(own_embedding=True)
    others = [logits(own_embedding=True, **{flag: True}) for flag in flags]
    others += [logits(own_embedding=True, layers=2), logits(own_embedding=True, rope=RopeConfig(theta=100.0))]
    assert all(not torch.allclose(plain, other, atol=1e-3) for other in others)


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_drafts_do_not_depend_on_how_the_known_pairs_are_cut_into_passes(
    chunk: int, target: Transformer, device: CpuDevice
):
    head = random_head(_head_config(layers=2), _float64(), target, seed=2)
    whole, cut = _draft(head, device, _taps(head)), _draft(head, device, _taps(head), chunk=chunk)
    assert whole.ids == cut.ids
    torch.testing.assert_close(whole.logits, cut.logits, rtol=0, atol=1e-11)


@pytest.mark.parametrize("option", ["plain", "two_layers"])
@pytest.mark.parametrize("gap", [(0, 3), (1, 2), (3, 7), (4, 9), (2, 9)])
def test_a_head_that_misses_a_piece_is_the_reference_without_it(
    option: str, gap: tuple[int, int], target: Transformer, float32_target: Transformer, device: CpuDevice
):
    config = _head_config(**OPTIONS[option])
    tensors = random_tensors(config, seed=1)
    for of, form, tolerance in (
        (target, _float64(), 1e-11),
        (float32_target, cpu_form("float32", device.team), 1e-4),
    ):
        head = assemble_head(config, tensors, of, form, _quiet)
        taps = _taps(head)
        expected = Reference(config, tensors, of.embedding).draft(taps, TOKENS, K, gap)
        for chunk in (1, 100):
            got = _draft(head, device, taps, chunk=chunk, gap=gap)
            assert got.ids == expected.ids
            torch.testing.assert_close(got.logits.double(), expected.logits, rtol=tolerance, atol=tolerance)
    whole = Reference(config, tensors, of.embedding).draft(taps, TOKENS, K)
    assert not torch.allclose(whole.logits, expected.logits, atol=1e-3)


@pytest.mark.parametrize("option", ["plain", "two_layers", "five_taps"])
def test_the_cpu_s_kernels_come_close_to_the_reference(option: str, float32_target: Transformer, device: CpuDevice):
    config = _head_config(**OPTIONS[option])
    tensors = random_tensors(config, seed=1)
    head = assemble_head(config, tensors, float32_target, cpu_form("float32", device.team), _quiet)
    taps = _taps(head)
    expected = Reference(config, tensors, float32_target.embedding).draft(taps, TOKENS, K)
    got = _draft(head, device, taps)
    assert got.ids == expected.ids
    for ours, theirs in zip(got[1:], expected[1:], strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("option", OPTIONS)
@torch.inference_mode()
def test_a_recorded_pass_is_the_pass(option: str, float32_target: Transformer, device: CpuDevice):
    """Nothing but views is left to torch, whose work would be missing from the recording."""
    head = random_head(_head_config(**OPTIONS[option]), cpu_form("int8", device.team), float32_target, seed=1)
    taps, ids, places = _taps(head), torch.tensor(TOKENS[1:]), torch.arange(1, len(TOKENS))
    attended = torch.randn(len(taps), head.config.heads * head.config.head_dim)
    none = torch.zeros(0, dtype=torch.int64)
    batch = Batch(ids, places, none, none, none.view(0, 0), none, none.view(0, 2), none, torch.tensor([2, 5]))

    def forward() -> HeadScored:
        return head.score(batch, head.fuse(taps), lambda layer, q, k, v: attended)

    recording: Recording[HeadScored] = Recording(device.team, Arena())
    recording.make(forward, Watch())
    taps.mul_(-2)
    ids.copy_(ids.flip(0))
    for recorded, plain in zip(recording.run(), forward(), strict=True):
        assert torch.equal(recorded, plain)


@torch.inference_mode()
def test_a_pass_leaves_its_features_as_they_are(target: Transformer):
    head = random_head(_head_config(), _float64(), target, seed=1)
    features = torch.randn(3, 32, dtype=torch.float64)
    before = features.clone()
    ids, places = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 3])
    head.forward(features, ids, places, lambda layer, q, k, v: q.flatten(1).clone())
    assert torch.equal(features, before)


def test_a_head_from_a_folder_drafts_as_the_one_that_was_written(tmp_path, target: Transformer, device: CpuDevice):
    config = _head_config(own_embedding=True)
    tensors = rounded_tensors(config, seed=3)
    write(tmp_path, config, tensors)
    seen = []
    loaded = load_head(tmp_path, target, _float64(), lambda *what: seen.append(what))
    built = assemble_head(config, tensors, target, _float64(), _quiet)
    assert torch.equal(_draft(loaded, device, _taps(loaded)).logits, _draft(built, device, _taps(built)).logits)
    assert seen[-1] == ("draft network", 3, 3)


def test_a_copy_of_the_target_s_embedding_is_not_kept_twice(target: Transformer):
    config = _head_config(own_embedding=True)
    own = random_tensors(config, 1)
    shared = own | {"embed_tokens.weight": target.embedding.clone()}
    assert assemble_head(config, shared, target, _float64(), _quiet)._embedding is target.embedding
    assert assemble_head(config, own, target, _float64(), _quiet)._embedding is not target.embedding


def test_a_dummy_head_has_the_published_shape_for_its_target() -> None:
    wide, narrow = tiny_transformer(torch.float32, vocab=33000, layers=8), tiny_transformer(torch.float32, layers=8)
    form = torch_form("float32", torch.device("cpu"))
    for target, drafted in ((wide, 32000), (narrow, 64)):
        head = dummy_head(target, form, 0, _quiet)
        assert len(head.target_ids) == drafted == len(head.target_ids.unique())
        assert head.target_ids.min() >= 0 and head.target_ids.max() < target.config.vocab
        assert head.config.taps == (2, 4, 5) and head.config.layers == 1
        assert head.logits(torch.randn(3, 32)).shape == (3, drafted)
