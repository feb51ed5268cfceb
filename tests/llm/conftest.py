"""A tiny random llama over bytes, in float64, so that text can be compared exactly."""

from __future__ import annotations

import json

import pytest

from overdrive import LLM

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 259,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny"))


def write_tiny(folder, **changes):
    """The tiny model's config and template, without weights. changes: of config.json."""
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    (folder / "template.jinja").write_text(TEMPLATE)
    return folder


def open_tiny(folder, **options):
    """The tiny model; options as for LLM."""
    small = {"page_size": 8, "kv_tokens": 2048, "max_rows": 8, "max_step_tokens": 64, "chunk": 16, "threads": 1}
    template = str(folder / "template.jinja")
    given = {"load_format": "dummy", "precision": "float64", "chat_template": template, "speculation": "fixed"}
    return LLM(str(folder), progress=False, **given | small | options)


@pytest.fixture(scope="session")
def llm(tiny_model):
    with open_tiny(tiny_model) as opened:
        yield opened


@pytest.fixture
def make_llm(tiny_model):
    """LLMs with options of their own."""
    opened = []

    def make(**options):
        opened.append(open_tiny(tiny_model, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
