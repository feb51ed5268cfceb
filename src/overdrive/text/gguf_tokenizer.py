"""The tokenizer inside a GGUF file, rebuilt for the `tokenizers` library.

Two families: "gpt2" (byte-level BPE: tokens, merges, and a pre-tokenizer by name) and "llama" (SentencePiece BPE:
tokens and scores, from which the merges follow). Names and defaults are those of llama.cpp's llama-vocab.cpp; the
pre-tokenizers are those of the models' own tokenizer.json files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Core
from tokenizers.models import BPE

from overdrive.errors import OverdriveError
from overdrive.gguf_file import read_metadata
from overdrive.text.pieces import REPLACEMENT, TokenTable, byte_level_pieces, sentencepiece_pieces
from overdrive.text.tokenizer import FastTokenizer, NoTokenizer, Tokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # tokenizer.ggml.token_type
_END_NAMES = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")  # end of turn, where a file does not say

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "llama-bpe": lambda: _split(_LLAMA3),
    "llama3": lambda: _split(_LLAMA3),
    "llama-v3": lambda: _split(_LLAMA3),
    "smaug-bpe": lambda: _split(_LLAMA3),
    "qwen2": lambda: _split(_QWEN2),
    "deepseek-r1-qwen": lambda: _split(_QWEN2),
    "tekken": lambda: _split(_TEKKEN),
}
_BEGINS_WITH_BOS = {"llama-bpe", "llama3", "tekken"}  # unless the file says otherwise
_WHOLE_WORDS_FIRST = {"llama-bpe", "llama3", "tekken"}  # a word that is a token is not merged up to
_COMPOSES = {"qwen2", "deepseek-r1-qwen"}  # NFC before anything else


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of the .gguf file at `path`. Raises NoTokenizer when it has none, OverdriveError for one of another
    kind.
    """
    metadata = read_metadata(path, lambda key: key.startswith("tokenizer.ggml."))
    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    if not fields.get("tokens"):
        raise NoTokenizer(f"{path} holds no tokenizer; name one with --tokenizer")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if fields.get("model") not in builders:
        known = ", ".join(sorted(builders))
        raise OverdriveError(f"{path} has a tokenizer of kind {fields.get('model')!r}; supported: {known}")
    try:
        return builders[fields["model"]](fields, path)
    except OverdriveError:
        raise
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise OverdriveError(f"{path} has a tokenizer that cannot be built: {error}") from error


def _byte_level(fields: Mapping[str, Any], path: Path) -> Tokenizer:
    pre = fields.get("pre", "default")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise OverdriveError(
            f"{path} wants the pre-tokenizer {pre!r}; supported: {known}. Name another with --tokenizer"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get("merges", [])]
    core = Core(BPE(_vocabulary(fields), merges, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    core.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    if pre in _COMPOSES:
        core.normalizer = normalizers.NFC()
    added = _add_tokens(core, fields)
    table = TokenTable(byte_level_pieces(dict(enumerate(fields["tokens"])), added), _specials(fields))
    return _finished(core, table, fields, pre in _BEGINS_WITH_BOS)


def _sentencepiece(fields: Mapping[str, Any], path: Path) -> Tokenizer:
    vocabulary, tokens = _vocabulary(fields), fields["tokens"]
    scores = fields.get("scores", [])
    if len(scores) != len(tokens):
        raise OverdriveError(f"{path} has {len(tokens)} tokens but {len(scores)} scores")
    unknown = tokens[fields.get("unknown_token_id", 0)]
    merges = merges_from_scores(vocabulary, scores)
    core = Core(BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefixed = fields.get("add_space_prefix", True)
    spaces = normalizers.Replace(" ", REPLACEMENT)
    core.normalizer = normalizers.Sequence([normalizers.Prepend(REPLACEMENT), spaces]) if prefixed else spaces
    _add_tokens(core, fields)
    table = TokenTable(sentencepiece_pieces(dict(enumerate(tokens))), _specials(fields), strips_space=prefixed)
    return _finished(core, table, fields, begins_with_bos=True)


def merges_from_scores(vocabulary: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """BPE merges of a SentencePiece vocabulary, best first: every split of every token into two tokens.

    SentencePiece merges the pair whose result has the highest score; as a merge list that is all pairs in the order of
    their results' scores (the same derivation as in transformers' conversion of slow tokenizers).
    """
    merges: list[tuple[float, tuple[str, str]]] = []
    for token, index in vocabulary.items():
        splits = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [(left, right) for left, right in splits if left in vocabulary and right in vocabulary]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges.extend((-scores[index], pair) for pair in pairs)
    merges.sort(key=lambda merge: merge[0])
    return [pair for _, pair in merges]


def _vocabulary(fields: Mapping[str, Any]) -> dict[str, int]:
    return {token: index for index, token in enumerate(fields["tokens"])}


def _kinds(fields: Mapping[str, Any], *wanted: int) -> list[int]:
    return [index for index, kind in enumerate(fields.get("token_type", [])) if kind in wanted]


def _specials(fields: Mapping[str, Any]) -> list[int]:
    return _kinds(fields, _UNKNOWN, _CONTROL)


def _add_tokens(core: Core, fields: Mapping[str, Any]) -> list[int]:
    """Make control and user-defined tokens ones that are found in a text before it is split; their ids."""
    added = _kinds(fields, _CONTROL, _USER_DEFINED)
    control = frozenset(_kinds(fields, _CONTROL))
    tokens = fields["tokens"]
    core.add_tokens([AddedToken(tokens[index], special=index in control, normalized=False) for index in added])
    return added


def _finished(core: Core, table: TokenTable, fields: Mapping[str, Any], begins_with_bos: bool) -> Tokenizer:
    """The tokenizer with the ids that the file names."""
    tokens = fields["tokens"]
    keys = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}
    named = {name: fields[key] for name, key in keys.items() if 0 <= fields.get(key, -1) < len(tokens)}
    special_tokens = {f"{name}_token": tokens[index] for name, index in named.items()}
    with_bos = fields.get("add_bos_token", begins_with_bos) and "bos" in named
    return FastTokenizer(core, table, special_tokens, (named["bos"],) if with_bos else (), _end_ids(fields))


def _end_ids(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids that end an answer: of text, turn and message; the turn's by its usual name where the file does not say."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    tokens = fields["tokens"]
    ends = [fields[key] for key in keys if 0 <= fields.get(key, -1) < len(tokens)]
    if "eot_token_id" not in fields:
        ends += [index for index in _kinds(fields, _CONTROL) if tokens[index] in _END_NAMES]
    return tuple(dict.fromkeys(ends))
