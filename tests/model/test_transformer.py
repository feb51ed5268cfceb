"""Laws of the decoder itself, on the tiny float64 model."""

from __future__ import annotations

import pytest
import torch

from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.model.dummy import tiny_config, tiny_transformer
from tests.model.paged import make_batch, paged_logits, scattered_pages

SEQUENCES = [[5, 9, 2, 61, 33, 8, 17, 4, 4, 50, 12], [7, 1, 3], [40, 41, 42, 43, 44, 45, 46, 47]]


def test_logits_do_not_depend_on_chunk_page_size_or_batch_mates():
    model = tiny_transformer()
    for ids, together in zip(SEQUENCES, paged_logits(model, SEQUENCES, page_size=4), strict=True):
        for page_size, chunk in ((1, 3), (4, 1), (16, 4), (64, 100)):
            [alone] = paged_logits(model, [ids], page_size, chunk)
            torch.testing.assert_close(alone, together, rtol=0, atol=1e-12)


def test_a_token_sees_its_own_row_up_to_itself_and_no_further_back_than_the_window():
    model = tiny_transformer(windows=(3, 3))
    [base] = paged_logits(model, [SEQUENCES[0]])
    [changed] = paged_logits(model, [[6, *SEQUENCES[0][1:]]])
    same = (base - changed).abs().amax(dim=1) < 1e-12
    # Two layers with a window of 3: position p depends on positions p - 4 .. p.
    assert same.tolist() == [False] * 5 + [True] * 6


def test_padding_on_the_scratch_page_changes_nothing():
    model = tiny_transformer()
    [plain] = paged_logits(model, [SEQUENCES[1]])
    kv = PagedKV.allocate(model.config, 4, 4, model.dtype)
    batch = make_batch([(SEQUENCES[1], 0), ([0, 0], 0)], [[2], [0]], page_size=4)
    with torch.inference_mode():
        padded = model.logits(model.forward(batch, ReferenceAttention(kv, batch, model.config)).final)
    torch.testing.assert_close(padded[:3], plain, rtol=0, atol=1e-12)


def test_taps_are_the_residual_stream_on_entry_to_a_layer():
    model = tiny_transformer()
    pages, n_pages = scattered_pages([len(SEQUENCES[0])], 4)
    batch = make_batch([(SEQUENCES[0], 0)], pages, 4)
    kv = PagedKV.allocate(model.config, n_pages, 4, model.dtype)
    with torch.inference_mode():
        attention = ReferenceAttention(kv, batch, model.config)
        plain = model.forward(batch, attention)
        tapped = model.forward(batch, attention, taps=(0, 1, 2))
        two = model.forward(batch, attention, taps=(0, 2))
    assert plain.taps.shape == (11, 0)
    assert torch.equal(plain.final, tapped.final)
    assert tapped.taps.dtype == model.dtype
    low, middle, high = tapped.taps.view(11, 3, 32).unbind(1)
    assert torch.equal(low, model.embedding[batch.ids])
    assert not torch.equal(middle, high)
    assert torch.equal(two.taps, torch.cat([low, high], dim=1))
    scale = high.pow(2).mean(-1, keepdim=True).add(model.config.norm_eps).rsqrt()
    direction = high * scale
    ratio = tapped.final / direction  # the final norm's weight, the same for every token
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_weights_depend_on_the_seed_alone(dtype: torch.dtype):
    [one], [same], [other] = (paged_logits(tiny_transformer(dtype, seed=s), [SEQUENCES[0]]) for s in (3, 3, 4))
    assert torch.equal(one, same) and not torch.allclose(one, other)
    assert one.dtype == dtype


def test_greedy_continuations_of_the_tiny_model_vary():
    """A tiny model that repeats one token would make the laws of text vacuous."""
    model = tiny_transformer()
    ids = [3]
    for _ in range(24):
        [logits] = paged_logits(model, [ids])
        ids.append(int(logits[-1].argmax()))
    assert len(set(ids)) > 6
    assert tiny_config().window(0) == 0
