"""The link between the HTTP process and the engine process: the messages, and a socket for each end.

Knows msgspec and zmq, and nothing of HTTP, text or the engine. Whatever crosses is a value of one of the structs here.

    HTTP process                                      engine process
    EngineClient  -- Submit, Abort, Drain, Stop -->   EngineEndpoint
                  <-- Loading, Ready | Failed, Batch, Stats --

Promises of the engine side: `Ready` or `Failed` comes once, after any `Loading`; `Failed` also comes, as the last word,
when an engine that was ready can run nothing any more; every `Submit` gets exactly one
`Tokens` with a `finish`, whatever happens (an aborted request too); an `Abort` for an unknown id is ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import zmq
import zmq.asyncio

from overdrive.errors import OverdriveError
from overdrive.types import FinishReason, SamplingParams, TopLogprobs

LINGER_MS = 1000  # how long a closing end may still deliver what it has sent


class Submit(msgspec.Struct, tag=True, frozen=True):
    """A request, checked and resolved. `arrival` is `time.time()` at the HTTP process: priority is by arrival."""

    id: str
    prompt: list[int]
    params: SamplingParams
    arrival: float


class Abort(msgspec.Struct, tag=True, frozen=True):
    """The client of `id` is gone: free its row and pages; it still gets its finish (`ABORT`)."""

    id: str


class Drain(msgspec.Struct, tag=True, frozen=True):
    """Finish what was accepted, then end the process with code 0. No `Submit` follows."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """End the process now; what runs finishes with `ABORT`."""


class Logprobs(msgspec.Struct, array_like=True, frozen=True):
    """Log-probabilities at n consecutive positions, `types.TopLogprobs` as lists: chosen and ranks [n], tops [n][m]."""

    chosen: list[float]
    ranks: list[int]
    top_ids: list[list[int]]
    top: list[list[float]]

    @classmethod
    def of(cls, arrays: TopLogprobs, count: int) -> Logprobs:
        """The first `count` positions of `arrays`."""
        parts = (arrays.chosen, arrays.ranks, arrays.top_ids, arrays.top)
        return cls(*(part[:count].tolist() for part in parts))


class Tokens(msgspec.Struct, array_like=True, frozen=True):
    """What one step committed for one request.

    ids: new output tokens in order; an end token is among them, tokens behind a stop are not.
    accepted: how many of `ids` came from drafts; they are the first ones. offered: drafts verified in this step.
    source: who wrote those drafts, an index into `EngineInfo.sources`; means nothing where none were offered.
    logprobs: covers `ids`, for requests that asked.
    prompt_logprobs: covers the next prompt positions, in order, from position 1 on (position 0 has no prediction).
    cached_tokens: prompt tokens found in the prefix cache; right in the first message with ids and in the last.
    finish: set in the last message of the request only.
    stop_string: index into `params.stop` of the string that ended the answer, -1 when none did.
    stop_token: the id (the last of `ids`) that ended the answer, -1 when none did.
    error: one line for the client when finish is ERROR. status: what kind of error, as an HTTP status.
    """

    id: str
    ids: list[int] = []
    accepted: int = 0
    offered: int = 0
    source: int = 0
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    cached_tokens: int = 0
    finish: FinishReason | None = None
    stop_string: int = -1
    stop_token: int = -1
    error: str = ""
    status: int = 500


class Batch(msgspec.Struct, tag=True, frozen=True):
    """All that one step committed: one message per step."""

    tokens: list[Tokens]


class Loading(msgspec.Struct, tag=True, frozen=True):
    """Progress of the start. `label` names the phase; done and total are in its own unit, a total of 0 is unknown."""

    label: str
    done: int = 0
    total: int = 0


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the HTTP process must know of the engine to check requests and to describe it.

    source: the model's folder or .gguf file on this machine, where tokenizer and template are read.
    eos_ids: tokens that end an answer. defaults: sampling defaults of generation_config.json, by parameter name.
    kv_tokens: positions the KV cache holds; a request longer than that can never run.
    drafts: most drafts per row and step. drafter: who writes them, "none" for nobody. draft_model: the head or small
    model it reads, where it came from; "" for drafters without one. sources: names of those who may write a row's
    drafts; `Tokens.source` is an index into it. simulated_acceptance: drafts are accepted by chance and the text is
    nobody's, as `DraftOptions.simulate_acceptance` says; "" where drafts are verified. speculation: who decides how
    much is drafted, as `DraftOptions.speculation` says. plans: the Ks beside 0 to decide among. costs: what is weighed
    for that, `CostTable.to_dict` and "origin", measured or stored; empty where nothing is.
    """

    model: str
    architecture: str
    source: str
    max_model_len: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    defaults: dict[str, float] = {}
    kv_tokens: int
    page_size: int
    max_rows: int
    max_queue: int
    drafter: str
    drafts: int
    draft_model: str = ""
    sources: tuple[str, ...] = ()
    speculation: str = "fixed"
    plans: tuple[int, ...] = ()
    costs: dict[str, Any] = {}
    precision: str
    threads: int
    overlap: bool
    device: str = "cpu"
    simulated_acceptance: str = ""


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The engine serves from now on."""

    info: EngineInfo


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The start failed; `message` is one line for a person. The engine process ends."""

    message: str


