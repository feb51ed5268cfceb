"""Text to token ids and back.

Encoding is the `tokenizers` library's; decoding reads the token table of `pieces.py`. It knows nothing of requests,
streams or templates, and never imports transformers (which takes seconds).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import tokenizers

from overdrive.errors import BadRequest, OverdriveError
from overdrive.text.pieces import TokenTable


class NoTokenizer(OverdriveError):
    """There is no tokenizer there, which is another thing than one that cannot be used."""


class Tokenizer(ABC):
    """What the server needs of a vocabulary.

    table: the bytes of every id.
    special_tokens: names a chat template may use (`bos_token`, `eos_token`, ...) and the texts they stand for.
    prefix: ids that `encode(..., add_special=True)` puts first: the beginning-of-text token, or nothing.
    eos_ids: ids that end an answer as far as the tokenizer knows; a model's generation config may add more.
    """

    def __init__(
        self,
        table: TokenTable,
        special_tokens: Mapping[str, str],
        prefix: tuple[int, ...] = (),
        eos_ids: tuple[int, ...] = (),
    ) -> None:
        self.table = table
        self.special_tokens = dict(special_tokens)
        self.prefix = prefix
        self.eos_ids = eos_ids

    @property
    def vocab_size(self) -> int:
        """One more than the highest id. A model's own vocabulary may be padded beyond it."""
        return len(self.table.pieces)

    @property
    def bos(self) -> int | None:
        """Id of the beginning-of-text token; None for a vocabulary that has none."""
        name = self.special_tokens.get("bos_token", "")
        return self.id_of(name) if name else None

    def encode(self, text: str, add_special: bool) -> list[int]:
        """Ids of `text`; names of special tokens in it become those tokens.

        add_special: put `prefix` first, unless the text already begins with it (never two BOS). A rendered chat
        template writes its own special tokens and is encoded with False.
        Raises BadRequest for text that is no Unicode (a lone surrogate, as JSON can smuggle in).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            found = f"\\u{ord(text[error.start]):04x}"
            raise BadRequest(f"text holds a lone surrogate ({found} at character {error.start})") from error
        ids = self._encode(text)
        if not add_special or tuple(ids[: len(self.prefix)]) == self.prefix:
            return ids
        return [*self.prefix, *ids]

    def decode(self, ids: Iterable[int], skip_special: bool = True, continues: bool = False) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD, as Python's errors="replace" does it.

        skip_special: leave special tokens out; else they appear by name.
        continues: the ids follow others, so a first space is a space (see `TokenTable.strips_space`).
        """
        data = self.table.join(ids, skip_special)
        if self.table.strips_space and not continues:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def token_bytes(self) -> list[bytes]:
        """The bytes each id adds to an answer's text; b"" for special tokens, which never show."""
        return self.table.visible

    def bytes_of(self, token: int) -> bytes:
        """The bytes one id stands for, a special token by its name (as logprobs report it)."""
        return self.table.pieces[token] if 0 <= token < len(self.table.pieces) else b""

    @abstractmethod
    def id_of(self, token: str) -> int | None:
        """Id of the token that the vocabulary calls `token`; None when it has none."""

    @abstractmethod
    def _encode(self, text: str) -> list[int]:
        """Ids of well-formed `text`, nothing added."""


class FastTokenizer(Tokenizer):
    """A vocabulary held by the `tokenizers` library. `core` must neither truncate nor pad."""

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        table: TokenTable,
        special_tokens: Mapping[str, str],
        prefix: tuple[int, ...] = (),
        eos_ids: tuple[int, ...] = (),
    ) -> None:
        super().__init__(table, special_tokens, prefix, eos_ids)
        self._core = core

    def id_of(self, token: str) -> int | None:
        return self._core.token_to_id(token)

    def _encode(self, text: str) -> list[int]:
        # A batch of one: unlike `encode` it lets other threads run meanwhile, and it skips the offsets.
        return self._core.encode_batch_fast([text], add_special_tokens=False)[0].ids


class ByteTokenizer(Tokenizer):
    """One id per byte, then `<bos>`, `<eos>` and `<pad>`: 259 ids, no file; for tests and dummy models.

    Ids up to `vocab_size`, where that is more, show as their number, as `<300>`; no text is encoded to them.
    """

    BOS, EOS, PAD = 256, 257, 258

    def __init__(self, vocab_size: int = 0) -> None:
        self._names = {"<bos>": self.BOS, "<eos>": self.EOS, "<pad>": self.PAD}
        pieces = [bytes([byte]) for byte in range(256)] + [name.encode() for name in self._names]
        pieces += [b"<%d>" % token for token in range(len(pieces), vocab_size)]
        special_tokens = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
        super().__init__(TokenTable(pieces, self._names.values()), special_tokens, (self.BOS,), (self.EOS,))

    def id_of(self, token: str) -> int | None:
        if token in self._names:
            return self._names[token]
        return ord(token) if len(token) == 1 and token.isascii() else None

    def _encode(self, text: str) -> list[int]:
        return list(text.encode())
