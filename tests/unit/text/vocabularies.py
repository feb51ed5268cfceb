"""Small vocabularies as the `tokenizer.ggml.*` fields of a GGUF file."""

from __future__ import annotations

from typing import Any

from overdrive.text.pieces import byte_alphabet


def byte_level_fields(pre: str = "smollm", **more: Any) -> dict[str, Any]:
    """A byte-level vocabulary: two control tokens, one user-defined token, 256 bytes and a few merges."""
    letters = {byte: char for char, byte in byte_alphabet().items()}
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "12 3"]
    tokens = ["<|start|>", "<|end|>", "<tool>"] + [letters[byte] for byte in range(256)]
    tokens += [merge.replace(" ", "") for merge in merges]
    kinds = [3, 3, 4] + [1] * (len(tokens) - 3)
    fields = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges, "token_type": kinds}
    fields |= {"bos_token_id": 0, "eos_token_id": 1} | more
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


def sentencepiece_fields(**more: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary: unknown, control, 256 byte tokens, characters and merged pieces with scores."""
    pieces = ["▁", "h", "e", "l", "o", "w", "r", "d", "▁▁", "he", "ll", "hell", "hello", "▁hello", "▁w", "or", "▁wor"]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + pieces
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))]
    fields = {"model": "llama", "tokens": tokens, "token_type": kinds, "scores": scores}
    fields |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0} | more
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
