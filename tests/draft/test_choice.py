"""Drafters that cannot be had: one line that names what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from overdrive.config import DraftOptions, EngineOptions, ModelOptions
from overdrive.device.cpu.device import CpuDevice
from overdrive.device.cpu.team import Team
from overdrive.draft import Ngrams, choose
from overdrive.engine import count_pages
from overdrive.errors import OverdriveError
from overdrive.model.weights import load

from .test_vocabulary import dummy

DUMMY = ModelOptions(load_format="dummy", precision="float64")


def drafter(tmp_path: Path, **options: str) -> str:
    """The name of the drafter that these options mean for a toy."""
    device = CpuDevice(Team(1), 0, torch.device("cpu"))
    target = load(str(dummy(tmp_path, 40)), DUMMY, device.torch_device, lambda *_: None, device.team)
    return choose(EngineOptions(model=DUMMY, draft=DraftOptions(**options)), target, device, lambda *_: None).name


@pytest.mark.parametrize("who", ["eagle3", "ngram+eagle3"])
def test_a_head_that_is_asked_for_and_not_there_is_refused(tmp_path: Path, who: str) -> None:
    with pytest.raises(OverdriveError, match=rf"^--draft {who.replace('+', '.')} needs --draft-model[^\n]*$"):
        drafter(tmp_path, draft=who)


@pytest.mark.parametrize("who", ["auto", "eagle3", "ngram+small"])
@pytest.mark.parametrize("what", ["nothing here", "a file"])
def test_a_draft_model_that_is_no_folder_is_named(tmp_path: Path, who: str, what: str) -> None:
    (tmp_path / "a file").write_text("no head")
    with pytest.raises(OverdriveError, match=rf"^--draft-model {tmp_path}/{what}[^\n]*$"):
        drafter(tmp_path, draft=who, draft_model=str(tmp_path / what))


def test_auto_copies_where_no_head_ships(tmp_path: Path) -> None:
    assert drafter(tmp_path, draft="auto") == "ngram"


def test_memory_that_drafting_takes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the line would be about the KV cache, which is not what is too large."""
    monkeypatch.setattr(Ngrams, "slot_bytes", lambda self: 1 << 40)
    device = CpuDevice(Team(1), 0, torch.device("cpu"))
    target = load(str(dummy(tmp_path, 40)), DUMMY, device.torch_device, lambda *_: None, device.team)
    options = device.resolve(EngineOptions(model=DUMMY))
    with pytest.raises(OverdriveError, match=r"^drafting takes [^\n]* 64 rows[^\n]*--max-rows or --draft-window$"):
        count_pages(target, options, Ngrams(3), device)
