"""A model divided among ranks computes what it computes whole; what cannot be divided is refused by its numbers."""

from __future__ import annotations

import pytest
import torch

from overdrive.device.cpu.team import Team
from overdrive.device.parallel.ranks import ALONE, Ranks
from overdrive.errors import OverdriveError
from overdrive.model.assemble import assemble
from overdrive.model.dummy import RandomCheckpoint, random_transformer, tiny_config
from overdrive.model.forms import cpu_form
from overdrive.model.shard import Shard
from tests.model.paged import paged_logits
from tests.together import Meeting, ThreadRanks, together

CONFIGS = {
    "llama": tiny_config(),
    "biases everywhere": tiny_config(qkv_bias=True, output_bias=True, mlp_bias=True),
    "normed heads": tiny_config(qk_norm=True),
    "tied": tiny_config(tied=True),
    "odd vocabulary": tiny_config(vocab=61),
    "windows": tiny_config(windows=(4, 0)),
    "four heads each": tiny_config(heads=8, kv_heads=4),
}
TEXTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7, 8, 9, 30, 11]]


@pytest.mark.parametrize(("name", "count"), [*((name, 2) for name in CONFIGS), ("four heads each", 4)])
def test_ranks_together_compute_what_one_rank_does(name: str, count: int) -> None:
    config = CONFIGS[name]
    whole = paged_logits(random_transformer(config, seed=5), TEXTS, chunk=5)
    divided = together(count, lambda ranks: paged_logits(random_transformer(config, 5, ranks=ranks), TEXTS, chunk=5))
    for logits in divided:
        for found, expected in zip(logits, whole, strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_kernels_of_the_cpu_take_parts_of_weights_too() -> None:
    config = CONFIGS["llama"]
    form, checkpoint = cpu_form("float32", Team(1)), RandomCheckpoint(config, 5)

    def logits(ranks: Ranks) -> list[torch.Tensor]:
        return paged_logits(assemble(config, checkpoint, form, 64, lambda *_: None, ranks), TEXTS, chunk=5)

    for divided in together(2, logits):
        for found, expected in zip(divided, logits(ALONE), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_every_weight_is_kept_once() -> None:
    """The ranks' parts of a matrix, put together, are the matrix: nothing twice, nothing lost, nothing made up."""
    config = tiny_config(vocab=61)
    whole, meeting = RandomCheckpoint(config, 2), Meeting(2)
    parts = [Shard(config, ThreadRanks(meeting, rank, 2)).checkpoint(whole) for rank in range(2)]
    for name, dim in (("self_attn.q_proj", 0), ("self_attn.v_proj", 0), ("mlp.up_proj", 0), ("mlp.down_proj", 1)):
        weight = f"model.layers.1.{name}.weight"
        assert torch.equal(torch.cat([part.matrix(weight) for part in parts], dim=dim), whole.matrix(weight))
    head = torch.cat([part.matrix("lm_head.weight") for part in parts])
    assert torch.equal(head[:61], whole.matrix("lm_head.weight"))
    assert not head[61:].any()


def test_a_rank_keeps_a_part_of_the_memory() -> None:
    """Parts do not hold on to the whole weights they were cut from."""
    config = tiny_config()
    part = Shard(config, ThreadRanks(Meeting(2), 1, 2)).checkpoint(RandomCheckpoint(config, 2))
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight", "lm_head.weight"):
        matrix = part.matrix(name)
        assert matrix.untyped_storage().nbytes() == matrix.nbytes


@pytest.mark.parametrize(
    ("count", "changes", "said"),
    [
        (4, {}, "2 key-value heads cannot be divided by 4; take 2"),
        (3, {}, "2 key-value heads cannot be divided by 3; take 2"),
        (2, {"mlp": 63}, "63 MLP columns cannot be divided by 2; take 1"),
    ],
)
def test_what_does_not_divide_is_refused(count: int, changes: dict[str, int], said: str) -> None:
    with pytest.raises(OverdriveError, match=f"--tensor-parallel {count}: the model's {said}"):
        _ = Shard(tiny_config(**changes), ThreadRanks(Meeting(count), 0, count)).local


def test_one_rank_keeps_everything_as_it_is() -> None:
    config, linear = tiny_config(), torch.nn.Identity()
    shard, checkpoint = Shard(config, ALONE), RandomCheckpoint(config, 0)
    assert shard.local == config
    assert shard.checkpoint(checkpoint) is checkpoint
    assert shard.summed(linear) is linear
    assert shard.gathered(linear) is linear