class DraftStats(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts by one source in rows of one key, since the start; lists are by position in the row, position 0 first.

    rounds: row steps with drafts; they yielded one token each beside the accepted drafts.
    offered: drafts proposed. reached: of those, judged, since all before them were right. accepted: of those, right.
    """

    source: str
    key: Literal["greedy", "sampled"]
    rounds: int
    offered: list[int]
    reached: list[int]
    accepted: list[int]


class PlanStats(msgspec.Struct, frozen=True, kw_only=True):
    """Plans and what was expected of them.

    drafts to runner_up_score: of the newest settled step, as in `types.Plan` and `types.Why`. rules: steps by the rule
    that decided. acceptance_errors: by position, the share of drafts accepted lately less the share that was expected;
    empty where nothing is. tokens_, seconds_expected and _found: sums over the steps without prompts of whose plan
    something was expected.
    """

    drafts: int = 0
    rule: str = ""
    expected_tokens: float = 0.0
    expected_seconds: float = 0.0
    runner_up: int = 0
    runner_up_score: float = 0.0
    rules: dict[str, int] = {}
    acceptance_errors: list[float] = []
    tokens_expected: float = 0.0
    tokens_found: float = 0.0
    seconds_expected: float = 0.0
    seconds_found: float = 0.0


class Stats(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The engine's state, about twice a second. `running` to `pages_total` are of now, the rest counts from the start.

    pages_used counts pages held by requests, pages_cached those held by the prefix cache alone.
    rounds: row steps that yielded tokens; `generated / rounds` is the tokens of a round.
    drafts: one entry per source and key; empty where nothing may be drafted. plans: steps by their K, K = 0 first.
    planning: why.
    launch_seconds: of the draft, forward, accept and absorb launches. host_seconds: schedule, build, commit, publish.
    prefix_tokens: prompt tokens found in the prefix cache, of prompt_tokens admitted. simulated: whether acceptance is.
    """

    running: int = 0
    waiting: int = 0
    pages_used: int = 0
    pages_cached: int = 0
    pages_total: int = 0
    steps: int = 0
    rounds: int = 0
    generated: int = 0
    prefilled: int = 0
    drafts: list[DraftStats] = []
    plans: list[int] = []
    planning: PlanStats = PlanStats()
    preemptions: int = 0
    launch_seconds: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    host_seconds: float = 0.0
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    simulated: bool = False


ToEngine = Submit | Abort | Drain | Stop
FromEngine = Loading | Ready | Failed | Batch | Stats


def _open(context: zmq.Context, bind: bool, address: str) -> Any:
    """A PAIR socket without a high-water mark: a slow reader costs memory, it never stops the engine's step."""
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    (socket.bind if bind else socket.connect)(address)
    return socket


class EngineEndpoint:
    """The engine's end of the link; used by one thread."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = _open(self._context, False, address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def poll(self, timeout: float = 0.0) -> list[ToEngine]:
        """All messages that have arrived, in order; waits up to `timeout` seconds for the first."""
        messages = []
        wait = int(timeout * 1000)
        while self._socket.poll(wait):
            messages.append(self._decoder.decode(self._socket.recv()))
            wait = 0
        return messages

    def send(self, message: FromEngine) -> None:
        """Queues one message; never blocks once the other end has been reached."""
        self._socket.send(self._encoder.encode(message))

    def close(self) -> None:
        """Delivers what was sent, waiting a second at most, and lets go of the socket."""
        self._socket.close()
        self._context.term()


class Reply:
    """What the engine answers to requests submitted together: an async iterator of their messages, as they come.

    It ends when every request has had its finish. `abort` must be called by whoever stops reading early; it is harmless
    afterwards.
    """

    def __init__(self, client: EngineClient, ids: list[str]) -> None:
        self._client = client
        self._unfinished = set(ids)
        self._arrived: asyncio.Queue[Tokens] = asyncio.Queue()

    def __aiter__(self) -> Reply:
        return self

    async def __anext__(self) -> Tokens:
        if not self._unfinished:
            raise StopAsyncIteration
        item = await self._arrived.get()
        if item.finish is not None:
            self._unfinished.discard(item.id)
        return item

    def push(self, item: Tokens) -> None:
        """A message has come off the link."""
        self._arrived.put_nowait(item)

    def abort(self) -> None:
        """Tells the engine that nobody waits for these requests any more."""
        for request_id in self._unfinished:
            self._client.abort(request_id)

    def give_up(self, reason: str, status: int) -> None:
        """Aborts what has not finished; whoever reads gets `reason` as its error, of that HTTP status."""
        self.abort()
        for request_id in self._unfinished:
            self.push(Tokens(request_id, finish=FinishReason.ERROR, error=reason, status=status))


class EngineClient:
    """The HTTP process's end of the link; lives in one event loop, created and closed inside it.

    `run` reads the link until it is cancelled. `stats` is the newest `Stats`; `failure` says why the engine is gone
    ("" while it is not); `draining` that it takes no more requests.
    """

    def __init__(self, address: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = _open(self._context, True, address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._replies: dict[str, Reply] = {}
        self._info: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self.stats = Stats()
        self.failure = ""
        self.draining = False

    @property
    def active(self) -> int:
        """Requests submitted and neither finished nor aborted."""
        return len(self._replies)

    async def run(self, on_loading: Callable[[Loading], None] = lambda _: None) -> None:
        """Takes messages off the link and hands them to whom they concern, until cancelled."""
        while True:
            message = self._decoder.decode(await self._socket.recv())
            match message:
                case Batch():
                    for item in message.tokens:
                        self._deliver(item)
                case Stats():
                    self.stats = message
                case Loading():
                    on_loading(message)
                case Ready():
                    if not self._info.done():
                        self._info.set_result(message.info)
                case Failed():
                    self.fail(message.message)

    async def ready(self) -> EngineInfo:
        """Waits for the engine to have started. Raises OverdriveError with the engine's one line when it cannot."""
        return await asyncio.shield(self._info)

    def submit(self, requests: list[Submit]) -> Reply:
        """Sends requests whose answers are read together. When the engine is gone they end at once with an error."""
        ids = [request.id for request in requests]
        reply = Reply(self, ids)
        self._replies.update(dict.fromkeys(ids, reply))
        for request in requests:
            self._send(request)
        if self.failure:
            self.fail(self.failure)
        return reply

    def abort(self, request_id: str) -> None:
        """Tells the engine that `request_id` is not wanted any more; nothing when it has already finished."""
        if self._replies.pop(request_id, None) is not None:
            self._send(Abort(request_id))

    def drain(self) -> None:
        """Asks the engine to finish what it has and to end."""
        self.draining = True
        self._send(Drain())

    def stop(self) -> None:
        """Asks the engine to end now."""
        self._send(Stop())

    def fail(self, reason: str) -> None:
        """The engine is gone: whoever waits for it, for the start or for tokens, gets the first `reason` given."""
        self.failure = self.failure or reason
        if not self._info.done():
            self._info.set_exception(OverdriveError(self.failure))
        for request_id in list(self._replies):
            self._deliver(Tokens(request_id, finish=FinishReason.ERROR, error=self.failure))

    def close(self) -> None:
        """Delivers what was sent, waiting a second at most, and lets go of the socket."""
        self._socket.close()
        self._context.term()

    def _deliver(self, item: Tokens) -> None:
        reply = self._replies.get(item.id)
        if reply is None:
            return  # aborted meanwhile
        reply.push(item)
        if item.finish is not None:
            del self._replies[item.id]

    def _send(self, message: ToEngine) -> None:
        if not self.failure:
            self._socket.send(self._encoder.encode(message))  # completes at once: there is no high-water mark
