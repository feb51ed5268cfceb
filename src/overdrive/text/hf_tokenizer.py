"""A tokenizer from Hugging Face files: tokenizer.json, and what tokenizer_config.json says about its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Core

from overdrive.errors import OverdriveError
from overdrive.json_text import parse_json, read_json
from overdrive.text.pieces import TokenTable, pieces_for_decoder, strips_first_space
from overdrive.text.tokenizer import FastTokenizer, NoTokenizer, Tokenizer

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")


def load_hf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model folder, or of a tokenizer.json with whatever stands beside it.

    Raises NoTokenizer when there is no tokenizer.json, OverdriveError when it cannot be used.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise NoTokenizer(f"{path} has no tokenizer.json; name a folder that has one with --tokenizer")
    try:
        core = Core.from_file(str(file))
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise OverdriveError(f"{file} cannot be read: {error}") from error
    core.no_truncation()
    core.no_padding()
    config = read_if_there(file.with_name("special_tokens_map.json")) | read_if_there(
        file.with_name("tokenizer_config.json")
    )
    return _assemble(core, config)


def read_if_there(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} when there is no such file. Raises OverdriveError when it is no JSON object."""
    return read_json(path) if path.is_file() else {}


def _assemble(core: Core, config: Mapping[str, Any]) -> Tokenizer:
    special_tokens = {name: text for name in _NAMED if (text := _text(config.get(name)))}
    more = [_text(token) for token in _listed(config.get("additional_special_tokens"))]
    by_name = (core.token_to_id(text) for text in [*special_tokens.values(), *more])
    added = core.get_added_tokens_decoder()
    special = {index for index, token in added.items() if token.special} | {
        index for index in by_name if index is not None
    }
    tokens = {index: token for token, index in core.get_vocab(with_added_tokens=True).items()}
    decoder = parse_json(core.decoder.__getstate__()) if core.decoder is not None else {}
    table = TokenTable(pieces_for_decoder(decoder, tokens, added), special, strips_first_space(decoder))
    ends = core.token_to_id(special_tokens.get("eos_token", ""))
    return FastTokenizer(core, table, special_tokens, _prefix(core, config), () if ends is None else (ends,))


def _text(token: Any) -> str:
    """A token as configs write it: its text, or an object with the text in `content`."""
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")


def _listed(value: Any) -> list[Any]:
    """A list as it is; of anything else, which is no list of tokens, nothing."""
    return value if isinstance(value, list) else []


def _prefix(core: Core, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids that go before a text: as `add_bos_token` says, else what the post-processor puts there.

    What a post-processor puts behind a text is left out: an end token there would end the prompt of a generation.
    """
    wanted = config.get("add_bos_token")
    bos = core.token_to_id(_text(config.get("bos_token")))
    if isinstance(wanted, bool) and bos is not None:
        return (bos,) if wanted else ()
    plain = core.encode("a", add_special_tokens=False).ids
    whole = core.encode("a", add_special_tokens=True).ids
    starts = [cut for cut in range(len(whole)) if whole[cut : cut + len(plain)] == plain]
    return tuple(whole[: starts[0]]) if starts else ()
