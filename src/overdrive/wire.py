"""What crosses between the HTTP process and the engine process: every message is a value of one of the structs here.

Knows msgspec alone; nothing of sockets (`link.py`), HTTP, text or the engine.

    HTTP process                                      engine process
    EngineClient  -- Submit, Abort, Shift, Drain, Stop -->     EngineEndpoint
                  <-- Loading, Ready | Failed, Batch, Stats --

Promises of the engine side: `Ready` or `Failed` comes once, after any `Loading`; `Failed` also comes, as the last word,
when an engine that was ready can run nothing any more; every `Submit` gets exactly one `Tokens` with a `finish`,
whatever happens (an aborted request too); an `Abort` for an unknown id is ignored.
"""

from __future__ import annotations

from math import inf
from typing import Any, Literal

import msgspec

from overdrive.types import FinishReason, SamplingParams, TopLogprobs


class Submit(msgspec.Struct, tag=True, frozen=True):
    """A request, checked and resolved. `arrival` is `time.time()` at the HTTP process: priority is by arrival.

    deadline: seconds from arrival. An answer that is not complete by then, its request waiting or running, finishes
    with ERROR, status 504; what was written of it has been sent.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    arrival: float
    deadline: float = inf


class Abort(msgspec.Struct, tag=True, frozen=True):
    """The client of `id` is gone: free its row and pages; it still gets its finish (`ABORT`)."""

    id: str


class Drain(msgspec.Struct, tag=True, frozen=True):
    """Finish what was accepted, then end the process with code 0. No `Submit` follows."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """End the process now; what runs finishes with `ABORT`."""


class Shift(msgspec.Struct, tag=True, frozen=True):
    """From the next step on, `speculation` says who decides how much is drafted, as in `policy.lever`."""

    speculation: str


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
    queued: seconds that the request waited for a row; right from the first message with ids on.
    finish: set in the last message of the request only.
    stop_string: index into `params.stop` of the string that ended the answer, -1 when none did.
    stop_token: the id (the last of `ids`) that ended the answer, -1 when none did.
    error: one line for the client when finish is ERROR. status: what kind of error, as an HTTP status. code: its name
    for programs; "" for the one that the status has.
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
    code: str = ""
    queued: float = 0.0


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
    model it reads, by its name or hub id; "" for drafters without one. sources: names of those who may write a row's
    drafts; `Tokens.source` is an index into it. simulated_acceptance: drafts are accepted by chance and the text is
    meaningless (`DraftOptions.simulate_acceptance`); "" where drafts are verified. speculation: who decides how
    much is drafted, as `DraftOptions.speculation` says. plans: the Ks beside 0 to decide among. costs: what is weighed
    for that, `CostTable.to_dict`, "origin" (measured, stored or assumed) and "doubt", a line that says why they may be
    wrong, or ""; empty where nothing is weighed.
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
    """The start failed, or an engine that was ready can run nothing any more; the engine process ends.

    message: why, in one line for a person.
    """

    message: str


class DraftStats(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts by one source in rows of one key, since the start; lists are by position in the row, position 0 first.

    rounds: row steps with drafts; they yielded one token each beside the accepted drafts.
    offered: drafts proposed. reached: of those, judged, since all before them were right. accepted: of those, right.
    """

    source: str
    key: Literal["greedy", "sampled", "greedy_constrained", "sampled_constrained"]
    rounds: int
    offered: list[int]
    reached: list[int]
    accepted: list[int]


class PlanStats(msgspec.Struct, frozen=True, kw_only=True):
    """Plans and what was expected of them.

    rows to runner_up_score: of the newest settled step, as in `types.Plan` and `types.Why`; rows that decoded, and the
    positions they attended to together. rules: steps by the rule that decided. survival, acceptance_errors, costs: what
    the controller expects by now, as in `controller.Beliefs`; empty where nothing is. tokens_, seconds_expected and
    _found: sums over the steps without prompts of whose plan something was expected.
    """

    rows: int = 0
    context: int = 0
    drafts: int = 0
    rule: str = ""
    expected_tokens: float = 0.0
    expected_seconds: float = 0.0
    runner_up: int = 0
    runner_up_score: float = 0.0
    rules: dict[str, int] = {}
    survival: list[float] = []
    acceptance_errors: list[float] = []
    costs: dict[str, list[list[float]]] = {}
    tokens_expected: float = 0.0
    tokens_found: float = 0.0
    seconds_expected: float = 0.0
    seconds_found: float = 0.0


class Stats(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The engine's state, about twice a second. `running` to `pages_total` are of now, the rest counts from the start.

    clock: seconds by the engine's own clock, of which only differences mean anything.
    pages_used counts pages held by requests, pages_cached those held by the prefix cache alone.
    rounds: row steps that yielded tokens; `generated / rounds` is the tokens of a round.
    drafts: one entry per source and key; empty where nothing may be drafted. plans: steps by their K, K = 0 first.
    planning: why.
    launch_seconds: of the draft, forward, accept and absorb launches.
    host_seconds: planning, building and settling steps.
    prefix_tokens: prompt tokens found in the prefix cache, of prompt_tokens admitted. simulated: whether acceptance is.
    slots_used: of `EngineInfo.max_rows`. matchers: followers of grammars that exist, in living requests or left behind.
    submitted: requests taken into the queue; finished: of those, by their finish; the others wait or run.
    faults: times that launched steps were lost, to an error of the device's or to too little memory. fault: why, the
    last time, in one line.
    speculation: who decides how much is drafted now, as in `policy.lever`. shifts: `Shift`s taken until now, with those
    that were refused.
    """

    clock: float = 0.0
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
    slots_used: int = 0
    matchers: int = 0
    submitted: int = 0
    finished: dict[FinishReason, int] = {}
    faults: int = 0
    fault: str = ""
    speculation: str = ""
    shifts: int = 0


ToEngine = Submit | Abort | Shift | Drain | Stop
FromEngine = Loading | Ready | Failed | Batch | Stats
