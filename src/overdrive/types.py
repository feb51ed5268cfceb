"""The values that move between rooms: pure data, no torch, no I/O.

Vocabulary used everywhere: a *slot* is a request's place in the device state; a *page* holds the KV of `page_size`
consecutive positions; a *row* is one request's part of a *step*. A row feeds `known` tokens (ids already decided) and
then its *drafts* (guesses to verify). *Accepted* tokens are those the target agreed with on the device; *committed*
tokens are those the host has taken into a request's output.

    committed_len            upper_len = committed_len + in_flight
    |                        |
    v                        v
    [known to the host.......|..may exist on the device already.]
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


OVERSHOOT = 64
"""Positions past its end that a request may still feed, in steps launched before its end was known. They are read by
nobody; device tables are that much longer, and `MAX_DRAFTS` keeps two launched steps within it."""

MAX_DRAFTS = 15

LAUNCHES = ("draft", "forward", "accept", "absorb")
"""The launches of a step, in order; `Outcome.seconds` has the device time of each."""


class FinishReason(enum.StrEnum):
    """Why a request ended. `ABORT` and `ERROR` never pretend to be a stop."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finish:
    """How a request ended. stop_string: index into `SamplingParams.stop`, stop_token: the id; -1 for neither.

    message: one line for the client where it ended with an error. status: what kind of error, as an HTTP status. code:
    its name for programs; "" for the one that the status has.
    """

    reason: FinishReason
    stop_string: int = -1
    stop_token: int = -1
    message: str = ""
    status: int = 500
    code: str = ""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What an answer must be a sentence of, as text that crosses the link; compiled where the engine runs.

    kind: "json_object" (source is empty), "json_schema", "regex", "choice" (a JSON list of strings), "lark" (as
    llguidance writes it: inline `%json {..}`, special tokens `<|name|>`) or "gbnf".
    after: the grammar begins behind the first occurrence of these token ids in the output (the end of a reasoning
    part); what comes before is free. Empty: it begins at once.
    trigger: then, behind `after`, text is free and may end, until these ids (the beginning of a tool call); the grammar
    begins behind them. Empty: the grammar begins without one.
    """

    kind: str
    source: str = ""
    after: tuple[int, ...] = ()
    trigger: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request draws its tokens, fully resolved (no defaults left to look up, the seed drawn).

    Order of the rules at every position: penalties, `logit_bias`, `min_tokens`, grammar mask, temperature, top-k,
    top-p, min-p, then the argmax of logit / temperature + keyed noise. Ties go to the lower token id.

    max_tokens: most output tokens, at least 1.
    min_tokens: `stop_token_ids` cannot be drawn, and stop strings do not count, before this many output tokens exist.
    temperature: 0 is greedy (the argmax of the adjusted logits, no noise).
    top_k: 0 is off. top_p: 1 is off. min_p: 0 is off.
    presence_penalty, frequency_penalty: over output tokens, 0 is off.
    repetition_penalty: over prompt and output tokens, 1 is off.
    logit_bias: (token id, bias) pairs.
    seed: keys the noise together with position and token id.
    stop_token_ids: every id that ends the answer, the model's own end tokens included unless `ignore_eos`.
    stop: stop strings as UTF-8 bytes; the answer ends with the token that completes the first of them.
    logprobs: how many alternatives to report per output token; 0 reports the chosen token alone, -1 reports nothing.
    prompt_logprobs: the same for prompt tokens.
    max_drafts: cap on this request's drafts per step; 0 opts out of speculation, -1 is no cap.
    grammar: what the answer must be a sentence of; None is free. End tokens are legal exactly where it may end.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[bytes, ...] = ()
    logprobs: int = -1
    prompt_logprobs: int = -1
    max_drafts: int = -1
    grammar: GrammarSpec | None = None

    @property
    def penalised(self) -> bool:
        """Whether the logits depend on which tokens were seen before."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


