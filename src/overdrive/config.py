"""Every option of the engine and the server, as nested frozen dataclasses; the command line is generated from them.

No option is read from the environment. Where one is left open (0, "" or "auto"), the device fills in its own number
(`Device.resolve`) and `engine.build` those that need the model, once, at start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
Precision = Literal["auto", "float32", "float64", "bfloat16", "float16", "fp8", "int8", "int4"]
Drafter = Literal["auto", "none", "ngram", "eagle3", "small", "ngram+eagle3", "ngram+small"]
Switch = Literal["auto", "on", "off"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
ToolFormatName = Literal["auto", "hermes", "llama3", "mistral", "mistral_args", "deepseek", "deepseek_v31", "kimi"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, and in what form its weights are kept."""

    load_format: LoadFormat = "auto"
    """How the weights are stored; "dummy" builds a config, or a well-known shape as llama-3.1-8b, with random ones."""
    precision: Precision = "auto"
    """Weights on the device. auto: bfloat16 on CUDA; on a CPU a GGUF's own blocks, else int8 per row."""
    max_model_len: int = 0
    """Most tokens of prompt and answer together; 0 takes the model's own limit."""
    tokenizer: str = ""
    """A folder or tokenizer.json other than the model's own."""
    chat_template: str = ""
    """A Jinja file that replaces the model's chat template."""
    tool_format: ToolFormatName = "auto"
    """How the model writes tool calls. auto: as its chat template does."""
    revision: str = ""
    """Branch, tag or commit of a hub id."""
    seed: int = 0
    """Seed of dummy weights."""
    deterministic: bool = False
    """On a GPU: products and attention in parts of one size, so that less of an answer depends on what else runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """The KV cache."""

    page_size: int = 16
    """Positions a page holds."""
    kv_tokens: int = 0
    """Positions the KV cache holds; 0 sizes it from free memory, the model and the running rows."""
    prefix_cache: bool = True
    """Share the KV of common beginnings between requests and turns."""
    device_share: float = 0.9
    """Share of a GPU's memory that weights, KV cache and everything else may take together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """What may run together."""

    max_rows: int = 0
    """Most requests in one step; 0 takes what suits the device: 64 on a CPU, 256 on a GPU."""
    max_step_tokens: int = 0
    """Most tokens, drafts included, that one step feeds to the model; 0 takes 1024 on a CPU, 2048 on a GPU."""
    chunk: int = 0
    """Most prompt tokens of one request in one step; 0 takes 256 on a CPU, 2048 on a GPU."""
    max_queue: int = 1024
    """Requests that may wait; beyond it the answer is 429."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """Speculation.

    draft says who writes drafts:
    auto: ngram with a draft network where `draft_model` names one or one ships with the model, else ngram alone.
    none: nobody; every step is plain decoding.
    ngram: continues the newest tokens as they went on where they stood before in the prompt or the answer.
    eagle3: an EAGLE-3 head, which reads the model's own features.
    small: a small model of the same vocabulary.
    ngram+eagle3, ngram+small: ngram where its match is long, else the other.
    """

    draft: Drafter = "auto"
    """Who writes drafts. auto: ngram, and a network where one is given or ships with the model."""
    draft_model: str = ""
    """The EAGLE-3 head or the small model: a folder or a hub id; "dummy" is a head with random weights."""
    speculation: str = "auto"
    """How much a step drafts. auto: decided anew for every step, from measured costs and acceptance. fixed: always
    `drafts`. off: nothing. fixed:K and max:K: as fixed and auto, with their own K in place of `drafts`."""
    drafts: int = 5
    """Most drafts per row and step, 15 at most."""
    ngram_min: int = 3
    """Shortest repeated suffix the n-gram drafter continues."""
    draft_window: int = 256
    """Newest positions per row that a draft network can catch up on after steps without drafts."""
    simulate_acceptance: str = ""
    """For measuring: shares of rows that accept one draft, two, ..: 0.7,0.49,0.343; the text is then nobody's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """The machine."""

    device: str = "auto"
    """cpu, cuda or cuda:N. auto: the first GPU where there is one that this installation can use."""
    threads: int = 0
    """Threads for arithmetic; 0 takes the physical cores this process may use."""
    overlap: Switch = "auto"
    """Run host work under the device's step; auto takes what measured faster for the device."""
    graphs: bool = True
    """Record a GPU's steps as CUDA graphs at start. Off starts sooner and runs slower."""
    tensor_parallel: int = 1
    """Processes that divide the model among them, one per GPU, from `device` on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What the engine tells of its steps beside its statistics."""

    trace: str = ""
    """Write every step, with its plan and the reason for it, to this file; ui.perfetto.dev and Chrome read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Everything the engine process needs beside the model's name."""

    model: ModelOptions = field(default_factory=ModelOptions)
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    draft: DraftOptions = field(default_factory=DraftOptions)
    device: DeviceOptions = field(default_factory=DeviceOptions)
    report: ReportOptions = field(default_factory=ReportOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The HTTP side."""

    host: str = "127.0.0.1"
    """Address to listen on; loopback unless told otherwise."""
    port: int = 8000
    """Port to listen on."""
    served_model_name: str = ""
    """Name clients use; the MODEL argument by default."""
    api_key: tuple[str, ...] = ()
    """Keys of which clients must send one as a bearer token; none given, none is asked for."""
    api_key_file: str = ""
    """File of further keys, one a line; # begins a comment. Other users can read a command line, not this file."""
    cors_origin: tuple[str, ...] = ()
    """Origins that browsers may call from."""
    allowed_host: tuple[str, ...] = ()
    """Names beside localhost that a server on loopback without a key answers to, as proxies pass them on; * is any."""
    lenient: bool = False
    """Ignore unknown request fields instead of refusing them."""
    max_body_bytes: int = 8 << 20
    """Largest request body."""
    request_seconds: float = 3600.0
    """Longest time from a request's arrival to the end of its answer; a request may ask for less."""
    drain_seconds: float = 30.0
    """How long running answers may take to end after SIGTERM."""
    log_format: LogFormat = "text"
    """Lines for people or JSON objects, on stderr; never with the content of requests."""
    log_level: LogLevel = "info"
    """info: a line for every request. warning: only what needs somebody's attention."""
    otlp_endpoint: str = ""
    """Where spans of requests are sent, as http://127.0.0.1:4318/v1/traces; needs the extra `otel`."""
    max_restarts: int = 5
    """How often in a row an engine process that dies is started again before the server ends."""
    engine_timeout: float = 600.0
    """Seconds without a sign of life after which an engine that serves is taken for stuck and killed; 0 is never."""
