"""SmolLM2's own file against transformers' reading of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from overdrive.text import Tokenizer, load_chat_template, load_tokenizer

pytestmark = pytest.mark.smollm2

TEXTS = [
    "James gets 80 emails a day.  20% of those need no answer.",
    "  lead, tail   ",
    "\n\n\t x\r\n\r\n",
    "a\u0301é １２３ ½ x²³ ١٢٣",
    "🎉👩‍👩‍👧 你好",
    "don't DON'T we'LL",
    "def f(x):\n    return x  # 1234\n",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "a" * 1000,
    "",
]


@pytest.fixture(scope="module")
def smollm2(smollm2_file: Path) -> Tokenizer:
    return load_tokenizer(smollm2_file)


@pytest.fixture(scope="module")
def reference(smollm2_file: Path) -> Any:
    """transformers' tokenizer of the file. It forgets that SmolLM2 splits digits first, so that is put back."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(smollm2_file.parent), gguf_file=smollm2_file.name)
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return tokenizer


KNOWN = {
    "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
    "  multiple   spaces": [216, 2701, 256, 5600],
    "a day.  20%": [81, 1194, 30, 256, 34, 32, 21],
    "<|im_start|>user\n": [1, 4093, 198],
}


@pytest.mark.parametrize("text", KNOWN)
def test_known_ids(smollm2: Tokenizer, text: str) -> None:
    assert smollm2.encode(text, add_special=True) == KNOWN[text]


@pytest.mark.slow
def test_ids_are_those_of_transformers(smollm2: Tokenizer, reference: Any) -> None:
    @given(st.one_of(st.sampled_from(TEXTS), st.text()))
    def law(text: str) -> None:
        assert smollm2.encode(text, add_special=True) == reference(text)["input_ids"]

    law()


@pytest.mark.parametrize("text", TEXTS)
def test_texts_survive_the_round_trip(smollm2: Tokenizer, text: str) -> None:
    """Not any text: the vocabulary lacks some bytes (0xF1 for one), which encoding drops, as in transformers."""
    assert smollm2.decode(smollm2.encode(text, add_special=True), skip_special=False) == text


@pytest.mark.slow
def test_texts_are_those_of_transformers_for_any_ids(smollm2: Tokenizer, reference: Any) -> None:
    @given(st.lists(st.integers(0, smollm2.vocab_size - 1)))
    def law(ids: list[int]) -> None:
        assert smollm2.decode(ids) == reference.decode(ids, skip_special_tokens=True)

    law()


CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
)


def test_chat_prompt_opens_the_assistants_turn(smollm2_file: Path, smollm2: Tokenizer) -> None:
    prompt = load_chat_template(smollm2_file, smollm2).render([{"role": "user", "content": "hi"}])
    assert prompt == CHAT


def test_known_facts_of_the_file(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.eos_ids == (smollm2.id_of("<|im_end|>"),) == (2,)
    assert smollm2.prefix == ()


@pytest.mark.slow
def test_chat_prompt_is_that_of_transformers(smollm2_file: Path, smollm2: Tokenizer, reference: Any) -> None:
    template = load_chat_template(smollm2_file, smollm2)
    system = {"role": "system", "content": "Be brief."}
    turns = [
        {"role": "user", "content": "hi <b> & 'c'"},
        {"role": "assistant", "content": "yo"},
        {"role": "user", "content": "é"},
    ]
    for messages in (turns, [system, *turns]):
        expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert template.render(messages) == expected
