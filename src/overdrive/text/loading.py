"""Where a model's tokenizer and chat template come from: a Hugging Face folder, a tokenizer.json, or a .gguf file."""

from __future__ import annotations

from pathlib import Path

from overdrive.config import ModelOptions
from overdrive.errors import OverdriveError, system_reason
from overdrive.gguf_file import read_metadata
from overdrive.text.gguf_tokenizer import load_gguf_tokenizer
from overdrive.text.hf_tokenizer import load_hf_tokenizer, read_if_there
from overdrive.text.template import ChatTemplate
from overdrive.text.tokenizer import ByteTokenizer, NoTokenizer, Tokenizer


def open_text(source: Path, options: ModelOptions) -> tuple[Tokenizer, ChatTemplate]:
    """The tokenizer and chat template of a model, or those that the options name instead.

    Dummy weights have no words of their own: where there is no tokenizer they get one of bytes, with the ids that the
    folder's config.json says beyond them. Raises OverdriveError, also for dummy weights when there is a tokenizer that
    cannot be used.
    """
    origin = Path(options.tokenizer) if options.tokenizer else source
    override = Path(options.chat_template) if options.chat_template else None
    try:
        tokenizer = load_tokenizer(origin)
    except NoTokenizer:
        if options.load_format != "dummy" or options.tokenizer:
            raise
        tokenizer = ByteTokenizer(_vocab_size(source))
    return tokenizer, load_chat_template(origin, tokenizer, override)


def _vocab_size(folder: Path) -> int:
    """As config.json has it; 0 where it says nothing."""
    size = read_if_there(folder / "config.json").get("vocab_size", 0)
    return size if isinstance(size, int) else 0


_GGUF_KEY = "tokenizer.chat_template"


def load_tokenizer(source: Path) -> Tokenizer:
    """The tokenizer of a model folder, a tokenizer.json or a .gguf file.

    Raises OverdriveError, naming the file and the fault, when there is none that can be used.
    """
    if not source.exists():
        raise NoTokenizer(f"no tokenizer at {source}: there is no such file or folder")
    return load_gguf_tokenizer(source) if source.suffix == ".gguf" else load_hf_tokenizer(source)


def load_chat_template(source: Path, tokenizer: Tokenizer, override: Path | None = None) -> ChatTemplate:
    """The chat template of the model at `source` (as in `load_tokenizer`), or the one in the file `override`.

    A model without a template gives one that refuses every chat with a BadRequest. Raises OverdriveError for a
    template that is no valid Jinja.
    """
    if override is not None:
        try:
            templates = {"default": override.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise OverdriveError(f"cannot read the chat template {override}: {system_reason(error)}") from error
        return ChatTemplate(templates, tokenizer.special_tokens, str(override))
    templates = _gguf_templates(source) if source.suffix == ".gguf" else _hf_templates(source)
    return ChatTemplate(templates, tokenizer.special_tokens, str(source))


def _gguf_templates(path: Path) -> dict[str, str]:
    """`tokenizer.chat_template` and its named variants `tokenizer.chat_template.NAME`."""
    found = read_metadata(path, lambda key: key == _GGUF_KEY or key.startswith(_GGUF_KEY + "."))
    return {key.removeprefix(_GGUF_KEY).lstrip(".") or "default": text for key, text in found.items()}


def _hf_templates(path: Path) -> dict[str, str]:
    """chat_template.jinja and additional_chat_templates/NAME.jinja, else `chat_template` of tokenizer_config.json."""
    folder = path if path.is_dir() else path.parent
    files = {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    return _config_templates(folder / "tokenizer_config.json")


def _config_templates(path: Path) -> dict[str, str]:
    """`chat_template` of a tokenizer_config.json: one template, or a list of named ones."""
    found = read_if_there(path).get("chat_template") or []
    if isinstance(found, str):
        return {"default": found}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in found}
    except (TypeError, KeyError) as error:
        raise OverdriveError(f"{path} has a chat_template that is neither text nor a list of named texts") from error
