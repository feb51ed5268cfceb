"""Laws of a head's files: both published layouts are read, what is written is read back, every misfit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from overdrive.draft.eagle3.checkpoint import read, write
from overdrive.draft.eagle3.config import HeadConfig
from overdrive.errors import OverdriveError
from overdrive.model.rope import RopeConfig
from tests.draft.heads import (
    DRAFTED,
    rounded_tensors,
    safeai_config,
    save_head,
    specforge_config,
    speculators_config,
    target_config,
    tiny_head,
)

TARGET = target_config()


def test_the_published_llama_head_is_read_with_rope_base_10000_and_the_default_taps(tmp_path: Path):
    config = tiny_head(TARGET, head_dim=8)
    tensors = rounded_tensors(config)
    head = read(save_head(tmp_path, safeai_config(config), tensors, "midlayer."), TARGET)
    assert head.config.rope == RopeConfig(theta=10000.0, original_positions=2048)
    assert head.config.taps == (2, 4, 5)
    assert (head.config.head_dim, head.config.target_hidden, head.config.draft_vocab) == (8, 32, 12)
    assert head.tensors.keys() == tensors.keys()
    assert all(torch.equal(head.tensors[name], tensor) for name, tensor in tensors.items())


def test_layer_ids_count_outputs_in_eagle_config_and_inputs_in_speculators(tmp_path: Path):
    config = tiny_head(TARGET, taps=(1, 3, 8))
    flat, nested = specforge_config(config), speculators_config(config)
    assert flat["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 7]
    tensors = rounded_tensors(config)
    for name, raw, prefix in (("flat", flat, "midlayer."), ("nested", nested, "layers.0.")):
        head = read(save_head(tmp_path / name, raw, tensors, prefix), TARGET)
        assert head.config.taps == (1, 3, 8)
        assert head.tensors.keys() == tensors.keys()


def test_a_speculators_head_keeps_its_own_rope_and_embedding(tmp_path: Path):
    config = tiny_head(TARGET, own_embedding=True, norm_before_residual=True)
    folder = save_head(tmp_path, speculators_config(config), rounded_tensors(config), "layers.0.")
    head = read(folder, TARGET).config
    assert (head.rope.kind, head.rope.theta, head.rope.original_positions) == ("llama3", 500000.0, 8192)
    assert head.own_embedding and head.norm_before_residual


@pytest.mark.parametrize("make", [safeai_config, specforge_config, speculators_config])
def test_norm_before_residual_is_off_where_a_config_does_not_say(make: Any):
    raw = make(tiny_head(TARGET))
    raw.pop("norm_before_residual", None)
    assert not HeadConfig.from_json(raw, TARGET, False, "head").norm_before_residual


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layers": 2, "norm_before_residual": True},
        {"norm_output": True, "fc_norm": True, "taps": (0, 8)},
        {"own_embedding": True, "hidden": 24, "taps": (3,)},
        {"draft_vocab": 64, "rope": RopeConfig(theta=5e5, kind="linear", factor=4.0, original_positions=512)},
        {
            "rope": RopeConfig(
                theta=5e5, kind="llama3", factor=8.0, original_positions=64, low_freq_factor=2.0, high_freq_factor=5.0
            )
        },
        {
            "rope": RopeConfig(theta=1e4, kind="yarn", factor=4.0, original_positions=128, attention_factor=1.2),
        },
    ],
)
def test_a_written_head_is_read_back_as_it_was(tmp_path: Path, changes: dict[str, Any]):
    config = tiny_head(TARGET, **changes)
    tensors = rounded_tensors(config)
    write(tmp_path, config, tensors)
    head = read(tmp_path, TARGET)
    assert head.config == config
    assert head.tensors.keys() == tensors.keys()
    assert all(torch.equal(head.tensors[name].float(), tensor.float()) for name, tensor in tensors.items())


def test_the_written_files_have_the_names_and_types_that_other_engines_look_for(tmp_path: Path):
    config = tiny_head(TARGET)
    write(tmp_path, config, rounded_tensors(config))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    stored = load_file(tmp_path / "model.safetensors")
    layer = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    layer += tuple(f"self_attn.{part}_proj" for part in "qkvo") + tuple(f"mlp.{p}_proj" for p in ("gate", "up", "down"))
    assert stored.keys() == {
        "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d", *(f"midlayer.{name}.weight" for name in layer)
    }  # fmt: skip
    assert {t.dtype for name, t in stored.items() if name.endswith("weight")} == {torch.bfloat16}
    assert stored["t2d"].dtype == torch.bool and stored["t2d"].nonzero().flatten().tolist() == DRAFTED.tolist()
    assert (torch.arange(12) + stored["d2t"]).tolist() == DRAFTED.tolist()
    raw = json.loads((tmp_path / "config.json").read_text())
    assert raw["architectures"] == ["LlamaForCausalLMEagle3"] and raw["model_type"] == "llama"
    assert raw["eagle_config"] == {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    assert raw["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]


@pytest.mark.parametrize(
    "change, sides",
    [
        ({"hidden_size": 4096}, ("hidden size 4096", "no embed_tokens.weight", "the target's embedding has 32")),
        ({"hidden_size": 4096, "target_hidden_size": None}, ("made for hidden size 4096", "the target has 32")),
        ({"target_hidden_size": 64}, ("hidden size 64", "the target has 32")),
        ({"vocab_size": 128256}, ("vocabulary of 128256", "the target has 64")),
        ({"draft_vocab_size": 65}, ("drafts 65", "the target has 64")),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 8]}}, ("[2, 4, 9]", "8 layers")),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 1, 4]}}, ("[4, 2, 5]", "ascend")),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, ("[1, 3, 4] (by input)", "[1, 3, 4] in eagle_config")),
        ({"eagle_config": {"use_aux_hidden_state": False}}, ("use_aux_hidden_state",)),
        ({"architectures": ["MedusaModel"]}, ("unknown layout", "MedusaModel", "LlamaForCausalLMEagle3")),
        ({"speculators_model_type": "mtp"}, ("'mtp'", "eagle3")),
        ({"model_type": "qwen3"}, ("'qwen3'", "llama")),
        ({"attention_bias": True}, ("bias",)),
        ({"norm_before_fc": True}, ("norm_before_fc",)),
        ({"norm_output": 1}, ("norm_output", "1")),
        ({"hidden_act": "gelu"}, ("gelu",)),
        ({"draft_vocab_size": "many"}, ("draft_vocab_size", "'many'")),
    ],
)
def test_a_config_that_does_not_fit_is_refused_in_one_line_with_both_sides(change: Any, sides: tuple[str, ...]):
    raw = specforge_config(tiny_head(TARGET)) | change
    with pytest.raises(OverdriveError) as error:
        HeadConfig.from_json(raw, TARGET, False, "head some/folder")
    message = str(error.value)
    assert message.startswith("head some/folder") and "\n" not in message
    assert all(side in message for side in sides), message


def test_a_target_too_shallow_for_the_default_taps_is_named():
    raw = safeai_config(tiny_head(TARGET, head_dim=8))
    with pytest.raises(OverdriveError, match=r"\[2, 2, 1\], which must ascend within 0 .. 4, as the target has 4"):
        HeadConfig.from_json(raw, target_config(layers=4), False, "head")


def _spoil(tensors: dict[str, Any], change: str) -> None:
    if change == "missing":
        del tensors["layers.0.hidden_norm.weight"]
    elif change == "shape":
        tensors["fc.weight"] = tensors["fc.weight"][:, :-1]
    elif change == "unknown":
        tensors["fc2.weight"] = tensors["fc.weight"].clone()
    elif change == "layout":
        for name in [name for name in tensors if name.startswith("layers.0.")]:
            tensors[name.replace("layers.0.", "decoder.")] = tensors.pop(name)
    elif change == "not finite":
        tensors["layers.0.mlp.up_proj.weight"][3, 5] = torch.nan
    elif change == "no d2t":
        del tensors["d2t"]
    elif change == "d2t range":
        tensors["d2t"][7] = 60
    elif change == "d2t twice":
        tensors["d2t"][1] = 0
    elif change == "d2t float":
        tensors["d2t"] = tensors["d2t"].float()
    elif change == "t2d":
        tensors["t2d"] = torch.zeros(64, dtype=torch.bool)
    elif change == "t2d shape":
        tensors["t2d"] = torch.zeros(63, dtype=torch.bool)


@pytest.mark.parametrize(
    "change, sides",
    [
        ("missing", ("midlayer.hidden_norm.weight", "missing")),
        ("shape", ("fc.weight", "[32, 95]", "[32, 96]")),
        ("unknown", ("fc2.weight",)),
        ("layout", ("unknown layout", "midlayer.", "layers.0.")),
        ("not finite", ("midlayer.mlp.up_proj.weight", "not finite")),
        ("no d2t", ("d2t", "missing")),
        ("d2t range", ("draft id 7", "target id 67", "64 ids")),
        ("d2t twice", ("several draft ids", "target id 1")),
        ("d2t float", ("d2t", "float32")),
        ("t2d", ("t2d and d2t disagree", "target id 1")),
        ("t2d shape", ("t2d", "[63]", "[64]")),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_the_file_s_own_names(tmp_path: Path, change: str, sides: Any):
    config = tiny_head(TARGET)
    tensors = rounded_tensors(config)
    _spoil(tensors, change)
    folder = save_head(tmp_path, specforge_config(config), tensors, "midlayer.")
    with pytest.raises(OverdriveError) as error:
        read(folder, TARGET)
    assert all(side in str(error.value) for side in sides) and "\n" not in str(error.value), str(error.value)


def test_pickled_weights_are_refused_and_never_opened(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(specforge_config(tiny_head(TARGET))))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(OverdriveError, match="pickled weights"):
        read(tmp_path, TARGET)


def test_what_is_not_the_config_s_is_not_written(tmp_path: Path):
    config = tiny_head(TARGET)
    for spoiled in ("fc.weight", "d2t"):
        tensors = rounded_tensors(config)
        del tensors[spoiled]
        with pytest.raises(OverdriveError, match=spoiled):
            write(tmp_path / "head", config, tensors)
    assert not (tmp_path / "head").exists()
