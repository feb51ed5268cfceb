"""A drafter with other words is refused, both models named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from overdrive.config import ModelOptions
from overdrive.draft.small import load_small
from overdrive.draft.vocabulary import Vocabulary, check_same_vocabulary
from overdrive.errors import OverdriveError
from overdrive.model.forms import torch_form
from overdrive.model.weights import load_as

WHATEVER = ModelOptions(load_format="dummy", precision="float64")


def dummy(folder: Path, vocab: int) -> Path:
    """A config whose weights are random and which has no tokenizer."""
    fields = {"vocab_size": vocab, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    path = folder / f"{vocab}" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **fields, **heads}))
    return path


def test_a_small_model_with_other_ids_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    form = torch_form("float64", torch.device("cpu"))
    target = load_as(str(dummy(tmp_path, 40)), WHATEVER, form, lambda *_: None)
    with pytest.raises(
        OverdriveError, match=rf"^the drafter {tmp_path}/41 has 41 token ids and the model {tmp_path}/40"
    ):
        load_small(str(dummy(tmp_path, 41)), target, WHATEVER, form, lambda *_: None)
    choice = load_small(str(tmp_path / "40" / "config.json"), target, WHATEVER, form, lambda *_: None)
    assert (choice.name, choice.model) == ("small", f"{tmp_path}/40")


TARGET = Vocabulary("big", 4, [b"a", b"b", b"\xff"])


def test_sizes_must_agree() -> None:
    with pytest.raises(OverdriveError, match=r"^the drafter tiny has 5 token ids and the model big has 4: "):
        check_same_vocabulary(TARGET, Vocabulary("tiny", 5, []))


def test_words_must_agree() -> None:
    with pytest.raises(OverdriveError, match=r"^token 1 is '\\\\xc3' to the drafter tiny and 'b' to the model big: "):
        check_same_vocabulary(TARGET, Vocabulary("tiny", 4, [b"a", b"\xc3", b"\xff"]))


@pytest.mark.parametrize("pieces", [[], [b"a", b"b", b"\xff"], [b"a", b"b", b"\xff", b"<pad>"]])
def test_unknown_words_and_padding_are_no_fault(pieces: list[bytes]) -> None:
    check_same_vocabulary(TARGET, Vocabulary("tiny", 4, pieces))
