"""Constrained answers on a GPU: the same at every K, in graphs and without, with overlap and without, and valid."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from overdrive import LLM
from tests.llm.conftest import open_tiny, write_tiny

pytestmark = pytest.mark.cuda

TEXTS = ["the cat sat on the mat and the cat", "abcabcabcabc", "zz", "the cat sat on the mat but"]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
PATTERN = "[0-9]{6}-[A-F]{4}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads as wide as the kernels want them."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
    return write_tiny(tmp_path_factory.mktemp("tiny"), **sizes)


def answers(llm: LLM) -> list[str]:
    """Two schemas, two patterns, four free ones, greedy and sampled, all together; penalties and biases with them."""
    each = []
    for number in range(8):
        held = [{"guided_json": SCHEMA}, {"guided_regex": PATTERN}, {}, {}][number % 4]
        hot = {"temperature": 0.9, "seed": number, "top_p": 0.95} if number >= 4 else {"temperature": 0.0}
        each.append({**held, **hot, "frequency_penalty": 0.3 * (number % 2), "min_tokens": 2 * (number % 3)})
    found = llm.generate([*TEXTS, *TEXTS], each=each, max_tokens=48)
    for number, answer in enumerate(found):
        if number % 4 == 0:
            assert set(json.loads(answer.text)) == {"ok", "n"}
        if number % 4 == 1:
            assert re.fullmatch(PATTERN, answer.text)
    return [answer.text for answer in found]


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("overlap", ["on", "off"])
def test_constrained_answers_on_a_gpu_do_not_depend_on_drafts(folder: Path, graphs: bool, overlap: str) -> None:
    """In float32, without near-ties."""
    texts = []
    for drafts in (0, 3, 7):
        draft = {"draft": "ngram", "drafts": drafts, "ngram_min": 1} if drafts else {"draft": "none"}
        with open_tiny(folder, device="cuda", precision="float32", graphs=graphs, overlap=overlap, **draft) as llm:
            texts.append(answers(llm))
    assert texts[1] == texts[0] and texts[2] == texts[0]


def test_free_answers_are_the_same_behind_masked_ones(folder: Path) -> None:
    """Masks of an earlier step are nobody's: a penalised free request, which looks at masks too, finds none."""
    free = {"max_tokens": 24, "temperature": 0.0, "frequency_penalty": 0.5}
    with open_tiny(folder, device="cuda", precision="float32", draft="ngram") as llm:
        [before] = llm.generate(TEXTS[0], **free)
        answers(llm)
        [behind] = llm.generate(TEXTS[0], **free)
    assert behind.token_ids == before.token_ids
