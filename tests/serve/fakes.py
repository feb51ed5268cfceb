"""A scripted engine behind the real link, and a real HTTP server in front of it."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import uvicorn
from msgspec.structs import replace

from overdrive.config import EngineOptions, ModelOptions, ServerOptions
from overdrive.link import EngineClient, EngineEndpoint
from overdrive.serve.app import create_app
from overdrive.serve.guards import Ended
from overdrive.serve.logs import log_request
from overdrive.serve.metrics import Metrics
from overdrive.serve.server import http_config, listen
from overdrive.serve.service import Closed, Gate, Service
from overdrive.text import ByteTokenizer, ChatTemplate, StopMatcher, Tokenizer, open_text
from overdrive.tools.style import chat_style
from overdrive.types import FinishReason
from overdrive.wire import (
    Abort,
    Batch,
    DraftStats,
    Drain,
    EngineInfo,
    Failed,
    Loading,
    Logprobs,
    PlanStats,
    Ready,
    Shift,
    Stats,
    Stop,
    Submit,
    ToEngine,
    Tokens,
)

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
TEXT = "Hëllo, wörld! 👋 Bye."
EOS = ByteTokenizer.EOS
INFO = EngineInfo(
    model="tiny",
    architecture="llama",
    source="",
    max_model_len=200,
    vocab_size=259,
    eos_ids=(EOS,),
    defaults={"temperature": 0.6},
    kv_tokens=4096,
    page_size=16,
    max_rows=4,
    max_queue=8,
    drafter="ngram+eagle3",
    draft_model="a/head",
    drafts=3,
    sources=("ngram", "eagle3"),
    precision="float32",
    threads=1,
    overlap=False,
)
STATS = Stats(
    running=1,
    rounds=20,
    generated=30,
    drafts=[
        DraftStats(source="ngram", key="greedy", rounds=4, offered=[4, 3], reached=[4, 2], accepted=[2, 1]),
        DraftStats(source="ngram", key="sampled", rounds=0, offered=[0, 0], reached=[0, 0], accepted=[0, 0]),
        DraftStats(source="eagle3", key="greedy", rounds=0, offered=[0, 0], reached=[0, 0], accepted=[0, 0]),
        DraftStats(source="eagle3", key="sampled", rounds=3, offered=[3, 3], reached=[3, 0], accepted=[0, 0]),
    ],
    plans=[5, 0, 0, 7],
    planning=PlanStats(
        rules={"gear": 11, "prefill": 1}, acceptance_errors=[0.0, -0.125], seconds_expected=0.5, seconds_found=0.25
    ),
)
Script = Callable[[Submit], Iterator[Tokens]]
HOLD = "hold"
"""A file in the folder for temporary files: see `held`."""


def speak(submit: Submit, text: str = TEXT, runs: tuple[int, ...] = (1, 4, 2, 3)) -> Iterator[Tokens]:
    """Answers with `text` and an end token, several tokens to a message, keeping every promise of the link."""
    params = submit.params
    stops = StopMatcher(params.stop, ByteTokenizer().token_bytes())
    if params.prompt_logprobs >= 0:
        yield Tokens(submit.id, prompt_logprobs=scores(submit.prompt[1:], params.prompt_logprobs))
    produced: list[int] = []
    pending = iter([*text.encode(), EOS] if EOS in params.stop_token_ids else itertools.cycle(text.encode()))
    for size in itertools.cycle(runs):
        run: list[int] = []
        end: dict[str, object] = {}
        while len(run) < size and not end:
            token = next(pending)
            run.append(token)
            produced.append(token)
            hit = stops.push(token)
            if token in params.stop_token_ids:
                end = {"finish": FinishReason.STOP, "stop_token": token}
            elif hit is not None and len(produced) >= params.min_tokens:
                end = {"finish": FinishReason.STOP, "stop_string": hit.stop}
            elif len(produced) >= params.max_tokens:
                end = {"finish": FinishReason.LENGTH}
        logprobs = scores(run, params.logprobs) if params.logprobs >= 0 else None
        accepted = min(len(run), size - 1)
        yield Tokens(
            submit.id, run, accepted, size - 1, int(size > 3), logprobs=logprobs, cached_tokens=2, queued=0.25, **end
        )
        if end:
            return


def scores(ids: list[int], most: int) -> Logprobs:
    """Made-up log-probabilities: every token is the likeliest at -0.25, 'z' second, 'q' third."""
    top = [[token, 122, 113][:most] for token in ids]
    return Logprobs([-0.25] * len(ids), [1] * len(ids), top, [[-0.25, -2.0, -3.0][:most] for _ in ids])


class FakeEngine:
    """Runs a script per request, one message per request and round, until told to end."""

    def __init__(self, script: Script = speak, round_seconds: float = 0.001, info: EngineInfo = INFO) -> None:
        self.script = script
        self._info = info
        self.submits: list[Submit] = []
        self.aborts: list[str] = []
        self.shifts: list[str] = []
        self.shifted = 0  # since the start
        self._news: list[Stats] = []
        self.closed = threading.Event()
        self._round_seconds = round_seconds
        self._running: dict[str, Iterator[Tokens]] = {}
        self._draining = False

    def reset(self) -> None:
        self.script = speak
        self.submits.clear()
        self.aborts.clear()
        self.shifts.clear()

    def serve(self, address: str) -> None:
        endpoint = EngineEndpoint(address)
        endpoint.send(Loading("weights", 1, 2))
        endpoint.send(Ready(self._info))
        endpoint.send(STATS)
        while not self.closed.is_set() and (self._running or not self._draining):
            for message in self.tell():
                endpoint.send(message)
            for message in endpoint.poll(0.002 if not self._running else 0):
                self._take(message)
            if batch := self._round():
                endpoint.send(Batch(batch))
            if self._running:
                time.sleep(self._round_seconds)
        endpoint.send(Batch([Tokens(name, finish=FinishReason.ABORT) for name in self._running]))
        endpoint.close()

    def tell(self) -> list[Stats]:
        """Statistics to send now, beside those of the start."""
        news, self._news = self._news, []
        return news

    def shift(self, speculation: str) -> None:
        self.shifts.append(speculation)
        self.shifted += 1
        self._news = [replace(STATS, speculation=speculation, shifts=self.shifted)]

    def _take(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self.submits.append(message)
                self._running[message.id] = self.script(message)
            case Abort():
                self.aborts.append(message.id)
                self._running.pop(message.id, None)
            case Shift():
                self.shift(message.speculation)
            case Drain():
                self._draining = True
            case Stop():
                self.closed.set()

    def _round(self) -> list[Tokens]:
        batch = []
        for name, script in list(self._running.items()):
            item = next(script, None)
            if item is None or item.finish is not None:
                self._running.pop(name)
            if item is not None and (item.ids or item.finish or item.prompt_logprobs):
                batch.append(item)
        return batch


class TalkingEngine(FakeEngine):
    """Tells its statistics again and again, as a real one does."""

    BETWEEN = 0.1
    _told = 0.0

    def tell(self) -> list[Stats]:
        if time.monotonic() - self._told < self.BETWEEN:
            return []
        self._told = time.monotonic()
        return [STATS]


def engine_process(model: str, options: EngineOptions, address: str) -> None:
    """An engine for `serve(..., target=engine_process)`; the model's name says whether it comes to serve."""
    if model == "broken":
        endpoint = EngineEndpoint(address)
        endpoint.send(Failed("no such model: broken"))
        endpoint.close()
        return
    if model == "crashing":
        raise SystemExit(3)
    while held():
        time.sleep(0.01)
    TalkingEngine(speak_unless_held, 0.01).serve(address)


