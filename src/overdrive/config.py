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
    """How the weights are stored. "dummy" draws random ones for a config.json or a well-known shape (llama-3.1-8b)."""
    precision: Precision = "auto"
    """Form of the weights on the device. auto: bfloat16 on CUDA; on a CPU a GGUF file's own blocks, else int8."""
    max_model_len: int = 0
    """Context length: most tokens of prompt and answer together; 0 takes the model's own limit."""
    tokenizer: str = ""
    """A folder or tokenizer.json to use instead of the model's own."""
    chat_template: str = ""
    """A Jinja file that replaces the model's chat template."""
    tool_format: ToolFormatName = "auto"
    """How the model writes tool calls. auto: as its chat template does."""
    revision: str = ""
    """Branch, tag or commit of a hub id."""
    seed: int = 0
    """Seed of dummy weights."""
    deterministic: bool = False
    """On a GPU: fixed tile sizes in products and attention, so that answers depend less on their batch; slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """The KV cache."""

    page_size: int = 16
    """Token positions per KV page, a power of two."""
    kv_tokens: int = 0
    """Token positions the KV cache holds; 0 sizes it by the free memory, the model and --max-rows."""
    prefix_cache: bool = True
    """Reuse the KV of prefixes that requests or turns have in common."""
    device_share: float = 0.9
    """Fraction of the GPU's memory that weights, KV cache and everything else may take together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """What may run together."""

    max_rows: int = 0
    """Most requests in one step (the batch size); 0 takes 64 on a CPU, 256 on a GPU."""
    max_step_tokens: int = 0
    """Most tokens, drafts included, that one step feeds to the model; 0 takes 1024 on a CPU, 2048 on a GPU."""
    chunk: int = 0
    """Most prompt tokens of one request in one step; 0 takes 256 on a CPU, 2048 on a GPU."""
    max_queue: int = 1024
    """Most requests that may wait; further ones are answered with 429."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """Speculation.

    draft says what writes drafts:
    auto: ngram with a draft network where `draft_model` names one or one ships with the model, else ngram alone.
    none: nothing; every step is plain decoding.
    ngram: continues the newest tokens as they went on where they stood before in the prompt or the answer.
    eagle3: an EAGLE-3 head, which reads the model's own features.
    small: a small model of the same vocabulary.
    ngram+eagle3, ngram+small: ngram where its match is long, else the other.
    """

    draft: Drafter = "auto"
    """What writes drafts. auto: ngram, with an EAGLE-3 head where one is given or ships for the model."""
    draft_model: str = ""
    """The EAGLE-3 head or the small model: a folder or a hub id. "dummy" is a head with random weights."""
    speculation: str = "auto"
    """Drafts per row: auto (what pays, decided anew each step), fixed (always --drafts), off, or fixed:K, max:K."""
    drafts: int = 5
    """Most tokens drafted per row and step (K), 0 to 15."""
    ngram_min: int = 3
    """Tokens that must match before the n-gram drafter continues them."""
    draft_window: int = 256
    """Newest positions per row that an EAGLE-3 head can catch up on after steps without drafts."""
    simulate_acceptance: str = ""
    """For load tests: accept drafts by chance. 0.7,0.49: share of rows for one, for two. The text is meaningless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """The machine."""

    device: str = "auto"
    """cpu, cuda or cuda:N. auto: the first GPU that this installation of torch can use, else the CPU."""
    threads: int = 0
    """Compute threads; 0 takes the physical cores that this process may use."""
    overlap: Switch = "auto"
    """Do host work while the device runs a step. auto: on for a GPU, off for a CPU."""
    graphs: bool = True
    """Record a GPU's steps as CUDA graphs at start. Off starts sooner and runs slower."""
    tensor_parallel: int = 1
    """GPUs that divide the model, a process for each, counted from --device on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What the engine reports of its steps beside its statistics."""

    trace: str = ""
    """Write every step, with its plan and the reason for it, to this file, for ui.perfetto.dev or chrome://tracing."""


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
    """Name that clients use for the model; the MODEL argument by default."""
    api_key: tuple[str, ...] = ()
    """API keys; a client must send one of them as a bearer token. Without any, no key is asked for."""
    api_key_file: str = ""
    """File of API keys, one per line; # begins a comment. Keys on the command line show in the process list."""
    cors_origin: tuple[str, ...] = ()
    """Origins that browsers may call from, such as https://example.org; * is any."""
    allowed_host: tuple[str, ...] = ()
    """Host names, beside localhost, that a keyless server on loopback answers to, for a proxy in front; * is any."""
    lenient: bool = False
    """Ignore unknown request fields instead of refusing them."""
    max_body_bytes: int = 8 << 20
    """Largest request body, in bytes."""
    request_seconds: float = 3600.0
    """Most seconds from a request's arrival to the end of its answer; a request may ask for less."""
    drain_seconds: float = 30.0
    """Seconds that running answers have to end after SIGTERM."""
    log_format: LogFormat = "text"
    """Log lines on stderr as text or as JSON objects; neither holds the content of requests."""
    log_level: LogLevel = "info"
    """info: a line for every request. warning: only what needs attention."""
    otlp_endpoint: str = ""
    """OTLP collector for traces of requests, such as http://127.0.0.1:4318/v1/traces; needs the extra `otel`."""
    speculation_control: bool = False
    """Let clients change by PUT /speculation, for all requests, what `--speculation` set; for measuring."""
    max_restarts: int = 5
    """Restarts of a dying engine process in a row before the server gives up and exits."""
    engine_timeout: float = 600.0
    """Seconds without a sign of life after which an engine is stuck and killed (1800 at least in a start); 0: never."""
