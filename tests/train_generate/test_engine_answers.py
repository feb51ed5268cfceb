"""The engine and the batched generator are one generator to their callers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from overdrive.config import ModelOptions
from overdrive.train.dataset import Dataset, is_finished
from overdrive.train.generate.batched import BatchedGenerator
from overdrive.train.generate.engine import EngineGenerator
from overdrive.train.generate.folder import write_answers
from overdrive.train.generate.jobs import Job
from overdrive.train.generate.recipe import Recipe
from overdrive.train.generate.target import _linears, open_target
from tests.train_generate.feeds import ListFeed
from tests.train_generate.scripted import CHATML

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "eos_token_id": 257,
}


@pytest.fixture
def model(tmp_path: Path) -> tuple[str, ModelOptions]:
    """A tiny model with random weights, bytes for tokens and a chat template."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "chat.jinja").write_text(CHATML)
    options = ModelOptions(load_format="dummy", precision="float32", chat_template=str(tmp_path / "chat.jinja"))
    return str(tmp_path / "config.json"), options


def test_both_generators_give_the_same_greedy_answers(model):
    jobs = [Job(key=n, prompt=[n, 5, 9 * n], max_tokens=12) for n in range(6)]
    target = open_target(*model, torch.device("cpu"), 128, lambda *_: None)
    feeds = ListFeed(jobs), ListFeed(jobs)
    BatchedGenerator(target.transformer, target.stops, slots=4, max_len=128).run(feeds[0])
    engine = EngineGenerator(*model, (), rows=3, max_len=128, progress=lambda *_: None)
    engine.run(feeds[1])
    engine.close()
    assert engine.stops == target.stops == (257,)
    assert feeds[0].answers == feeds[1].answers


def test_scores_of_a_half_precision_head_are_not_rounded_to_it():
    weight, x = torch.randn((300, 16)).bfloat16(), torch.randn((4, 16)).bfloat16()
    linear = _linears(torch.bfloat16, torch.device("cpu"), 300)([weight], None)
    assert torch.allclose(linear(x), x.float() @ weight.float().t(), atol=1e-5)
    assert _linears(torch.bfloat16, torch.device("cpu"), 299)([weight], None)(x).dtype == torch.bfloat16


def test_a_dataset_is_made_of_a_prompts_file_and_a_model(model, tmp_path):
    out, prompts = tmp_path / "out", tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"question {n}", "id": f"p{n}"}) + "\n" for n in range(12)))
    recipe = Recipe(answer_tokens=20, samples=1, heldout_share=0.5)
    options = {"recipe": recipe, "rows": 4, "model_options": model[1], "quiet": True}
    tally = write_answers(model[0], prompts, out, **options)
    dataset = Dataset.open(out)
    assert is_finished(out) and len(dataset) == tally.conversations > 0
    assert int(dataset.answer.sum()) == tally.answer_tokens
    assert {"train", "heldout"} == {split for split, *_ in tally.rows}
    assert dataset.info.vocab == 259 and dataset.info.fingerprint and dataset.info.sampling == recipe.described
    again = write_answers(model[0], prompts, out, **options)
    assert again.conversations == tally.conversations and len(Dataset.open(out)) == len(dataset)


def test_generation_on_a_gpu_needs_none_of_the_servers_packages():
    names = ("fastapi", "zmq", "msgspec", "cyclopts", "pydantic", "httpx", "uvicorn", "huggingface_hub")
    code = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in names)
    code += "import overdrive.train.generate.folder, overdrive.train.generate.__main__"
    subprocess.run([sys.executable, "-c", code], check=True)