@dataclass(frozen=True, slots=True)
class Why:
    """The reason for a plan, as data: what the controller expected of it and of the runner-up.

    expected_tokens: tokens this step is expected to yield over all decode rows.
    expected_seconds: the step's expected time; 0 when no cost table exists yet.
    runner_up: the second-best number of drafts, and `runner_up_score` its expected tokens per second.
    rule: one word that names the policy that decided.
    """

    rule: str
    expected_tokens: float = 0.0
    expected_seconds: float = 0.0
    runner_up: int = 0
    runner_up_score: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a step speculates: the only carrier of that decision. drafts: K, the most any row drafts; 0 is plain.

    most_rows: how many rows draft at most, those whose drafter lacks least of their text; -1 is all that can.
    """

    drafts: int
    why: Why
    most_rows: int = -1


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part of a step: positions from its slot's `computed` on, `known + drafts` of them.

    known: tokens fed whose ids are decided (a prefill chunk's, or the one newest token of a decode row).
    drafts: draft positions reserved behind them; the drafter may fill fewer.
    emits: whether the last known token is the newest one, so that the row yields at least one new token.
    upper_len: one past the highest position this row can write; bounds attention work and pages, never an address.
    logprobs, prompt_logprobs: as in SamplingParams; -1 wants none. Prompt ones cover this row's known positions but the
    newest.
    forced: what certainly follows the newest token by the row's grammar, where the host knows that token.
    """

    request_id: str
    slot: int
    known: int
    drafts: int
    emits: bool
    upper_len: int
    logprobs: int = -1
    prompt_logprobs: int = -1
    forced: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Admission:
    """Initial values of a slot; they travel in the step that first uses it, so slot reuse follows the stream's order.

    tokens: everything known of the request, prompt first (after a preemption: prompt and output).
    computed: leading positions whose KV already stands in the pages given to the slot (a prefix-cache hit).
    """

    request_id: str
    slot: int
    tokens: tuple[int, ...]
    prompt_len: int
    computed: int
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class PageEntry:
    """`pages` stand at page-table columns `first ..` of `slot` from this step on.

    shared: they hold the KV of the request's tokens already (found in the prefix cache); others are to be written.
    """

    slot: int
    first: int
    pages: tuple[int, ...]
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine, as a value: it can be logged, replayed, simulated and broadcast.

    masked: indices into `rows` whose sampling needs a grammar mask, built while the forward runs.
    """

    number: int
    rows: tuple[Row, ...]
    plan: Plan
    admissions: tuple[Admission, ...] = ()
    page_entries: tuple[PageEntry, ...] = ()
    masked: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Most tokens the step feeds to the target."""
        return sum(row.known + row.drafts for row in self.rows)


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """Log-probabilities of the raw target distribution at consecutive positions of one row.

    chosen: [n] float32, of the token that stands there. ranks: [n] int32, 1 for the most likely.
    top_ids, top: [n, m] the m most likely tokens and their log-probabilities, best first.
    """

    chosen: np.ndarray
    ranks: np.ndarray
    top_ids: np.ndarray
    top: np.ndarray


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step produced; written by the device into host memory, read once by commit.

    tokens: [rows, K+1] int64; row r's new tokens are `tokens[r, :counts[r]]`, 0 beyond.
    counts: [rows] int64; accepted drafts plus one for rows that emit, else 0.
    offered: [rows] int64; drafts that the drafter really offered (at most Row.drafts).
    sources: [rows] int64; who wrote them, as an index into the drafter's sources.
    logprobs: per row, for rows that asked: covers `tokens[r, :counts[r]]`.
    prompt_logprobs: per row, for rows that asked: the prompt tokens that this step's known positions predict.
    seconds: device time of the draft, forward, accept and absorb launches.
    between: seconds from the results of the step before to these in which none of those ran: the host's, where nothing
    hides them. The loop's to say; 0 where there was no step before, or nothing is known of the device's time.
    """

    tokens: np.ndarray
    counts: np.ndarray
    offered: np.ndarray
    sources: np.ndarray
    logprobs: dict[int, TopLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, TopLogprobs] = field(default_factory=dict)
    seconds: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    between: float = 0.0
