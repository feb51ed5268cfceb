"""Whether two models mean the same by a token id: a drafter's tokens are the target's, id by id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overdrive.errors import OverdriveError
from overdrive.model.weights import Loaded
from overdrive.text import load_tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """name: of the model, for messages. size: ids that it scores. pieces: bytes by id, empty where nobody can tell."""

    name: str
    size: int
    pieces: Sequence[bytes]


def vocabulary_of(loaded: Loaded) -> Vocabulary:
    """A loaded model's own; without pieces where no tokenizer lies beside the weights."""
    try:
        pieces = load_tokenizer(loaded.source).table.pieces
    except OverdriveError:
        pieces = []
    return Vocabulary(str(loaded.source), loaded.config.vocab, pieces)


def check_same_vocabulary(target: Vocabulary, small: Vocabulary) -> None:
    """Raise OverdriveError, naming both models, where their ids do not mean the same.

    Ids that only one of the tokenizers names are padding to the other, and harmless.
    """
    if target.size != small.size:
        raise OverdriveError(
            f"the drafter {small.name} has {small.size} token ids and the model {target.name} has {target.size}: "
            "a small model must have the target's vocabulary"
        )
    for token, (meant, found) in enumerate(zip(target.pieces, small.pieces, strict=False)):
        if meant != found:
            raise OverdriveError(
                f"token {token} is {_shown(found)} to the drafter {small.name} and {_shown(meant)} to the model "
                f"{target.name}: a small model must have the target's vocabulary"
            )


def _shown(piece: bytes) -> str:
    return repr(piece.decode("utf-8", errors="backslashreplace"))
