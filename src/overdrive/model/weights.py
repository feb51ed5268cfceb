"""From the MODEL argument to a Transformer: what the name means, which reader it needs, which form the weights take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from overdrive.config import ModelOptions
from overdrive.device.cpu.team import Team
from overdrive.device.parallel.ranks import ALONE, Ranks
from overdrive.errors import OverdriveError
from overdrive.model import hub
from overdrive.model.assemble import Checkpoint, Progress, assemble
from overdrive.model.config import ModelConfig
from overdrive.model.dummy import RandomCheckpoint
from overdrive.model.forms import cpu_form, torch_form
from overdrive.model.gguf import GGUFCheckpoint
from overdrive.model.safetensors_folder import SafetensorsCheckpoint
from overdrive.model.smollm2 import smollm2_path
from overdrive.model.transformer import Transformer
from overdrive.types import OVERSHOOT


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run.

    config: of the whole model; `transformer.config` is of what this rank holds.
    max_model_len: most tokens of prompt and answer together; rotary tables reach a little further, for rows that run on
    past an end not yet known. source: the folder or .gguf file where the tokenizer and chat template live.
    """

    config: ModelConfig
    transformer: Transformer
    max_model_len: int
    source: Path


def load(
    model: str,
    options: ModelOptions,
    device: torch.device,
    progress: Progress,
    team: Team | None = None,
    ranks: Ranks = ALONE,
) -> Loaded:
    """Find, read and build a model.

    model: "smollm2", a folder with config.json and safetensors, a .gguf file, a hub id, or with load_format "dummy"
    also a config.json. team: the threads that run the CPU's kernels; None builds the model in plain torch on `device`,
    the reference form. ranks: those who divide the model among them; each loads its part.
    Raises OverdriveError, one line, for anything missing, damaged or unsupported.
    """
    source = locate(model, options, progress)
    config, checkpoint = open_checkpoint(source, options)
    max_model_len = _max_model_len(config, options.max_model_len)
    form = cpu_form(options.precision, team) if team else torch_form(options.precision, device)
    transformer = assemble(config, checkpoint, form, max_model_len + OVERSHOOT, progress, ranks)
    return Loaded(config, transformer, max_model_len, source if source.suffix != ".json" else source.parent)


def locate(model: str, options: ModelOptions, progress: Progress) -> Path:
    """The folder, .gguf or config.json that a MODEL argument means, fetched if need be."""
    if not model.strip():
        raise OverdriveError("no model was named: give smollm2, a folder, a .gguf file or a hub id like owner/name")
    if model == "smollm2":
        return smollm2_path(progress)
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix in (".gguf", ".json"):
            return path
        raise OverdriveError(f"{path} is neither a folder, a .gguf file nor a config.json")
    if hub.is_hub_id(model) and not path.parent.is_dir():
        return hub.fetch(model, options.revision, options.load_format != "dummy", progress)
    raise OverdriveError(f"no model {model!r}: expected smollm2, a folder, a .gguf file or a hub id like owner/name")


def open_checkpoint(source: Path, options: ModelOptions) -> tuple[ModelConfig, Checkpoint]:
    """Config and weights of a located model, by what it is; a demanded load_format must fit."""
    wanted = options.load_format
    found = {".gguf": "gguf", ".json": "dummy"}.get(source.suffix, "safetensors") if source.is_file() else "safetensors"
    if wanted not in ("auto", "dummy", found):
        raise OverdriveError(f"{source} cannot be loaded with load_format {wanted!r}: it is for {found!r}")
    if found == "gguf":
        file = GGUFCheckpoint(source)
        return file.config, RandomCheckpoint(file.config, options.seed) if wanted == "dummy" else file
    if found == "dummy" and wanted != "dummy":
        raise OverdriveError(f"{source} is a config without weights; give load_format 'dummy' for random ones")
    config = ModelConfig.from_folder(source if source.is_dir() else source.parent)
    if wanted == "dummy":
        return config, RandomCheckpoint(config, options.seed)
    return config, SafetensorsCheckpoint(source, config)


def _max_model_len(config: ModelConfig, wanted: int) -> int:
    if not 0 <= wanted <= config.max_positions:
        raise OverdriveError(f"max_model_len {wanted} is not within 1 .. {config.max_positions}, the model's own limit")
    return wanted or config.max_positions
