"""Settings of a run: an option is a field, with its name, help, bounds and default."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from specbench.doc import Doc
from specbench.errors import UsageError
from specbench.settings.option import Option
from specbench.settings.words import (
    BUILTIN,
    DTYPES,
    ENGINES,
    MAX_CONCURRENCY,
    MAX_CONTEXT,
    MAX_K,
    OMITTABLE,
    SERVED,
    one_of,
    parse_acceptance,
    parse_concurrency,
    parse_contexts,
    parse_device,
    parse_engine_args,
    parse_ks,
    parse_limits,
    parse_names,
    parse_seconds,
    parse_share,
    parse_temperatures,
    parse_variants,
)

DEFAULT_K = 4  # of a pairing without one
DEFAULT_PROMPTS = 10
ENOUGH_PROMPTS = 6  # after a forecast: an interval needs five
DEFAULT_WORKLOADS = ("chat", "code", "creative")
AcceptanceRule = Literal["exact", "greedy_draft"]
Acceptance = tuple[float, ...] | Mapping[int, tuple[float, ...]]  # by position, or also by K


def _workloads(items: list[str]) -> tuple[str, ...]:
    names = [name.strip() for item in items for name in item.split(",")]
    return tuple(dict.fromkeys(names)) or DEFAULT_WORKLOADS


def _draft(text: str) -> "DraftSettings":
    fixed, adaptive = parse_ks(text)
    return DraftSettings(num_speculative_tokens=fixed, adaptive=adaptive)


def _program(text: str) -> Path:
    """A program by its whole path, so that one in the working folder is not looked for on PATH."""
    path = Path(text).expanduser()
    return path.absolute() if path.is_file() else path


# Options that other commands also have.
PAIRINGS = Option(
    is_argument=True,
    is_repeated=True,
    read=tuple,
    help="target/drafter, or a target for all its drafters.",
    placeholder="PAIRING",
    shown="the pairings that the file names",
)
PairingNames = Annotated[tuple[str, ...], PAIRINGS]
PairingsFile = Annotated[
    Path | None,
    Option(
        is_rare=True,
        names=("--config", "-c"),
        help="Pairings file.",
        shown="./pairings.yaml, or the shipped one",
    ),
]
Workloads = Annotated[
    tuple[str, ...],
    Option(
        names=("--workload", "-w"),
        is_repeated=True,
        read=_workloads,
        help="Workloads: names, JSONL or JSON files. Separate them with commas, or repeat the "
        "option.",
        shown=", ".join(DEFAULT_WORKLOADS),
    ),
]
PromptField = Annotated[
    str | None,
    Option(
        is_rare=True,
        help="Field of a file's rows that contains the prompt, such as question or body.text.",
        shown="the field that published prompt sets use",
        placeholder="FIELD",
    ),
]
IgnoreRequestSettings = Annotated[
    bool,
    Option(
        is_rare=True,
        help="Ignore settings of workloads and rows, such as response_format and thinking.",
    ),
]
K = Option(
    names=("-k", "--num-speculative-tokens"),
    read=_draft,
    min=0,
    max=MAX_K,
    help="K: a number, a range or a list (4, 0..8 or 1,2,4), auto, or 0..8,auto.",
    shown=f"the pairing's, or {DEFAULT_K}",
    placeholder="K",
)
Temperatures = Annotated[
    tuple[float, ...],
    Option(
        names=("--temperature",),
        read=parse_temperatures,
        min=0,
        help="0 is greedy; a list such as 0,1 measures each.",
        placeholder="N",
    ),
]
NEW_TOKENS = Option(min=2, max=131072, help="Maximum tokens per answer.", shown="the workload's")
MaxNewTokens = Annotated[int | None, NEW_TOKENS]
PROMPTS = Option(
    names=("--num-prompts",),
    min=1,
    help="Prompts per workload.",
    shown=f"{DEFAULT_PROMPTS} ({ENOUGH_PROMPTS} after --forecast), or 3 per concurrent request; "
    "all with --time-budget or --margin-of-error, half of them if servers race",
)
Repeats = Annotated[
    int | None,
    Option(
        names=("--repeats",),
        min=1,
        max=100,
        help="How often each prompt is run.",
        shown="1; 3 above temperature 0 and with --time-budget or --margin-of-error; 6 with "
        "concurrent requests",
    ),
]
BudgetS = Annotated[
    float | None,
    Option(
        names=("--time-budget",),
        unit="s",
        read=parse_seconds,
        help="Measure for about this long, such as 3m. It sets the numbers of prompts and repeats. "
        "Loading and warm-up are not cut short.",
        shown=False,
        placeholder="DURATION",
    ),
]
Engines = Annotated[
    tuple[str, ...],
    Option(
        names=("--engine",),
        read=lambda text: parse_names("--engine", text, ENGINES),
        help=f"builtin, transformers, or a server: {', '.join(SERVED)}. Several: builtin,vllm.",
    ),
]
EngineCommand = Annotated[
    str | None,
    Option(
        names=("--engine-command",),
        help="Command that starts the engine, with {args} and {port}, such as "
        "'docker run --network host IMAGE {args}'.",
        shown="the engine's",
        placeholder="COMMAND",
    ),
]
EnginePython = Annotated[
    Path | None,
    Option(
        read=_program,
        placeholder="PATH",
        help="Python of the engine's environment, or the server's program.",
        shown="the engine on the PATH",
    ),
]
EngineArgs = Annotated[
    tuple[str, ...],
    Option(
        is_repeated=True,
        read=parse_engine_args,
        help="Arguments for the engine, such as '--tensor-parallel-size 2'. Repeatable.",
        shown=False,
        placeholder="ARGS",
    ),
]
EngineVariants = Annotated[  # by name: arguments added to `engine_args`; None: only those
    Mapping[str, tuple[str, ...]] | None,
    Option(
        names=("--variant",),
        is_repeated=True,
        is_rare=True,
        read=parse_variants,
        help="A named set of further engine arguments, such as eager='--enforce-eager'. "
        "Repeatable. Every K is measured with each; a single set is compared with none.",
        shown=False,
        placeholder="NAME=ARGS",
    ),
]
Seed = Annotated[int, Option(is_rare=True, min=0, help="Seed for prompts, order and sampling.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadSettings:
    """Pairings and prompts."""

    pairings: PairingNames
    workloads: Workloads  # names or files
    prompt_field: PromptField = None
    ignore_request_settings: IgnoreRequestSettings = False
    methods: Annotated[
        str | None,
        Option(
            names=("--method",),
            help="Only these methods, such as eagle,ngram, or all.",
            shown="every method of the pairings",
            is_stored=False,  # `pairings` of a planned run are filtered by it
        ),
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftSettings:
    """Draft length."""

    num_speculative_tokens: Annotated[
        tuple[int, ...] | None, Doc("`-k`: the K to measure; absent: those of each pairing")
    ] = None
    is_default_range: Annotated[
        bool,
        Doc(
            "whether the K are the default range of `sweep-k`, which leaves out K that a drafter "
            "cannot draft"
        ),
    ] = False
    adaptive: Annotated[bool, Doc("`-k auto`: also a cell whose K is picked round by round")] = (
        False
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingSettings:
    """Sampling and answer length."""

    temperatures: Temperatures = (0.0,)
    top_k: Annotated[
        int, Option(is_rare=True, min=0, help="Sample from the N most likely tokens; 0 is off.")
    ] = 0
    top_p: Annotated[
        float, Option(is_rare=True, min=0.0, max=1.0, help="Nucleus sampling; 1 is off.")
    ] = 1.0
    max_new_tokens: MaxNewTokens = None  # None: the workload's own

    @property
    def cuts(self) -> str:
        """Top-k and top-p in words, such as `top-k off, top-p 1`."""
        return f"top-k {self.top_k or 'off'}, top-p {self.top_p:g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class EffortSettings:
    """How much to measure, and when to stop."""

    num_prompts: Annotated[int | None, PROMPTS] = None
    num_requests: Annotated[
        int | None,
        Option(
            min=1,
            max=100_000,
            help="Requests per pass, or per session of a server; they cycle over the prompts.",
            shown="each prompt once",
        ),
    ] = None
    num_repeats: Repeats = None
    budget_s: BudgetS = None
    precision: Annotated[
        float | None,
        Option(
            names=("--margin-of-error",),
            unit="fraction",
            read=parse_share,
            help="Measure as many prompts as the best K's speedup within plus or minus this needs, "
            "planned from the first 20, such as 10%.",
            shown=False,
            placeholder="PERCENT",
        ),
    ] = None

    @property
    def is_open_ended(self) -> bool:
        """Whether the results decide how much is measured."""
        return self.budget_s is not None or self.precision is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadSettings:
    """Engine and load."""

    engines: Engines = (BUILTIN,)
    concurrency: Annotated[
        tuple[int, ...],
        Option(
            names=("--concurrency", "--max-concurrency"),
            read=parse_concurrency,
            min=1,
            max=MAX_CONCURRENCY,
            help="Concurrent requests: 1 or a list such as 1,4,16.",
            placeholder="N",
        ),
    ] = (1,)
    request_rate: Annotated[  # None: closed loop
        float | None,
        Option(
            min=0.001,
            unit="requests/s",
            help="Poisson arrivals per second.",
            shown="none; a request starts when another ends",
        ),
    ] = None
    slo: Annotated[  # by metric; None: the fastest is best
        Mapping[str, float] | None,
        Option(
            unit="s",
            read=parse_limits,
            help="Choose K by goodput: requests per second within these limits, such as "
            "ttft=200ms,tpot=20ms; also request_latency.",
            shown="the fastest K",
            placeholder="LIMITS",
        ),
    ] = None
    num_samples: Annotated[  # above 1: also a cell with N outputs per prompt
        int,
        Option(
            is_rare=True,
            names=("--best-of",),
            min=1,
            max=256,
            help="Decode N answers per prompt together, and compare that with a single answer.",
        ),
    ] = 1
    contexts: Annotated[  # tokens that prompts are lengthened to; (): as they are
        tuple[int, ...],
        Option(
            is_rare=True,
            names=("--prompt-tokens",),
            read=parse_contexts,
            min=1,
            max=MAX_CONTEXT,
            help="Lengthen prompts with real text to this many tokens, such as 512,4k,32k.",
            shown=False,
            placeholder="N",
        ),
    ] = ()

    @property
    def served(self) -> tuple[str, ...]:
        """The engines that run as servers."""
        return tuple(name for name in self.engines if name in SERVED)

    @property
    def has_streams(self) -> bool:
        """Whether requests overlap in one of the settings."""
        return self.concurrency != (1,) or self.request_rate is not None

    @property
    def in_process(self) -> tuple[str, ...]:
        """The engines in this process."""
        return tuple(name for name in self.engines if name not in SERVED)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastSettings:
    """Forecast before measuring."""

    forecast: Annotated[  # then only the best few K are measured
        bool,
        Option(
            help="Trace draft tokens along the target's own text, time a few rounds at every K, "
            "then measure only the K that may be best.",
        ),
    ] = False
    exhaustive: Annotated[
        bool,
        Option(
            is_rare=True,
            names=("--validate-forecast",),
            help="With --forecast: measure every K, to see how accurate the forecasts are.",
        ),
    ] = False
    costs: Annotated[  # files or addresses
        tuple[str, ...],
        Option(
            names=("--step-times",),
            is_repeated=True,
            read=tuple,
            help="Forecast your serving engine's best K from its step times: a table, a `vllm "
            "bench serve` result, a run or a server's URL. Repeatable.",
            shown=False,
            placeholder="FILE",
        ),
    ] = ()
    acceptance_rule: Annotated[  # of the engine of `costs`; None: as drafts are made here
        AcceptanceRule | None,
        Option(
            is_rare=True,
            help="How that engine drafts above temperature 0: exact (sampled from the drafter's "
            "distribution) or greedy_draft.",
            shown="greedy_draft for vLLM, exact for others",
        ),
    ] = None
    most_drafters: Annotated[
        int | None,
        Doc(
            "`pair --measure-top`: how many forecast drafters were measured in each setting; "
            "absent: all"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSettings:
    """Device and precision."""

    device: Annotated[str, Option(read=parse_device, help="auto, cpu, cuda or cuda:1.")] = "auto"
    dtype: Annotated[
        str | None,
        Option(
            read=lambda text: one_of("--dtype", text, *DTYPES),
            help="float32, bfloat16 or float16.",
            shown="float32 on a CPU, the model's on a GPU",
        ),
    ] = None
    threads: Annotated[
        int | None,
        Option(is_rare=True, min=1, help="CPU threads.", shown="the fastest in a short trial"),
    ] = None


ModelImplementation = Annotated[
    Literal["auto", "stock", "fused"],
    Option(
        is_rare=True,
        names=("--model-impl",),
        help="Forward pass: auto, stock (transformers) or fused (dense Llama family).",
    ),
]
CudaGraph = Annotated[
    Literal["auto", "off", "step", "round"],
    Option(is_rare=True, names=("--cuda-graph",), help="CUDA graphs: auto, off, step or round."),
]
AttentionBackend = Annotated[
    Literal["auto", "triton", "flash_attn", "flash", "efficient", "cudnn", "torch", "plain"],
    Option(
        is_rare=True,
        names=("--attention-backend",),
        help="Attention: auto (the fastest on this machine), triton, flash_attn, flash, efficient, "
        "cudnn, torch or plain.",
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderSettings:
    """The built-in decoder."""

    forward: ModelImplementation = "auto"
    graph: CudaGraph = "auto"
    kernels: AttentionBackend = "auto"
    # Simulated rates: by position, or by K from a file; the name of the file until it is read.
    acceptance: Annotated[
        Acceptance | str | None,
        Option(
            is_rare=True,
            names=("--simulate-acceptance",),
            read=parse_acceptance,
            help="Acceptance to simulate: 0.7, 0.8,0.6 (by position), histogram:40,20,40 or a file "
            "that import reads. Speeds are real, texts are not.",
            shown=False,
            placeholder="RATES",
        ),
    ] = None
    acceptance_file: Annotated[
        str | None, Doc("the file that `acceptance` was read from, as it was typed")
    ] = None
    acceptance_sha256: Annotated[str | None, Doc("hash of that file")] = None
    dummy_weights: Annotated[
        bool, Option(is_rare=True, help="Use random weights; only the config is needed.")
    ] = False

    @property
    def simulated(self) -> Acceptance | None:
        """The acceptance to simulate. UsageError if it is still the name of a file."""
        if isinstance(self.acceptance, str):
            raise UsageError(f"simulated acceptance {self.acceptance!r}: expected rates")
        return self.acceptance

    @property
    def is_synthetic(self) -> bool:
        """Whether the text is meaningless: its speed is real, its acceptance is not."""
        return self.acceptance is not None or self.dummy_weights


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Starting a serving engine, or reaching one that runs."""

    base_urls: Annotated[  # (): the engine is started
        tuple[str, ...],
        Option(
            names=("--base-url",),
            is_repeated=True,
            read=tuple,
            help="Measure a running server, such as http://localhost:8000, with #k=4 if its K is "
            "4. Repeatable for other K and replicas.",
            shown=False,
            placeholder="URL",
        ),
    ] = ()
    served_model_name: Annotated[
        str | None,
        Option(
            help="Name of the model on a running server that has several.",
            shown="the listed name that fits the target",
            placeholder="NAME",
        ),
    ] = None
    omit_fields: Annotated[
        tuple[str, ...],
        Option(
            is_rare=True,
            read=lambda text: parse_names("--omit-fields", text, OMITTABLE),
            help="Fields of requests that a server rejects, such as seed,max_tokens.",
            shown=False,
            placeholder="NAMES",
        ),
    ] = ()
    launch: EngineCommand = None
    engine_python: EnginePython = None
    engine_args: EngineArgs = ()
    variants: EngineVariants = None
    engine_version: Annotated[
        str | None,
        Option(
            is_rare=True,
            help="Version of the engine, whose flags differ between releases.",
            shown="what --engine-python reports, or the newest known",
            placeholder="VERSION",
        ),
    ] = None
    cycles: Annotated[
        int | None,
        Option(
            names=("--restart-cycles",),
            min=2,
            max=100,
            help="Cycles of server restarts; each cycle starts every K twice.",
            shown="4 to 12, by the measured noise",
        ),
    ] = None
    num_warmups: Annotated[
        int | None,
        Option(
            names=("--warmup",),
            min=0,
            max=100_000,
            help="Uncounted requests before each session and concurrency.",
            shown="by concurrency",
        ),
    ] = None
    prefix_cache: Annotated[
        bool,
        Option(
            names=("--enable-prefix-caching",),
            help="Let the server keep prefixes of earlier prompts.",
        ),
    ] = False
    start_timeout_s: Annotated[
        float,
        Option(
            is_rare=True,
            names=("--startup-timeout",),
            unit="s",
            min=1,
            help="Seconds until a started server must be healthy.",
            placeholder="SECONDS",
        ),
    ] = 900.0
