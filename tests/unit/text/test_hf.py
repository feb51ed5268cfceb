"""Tokenizers out of Hugging Face files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Core
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from overdrive.config import ModelOptions
from overdrive.errors import OverdriveError
from overdrive.text import ByteTokenizer, load_chat_template, load_tokenizer, open_text
from overdrive.text.pieces import REPLACEMENT, byte_alphabet

Config = dict[str, Any]


def byte_level_core() -> Core:
    """256 bytes, `<s>`, `</s>`, and a post-processor that puts both around a text."""
    letters = sorted(byte_alphabet())
    core = Core(BPE({letter: index for index, letter in enumerate(letters)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True), AddedToken("<é>")])
    core.post_processor = TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 256), ("</s>", 257)])
    return core


def sentencepiece_core() -> Core:
    """Llama 2's arrangement: a prepended U+2581, byte fallback, and a decoder that strips one space."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    core = Core(BPE(vocabulary, [("▁", "a")], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend(REPLACEMENT), normalizers.Replace(" ", REPLACEMENT)])
    steps = [decoders.Replace(REPLACEMENT, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(steps)
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    return core


def folder(path: Path, core: Core, config: Config) -> Path:
    core.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def test_begin_token_of_the_post_processor_is_kept_and_its_end_token_is_not(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder(tmp_path, byte_level_core(), {"bos_token": "<s>", "eos_token": "</s>"}))
    assert tokenizer.encode("a", add_special=True) == [256, *tokenizer.encode("a", add_special=False)]
    assert tokenizer.encode("<s>a", add_special=True) == tokenizer.encode("a", add_special=True)
    assert (tokenizer.bos, tokenizer.eos_ids) == (256, (257,))


@pytest.mark.parametrize("wanted", [True, False])
def test_add_bos_token_of_the_config_decides(tmp_path: Path, wanted: bool) -> None:
    core = byte_level_core()
    if wanted:
        core.post_processor = TemplateProcessing("$A", special_tokens=[])
    config = {"bos_token": {"content": "<s>"}, "add_bos_token": wanted}
    tokenizer = load_tokenizer(folder(tmp_path, core, config))
    assert tokenizer.encode("a", add_special=True).count(256) == wanted


def test_single_file_and_folder_give_the_same_tokenizer(tmp_path: Path) -> None:
    path = folder(tmp_path, byte_level_core(), {"bos_token": "<s>", "eos_token": "</s>"})
    one, other = load_tokenizer(path), load_tokenizer(path / "tokenizer.json")
    assert (one.token_bytes(), one.special_tokens) == (other.token_bytes(), other.special_tokens)


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path: Path) -> None:
    core = byte_level_core()
    core.enable_truncation(4)
    core.enable_padding(length=9)
    tokenizer = load_tokenizer(folder(tmp_path, core, {}))
    assert tokenizer.decode(tokenizer.encode("longer than four", add_special=False)) == "longer than four"
    assert len(tokenizer.encode("ab", add_special=False)) == 2


def test_added_token_is_literal_text_and_special_only_when_named_so(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder(tmp_path, byte_level_core(), {}))
    assert tokenizer.decode(tokenizer.encode("x<é>", add_special=False)) == "x<é>"
    named = load_tokenizer(folder(tmp_path, byte_level_core(), {"additional_special_tokens": ["<é>"]}))
    assert named.decode(named.encode("x<é>", add_special=False)) == "x"


@pytest.mark.parametrize("build", [byte_level_core, sentencepiece_core])
def test_decoding_agrees_with_the_library_on_texts(tmp_path: Path, build: Any) -> None:
    core = build()
    tokenizer = load_tokenizer(folder(tmp_path, core, {}))

    @given(st.text("ab é🎉\n", max_size=20))
    def law(text: str) -> None:
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids) == core.decode(ids) == text

    law()


def test_metaspace_decoder_strips_the_first_space_unless_it_never_adds_one(tmp_path: Path) -> None:
    core = sentencepiece_core()
    for scheme, text in (("first", "a"), ("never", " a")):
        core.decoder = decoders.Metaspace(prepend_scheme=scheme)
        tokenizer = load_tokenizer(folder(tmp_path, core, {}))
        assert tokenizer.decode([tokenizer.id_of("▁a")]) == core.decode([tokenizer.id_of("▁a")]) == text


@pytest.mark.parametrize("content", ["", "{}", '{"model": 3}'])
def test_broken_tokenizer_json_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(OverdriveError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_dummy_weights_do_without_a_tokenizer_but_not_with_a_broken_one(tmp_path: Path) -> None:
    dummy = ModelOptions(load_format="dummy")
    assert type(open_text(tmp_path, dummy)[0]) is ByteTokenizer
    with pytest.raises(OverdriveError, match=r"no tokenizer\.json"):
        open_text(tmp_path, ModelOptions())
    with pytest.raises(OverdriveError, match="nowhere"):
        open_text(tmp_path, ModelOptions(load_format="dummy", tokenizer=str(tmp_path / "nowhere")))
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(OverdriveError, match=r"tokenizer\.json cannot be read"):
        open_text(tmp_path, dummy)


def test_missing_tokenizer_and_unknown_decoder_are_named(tmp_path: Path) -> None:
    with pytest.raises(OverdriveError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(OverdriveError, match="nowhere"):
        load_tokenizer(tmp_path / "nowhere")
    core = byte_level_core()
    core.decoder = decoders.WordPiece()
    with pytest.raises(OverdriveError, match="WordPiece"):
        load_tokenizer(folder(tmp_path, core, {}))


CHAT = [{"role": "user", "content": "x"}]


def rendered(path: Path, override: Path | None = None, tools: list | None = None) -> str:
    return load_chat_template(path, load_tokenizer(path), override).render(CHAT, tools=tools)


def test_template_comes_from_override_then_file_then_config(tmp_path: Path) -> None:
    path = folder(tmp_path, byte_level_core(), {"chat_template": "config", "bos_token": "<s>"})
    assert rendered(path) == "config"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}file")
    assert rendered(path) == "<s>file"
    override = tmp_path / "mine.jinja"
    override.write_text("override")
    assert rendered(path, override) == "override"


def test_named_templates_choose_by_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with {{ tools|length }}"}]
    path = folder(tmp_path, byte_level_core(), {"chat_template": named})
    assert (rendered(path), rendered(path, tools=[{}])) == ("plain", "with 1")


@pytest.mark.parametrize("found", [5, [5], [{"name": "default"}]])
def test_template_of_another_form_is_named(tmp_path: Path, found: Any) -> None:
    path = folder(tmp_path, byte_level_core(), {"chat_template": found})
    with pytest.raises(OverdriveError, match="chat_template"):
        rendered(path)


def test_missing_override_is_named(tmp_path: Path) -> None:
    path = folder(tmp_path, byte_level_core(), {})
    with pytest.raises(OverdriveError, match=r"gone\.jinja: no such file or directory$"):
        rendered(path, tmp_path / "gone.jinja")
