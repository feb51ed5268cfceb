"""Laws of finding a shipped head: the target's weights decide, in whatever form and precision they come."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from overdrive.config import ModelOptions
from overdrive.draft.eagle3.shipped import HEADS, find_head
from overdrive.engine import _name_of
from overdrive.errors import OverdriveError
from overdrive.gears import _named
from overdrive.model.dummy import tiny_config, tiny_transformer
from overdrive.model.fingerprint import fingerprint
from overdrive.model.weights import load
from tests.model.gguf_writing import write_gguf
from tests.model.test_families import save


def _fingerprint(source: Path, precision: str = "float32") -> str:
    options = ModelOptions(precision=precision)
    return fingerprint(load(str(source), options, torch.device("cpu"), lambda *what: None).transformer.final_norm)


def _ship(heads: Path, name: str, **card: str) -> Path:
    (heads / name).mkdir(parents=True)
    (heads / name / "card.json").write_text(json.dumps(card))
    (heads / name / "config.json").write_text(json.dumps({"vocab_size": 64}))
    return heads / name


@torch.no_grad()
def test_a_fingerprint_is_that_of_the_weights_in_every_form(tmp_path: Path):
    model = save(tmp_path, "Llama", {})
    model.model.norm.weight.normal_().copy_(model.model.norm.weight.bfloat16())
    model.save_pretrained(tmp_path)
    write_gguf(tmp_path / "m.gguf", model, "llama")
    mark = _fingerprint(tmp_path)
    assert mark == _fingerprint(tmp_path / "m.gguf") == _fingerprint(tmp_path, "float64")
    model.bfloat16().save_pretrained(tmp_path)
    assert mark == _fingerprint(tmp_path)


def test_fingerprints_of_other_weights_differ():
    one, same, other = (fingerprint(tiny_transformer(seed=seed).final_norm) for seed in (0, 0, 1))
    assert one == same != other


def test_a_head_is_found_by_its_target_s_fingerprint(tmp_path: Path):
    _ship(tmp_path, "a", target_fingerprint="11")
    wanted = _ship(tmp_path, "b", target_fingerprint="22")
    (tmp_path / "no_card").mkdir()
    target = tiny_config()
    assert find_head(target, "22", tmp_path) == wanted
    assert find_head(target, "33", tmp_path) is None
    assert find_head(tiny_config(vocab=65), "22", tmp_path) is None
    assert find_head(target, "22", tmp_path / "none here") is None


def test_a_damaged_card_is_named(tmp_path: Path):
    (_ship(tmp_path, "a") / "card.json").write_text("{")
    with pytest.raises(OverdriveError, match=r"a/card\.json is not valid JSON"):
        find_head(tiny_config(), "22", tmp_path)


def test_no_shipped_head_claims_random_weights():
    assert find_head(tiny_config(), fingerprint(tiny_transformer().final_norm)) is None


def test_a_head_is_told_by_its_name_and_never_by_a_folder_of_this_machine(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    assert _name_of(str(HEADS / "smollm2-135m-instruct"), "") == "smollm2-135m-instruct"
    assert _name_of(str(tmp_path / "mine"), str(tmp_path / "mine")) == "mine"
    assert _name_of(str(tmp_path / "snapshots" / "0123"), "owner/head") == "owner/head"
    assert (_name_of("dummy", "dummy"), _name_of("", "")) == ("dummy", "")


def test_what_costs_are_kept_by_tells_heads_apart_and_no_folders(tmp_path: Path) -> None:
    mine, theirs = (_named(str(tmp_path / whose / "head")) for whose in ("mine", "theirs"))
    assert mine.startswith("head ") and mine != theirs
    assert "/" not in mine and _named("") == ""