def held() -> bool:
    """Whether engine processes of this test may not go on: none starts, and no answer has more than its beginning."""
    return Path(tempfile.gettempdir(), HOLD).exists()


def speak_unless_held(submit: Submit) -> Iterator[Tokens]:
    for item in speak(submit):
        yield item
        while held():
            yield Tokens(submit.id)


class FakeServer:
    """The real application under uvicorn in a thread, linked to a FakeEngine, or to what `serve_engine` runs."""

    def __init__(
        self,
        address: str,
        info: EngineInfo = INFO,
        serve_engine: Callable[[str], None] | None = None,
        engine: FakeEngine | None = None,
        template: str = TEMPLATE,
        reads_text: bool = False,
        watchers: Sequence[Ended] = (log_request,),
        **options: object,
    ) -> None:
        """serve_engine: serves at the address of the link until it is told to stop. engine: one with its own ways.
        reads_text: the model has its own tokenizer and template. watchers: told of requests that have ended."""
        self._address = address
        self._template = template
        self._watchers = watchers
        self._reads_text = reads_text
        self._options = ServerOptions(**options)
        self.engine = engine or FakeEngine(info=info)
        self._serve_engine = serve_engine or self.engine.serve
        self._socket = listen(ServerOptions(port=0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._ready.wait(60)

    async def _serve(self) -> None:
        self.gate = Gate(self._options, Metrics())
        self.client = EngineClient(self._address)
        engine_thread = threading.Thread(target=self._serve_engine, args=(self._address,), daemon=True)
        engine_thread.start()
        reader = asyncio.create_task(self.client.run())
        tokenizer: Tokenizer = ByteTokenizer()
        template = ChatTemplate({"default": self._template}, tokenizer.special_tokens, "test")
        self.gate.metrics.watch(lambda: self.client.stats)
        info, seconds = await self.client.ready(), self._options.request_seconds
        if self._reads_text:
            tokenizer, template = open_text(Path(info.source), ModelOptions())
        style = chat_style(template, tokenizer)
        self.gate.state = Service(self.client, info, tokenizer, template, style, "tiny", seconds)
        self.uvicorn = uvicorn.Server(http_config(create_app(self.gate, self._watchers)))
        self.loop = asyncio.get_running_loop()
        while self._serve_engine == self.engine.serve and self.client.stats == Stats():
            await asyncio.sleep(0.001)  # until what it tells first is there
        self._ready.set()
        await self.uvicorn.serve([self._socket])
        self.client.stop()
        self.engine.closed.set()
        engine_thread.join()
        reader.cancel()
        self.client.close()

    def close(self) -> None:
        self.gate.state = Closed("draining", "the server is shutting down")
        self.uvicorn.should_exit = True
        self._thread.join()
