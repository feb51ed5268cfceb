"""What each token id adds to a text, as exact bytes.

This is the one meaning of ids as text in the whole server: decoding, streaming and stop strings all read these tables,
so they cannot disagree. Bytes rather than strings, because a character may be spread over several tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from overdrive.errors import OverdriveError

REPLACEMENT = "▁"  # SentencePiece writes a space as U+2581


class TokenTable:
    """Bytes by token id, with the ids that readers never see.

    pieces: what id i stands for, specials by their literal name; b"" for ids that name no token.
    visible: the same with b"" for specials.
    strips_space: whether a text's first space is one that encoding has put there (SentencePiece's dummy prefix).
    """

    def __init__(self, pieces: Sequence[bytes], special: Iterable[int], strips_space: bool = False) -> None:
        self.pieces = list(pieces)
        self.special = frozenset(special)
        self.visible = [b"" if token in self.special else piece for token, piece in enumerate(self.pieces)]
        self.strips_space = strips_space

    def showing(self, ids: Iterable[int]) -> TokenTable:
        """This table with the special tokens `ids` visible to readers."""
        shown = frozenset(ids)
        return TokenTable(self.pieces, self.special - shown, self.strips_space) if shown & self.special else self

    def join(self, ids: Iterable[int], skip_special: bool = True) -> bytes:
        """The bytes of `ids` in a row. Ids beyond the table (a model's padded vocabulary) add nothing."""
        table = self.visible if skip_special else self.pieces
        size = len(table)
        return b"".join([table[token] for token in ids if 0 <= token < size])


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level BPE vocabularies (GPT-2's encoder.py, `bytes_to_unicode`).

    Printable Latin-1 characters stand for themselves; the others take the code points from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def byte_level_pieces(tokens: Mapping[int, str], literal: Iterable[int]) -> list[bytes]:
    """Pieces of a byte-level vocabulary; ids in `literal` (added tokens) hold plain text instead of mapped bytes."""
    alphabet = byte_alphabet()
    plain = frozenset(literal)

    def piece(token: int, text: str) -> bytes:
        try:
            return text.encode() if token in plain else bytes([alphabet[char] for char in text])
        except KeyError:
            return text.encode()

    return _dense({token: piece(token, text) for token, text in tokens.items()})


def sentencepiece_pieces(tokens: Mapping[int, str], byte_fallback: bool = True) -> list[bytes]:
    """Pieces of a SentencePiece vocabulary: U+2581 is a space, `<0x41>` the byte 0x41."""

    def piece(text: str) -> bytes:
        if byte_fallback and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace(REPLACEMENT, " ").encode()

    return _dense({token: piece(text) for token, text in tokens.items()})


def pieces_for_decoder(decoder: Mapping[str, Any], tokens: Mapping[int, str], added: Iterable[int]) -> list[bytes]:
    """Pieces by the rules of a tokenizer.json `decoder`. Raises OverdriveError for one that has no per-token bytes."""
    steps = decoder_steps(decoder)
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return byte_level_pieces(tokens, added)
    if kinds & {"Metaspace", "ByteFallback", "Replace"}:
        return sentencepiece_pieces(tokens, "ByteFallback" in kinds)
    name = ", ".join(sorted(kinds)) or "none"
    raise OverdriveError(
        f"the tokenizer's decoder ({name}) is not supported: ByteLevel, Metaspace and ByteFallback are"
    )


def strips_first_space(decoder: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json `decoder` drops the first space of a text."""
    return any(
        (step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0) > 0)
        or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in decoder_steps(decoder)
    )


def decoder_steps(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A `decoder` as its flat list of steps."""
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder["decoders"] for step in decoder_steps(inner)]
    return [decoder] if decoder.get("type") else []


def _dense(pieces: Mapping[int, bytes]) -> list[bytes]:
    return [pieces.get(token, b"") for token in range(max(pieces, default=-1) + 1)]
