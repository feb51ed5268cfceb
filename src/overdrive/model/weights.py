"""From the MODEL argument to a Transformer: what the name means, which reader it needs, which form the weights take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from overdrive.config import ModelOptions
from overdrive.device.cpu.team import Team
from overdrive.device.cuda.memory import check_room, free_bytes, give_back_spare
from overdrive.device.parallel.ranks import ALONE, Ranks
from overdrive.errors import OverdriveError
from overdrive.model import hub
from overdrive.model.assemble import Checkpoint, Form, assemble
from overdrive.model.config import ModelConfig
from overdrive.model.dummy import CPU, RandomCheckpoint
from overdrive.model.forms import cuda_bytes, form_for
from overdrive.model.gguf import GGUFCheckpoint
from overdrive.model.safetensors_folder import SafetensorsCheckpoint
from overdrive.model.shapes import find_shape
from overdrive.model.smollm2 import SUGGESTED, smollm2_path
from overdrive.model.transformer import Transformer
from overdrive.progress import Progress
from overdrive.types import OVERSHOOT

SMOLLM2 = "smollm2"


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
    """`load_as` in the form that the options' precision means on the device (see `form_for`)."""
    return load_as(model, options, form_for(options.precision, device, team, options.deterministic), progress, ranks)


def load_as(model: str, options: ModelOptions, form: Form, progress: Progress, ranks: Ranks = ALONE) -> Loaded:
    """Find, read and build a model, its weights in this form of `options.precision`.

    model: "smollm2", a folder with config.json and safetensors, a .gguf file, a hub id, or with load_format "dummy"
    also a config.json or the name of a well-known shape (see shapes.py). ranks: those who divide the model among them;
    each loads its part. Tensors go to the form's device one by one; dummy ones are drawn there. Raises OverdriveError,
    one line, for anything missing, damaged or unsupported, and before anything is read where a GPU has too little
    memory.
    """
    source = locate(model, options, progress)
    config, checkpoint = open_checkpoint(source, options, form.device)
    if model == SMOLLM2:
        config = replace(config, generation=SUGGESTED)
    max_model_len = _max_model_len(config, options.max_model_len)
    device = form.device
    if device.type == "cuda":
        check_room(f"model {model}", cuda_bytes(config, options.precision, ranks.count), free_bytes(device), device)
    try:
        transformer = assemble(config, checkpoint, form, max_model_len + OVERSHOOT, progress, ranks)
    except torch.OutOfMemoryError:
        raise OverdriveError(
            f"{device} ran out of memory while model {model} was loaded: free it, or take less"
        ) from None
    if device.type == "cuda":
        give_back_spare(device)
    tokenizer_home = source if source.suffix != ".json" else source.parent
    return Loaded(config, transformer, max_model_len, tokenizer_home)


def locate(model: str, options: ModelOptions, progress: Progress) -> Path:
    """The folder, .gguf or config.json that a MODEL argument means, fetched if need be.

    A well-known shape is a folder too, one of a config alone; files of the same name come first.
    """
    if not model.strip():
        raise OverdriveError("no model was named: give smollm2, a folder, a .gguf file or a hub id like owner/name")
    if model == SMOLLM2:
        return smollm2_path(progress)
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix in (".gguf", ".json"):
            return path
        raise OverdriveError(f"{path} is neither a folder, a .gguf file nor a config.json")
    if shape := find_shape(model):
        if options.load_format != "dummy":
            raise OverdriveError(f"{model} is a shape without weights; give --load-format dummy for random ones")
        return shape
    if hub.is_hub_id(model) and not path.parent.is_dir():
        return hub.fetch(model, options.revision, options.load_format != "dummy", progress)
    raise OverdriveError(f"no model {model!r}: expected smollm2, a folder, a .gguf file or a hub id like owner/name")


def open_checkpoint(source: Path, options: ModelOptions, device: torch.device = CPU) -> tuple[ModelConfig, Checkpoint]:
    """Config and weights of a located model, by what it is; a demanded load_format must fit.

    device: where random weights are drawn.
    """
    wanted = options.load_format
    found = {".gguf": "gguf", ".json": "dummy"}.get(source.suffix, "safetensors") if source.is_file() else "safetensors"
    if wanted not in ("auto", "dummy", found):
        raise OverdriveError(f"{source} cannot be loaded with load_format {wanted!r}: it is for {found!r}")
    if found == "gguf":
        file = GGUFCheckpoint(source)
        return file.config, RandomCheckpoint(file.config, options.seed, device) if wanted == "dummy" else file
    if found == "dummy" and wanted != "dummy":
        raise OverdriveError(f"{source} is a config without weights; give --load-format dummy for random ones")
    config = ModelConfig.from_folder(source if source.is_dir() else source.parent)
    if wanted == "dummy":
        return config, RandomCheckpoint(config, options.seed, device)
    return config, SafetensorsCheckpoint(source, config)


def _max_model_len(config: ModelConfig, wanted: int) -> int:
    if not 0 <= wanted <= config.max_positions:
        raise OverdriveError(f"max_model_len {wanted} is not within 1 .. {config.max_positions}, the model's own limit")
    return wanted or config.max_positions
