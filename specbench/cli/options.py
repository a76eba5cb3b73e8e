"""Options that several commands share, each declared once."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

DEFAULT_WORKLOADS = ("chat", "code", "creative")

PairingNames = Annotated[
    list[str] | None,
    typer.Argument(
        help="target/drafter, or a target for all its drafters (default: the file's).",
        show_default=False,
    ),
]
Workloads = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        "-w",
        help="Workload name or JSONL file; repeat it or separate with commas.  "
        f"[default: {', '.join(DEFAULT_WORKLOADS)}]",
        show_default=False,
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="Only drafters of these methods, such as eagle,ngram; or all.",
        show_default="every method of the pairings",
    ),
]
Ks = Annotated[
    str | None,
    typer.Option(
        "-k",
        "--num-speculative-tokens",
        help="K: 4, 0..8, 1,2,4, auto, or a mix such as 0..8,auto.",
        show_default="run: the pairing's, else 4; sweep-k: 0..8",
    ),
]
Temperature = Annotated[str, typer.Option(help="0 is greedy; a list such as 0,1 measures each.")]
TopK = Annotated[int, typer.Option(min=0, help="Keep the K most likely tokens; 0 is off.")]
TopP = Annotated[float, typer.Option(min=0.0, max=1.0, help="Nucleus sampling; 1 is off.")]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(min=2, max=131072, help="Maximum tokens per answer.", show_default="workload's"),
]
Prompts = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Prompts per workload.",
        show_default=("10; 3 per concurrent request; with --budget: all"),
    ),
]
Repeats = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=100,
        help="How often each prompt is run.",
        show_default=("1; sampling: 3; concurrency: 6"),
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(help="Time to spend, such as 3m; sets prompts and repeats.", show_default=False),
]
Precision = Annotated[
    str | None,
    typer.Option(
        help=("Stop once the best K's speed-up is known within +- this, such as 2%."),
        show_default=False,
    ),
]
Engines = Annotated[
    str, typer.Option("--engine", help="builtin, transformers, or both: builtin,transformers.")
]
Concurrency = Annotated[str, typer.Option(help="Concurrent requests: 1 or a list such as 1,4,16.")]
Samples = Annotated[
    int,
    typer.Option(
        min=1,
        max=256,
        help=("Best of N: decode N answers per prompt together, compared with one alone."),
    ),
]
RequestRate = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        help="Poisson arrivals per second.",
        show_default=("closed loop: the next request starts when one ends"),
    ),
]
Context = Annotated[
    str | None,
    typer.Option(help="Lengthen prompts with real text to 512,4k,32k tokens.", show_default=False),
]
Forecast = Annotated[
    bool,
    typer.Option(
        "--forecast",
        help=(
            "Trace drafts along the target's own text, time a few rounds at "
            "every K, then measure only the K that may be best."
        ),
    ),
]
Exhaustive = Annotated[
    bool,
    typer.Option(
        "--exhaustive",
        help="With --forecast: measure every K anyway, to see how accurate forecasts are here.",
    ),
]
Costs = Annotated[
    list[str] | None,
    typer.Option(
        help=(
            "Step times of your serving engine: a table, a `vllm bench serve` "
            "result or a server's address; may be repeated. Forecasts that engine's best K and "
            "measures none here."
        ),
        show_default=False,
    ),
]
AcceptanceRule = Annotated[
    str | None,
    typer.Option(
        help=(
            "How that engine drafts above temperature 0: exact (sampled from "
            "the draft's distribution) or greedy_draft."
        ),
        show_default="greedy_draft for vLLM, else exact",
    ),
]
Forward = Annotated[str, typer.Option(help="auto, stock or fused (dense Llama family).")]
Graph = Annotated[str, typer.Option(help="CUDA graphs: auto, off, step or round.")]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile", help=("Compile whole rounds with torch.compile; compile time is shown.")
    ),
]
Acceptance = Annotated[
    str | None,
    typer.Option(
        help=(
            "Simulate acceptance: 0.7, 0.8,0.6 or histogram:40,20,40. Speeds "
            "are real, texts are not."
        ),
        show_default=False,
    ),
]
DummyWeights = Annotated[
    bool, typer.Option("--dummy-weights", help="Use random weights, from the config alone.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32, bfloat16 or float16.", show_default="float32 on a CPU, else the model's"
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="CPU threads.", show_default="1 for the demo pair, else all cores"),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed for prompts, order and sampling.")]
Out = Annotated[Path, typer.Option(help="Folder where runs are stored.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="[RUN]",
        help="Resume an interrupted run with its original settings (default: latest).",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan without measuring.")]
PairingsFile = Annotated[
    Path | None,
    typer.Option(
        "--pairings",
        help="Pairings file to use.",
        show_default=("./pairings.yaml, else the shipped one"),
    ),
]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `run` and `sweep-k` let a user say about what is measured, and how."""

    pairings: PairingNames = None
    workload: Workloads = None
    method: Methods = None
    num_speculative_tokens: Ks = None
    temperature: Temperature = "0"
    top_k: TopK = 0
    top_p: TopP = 1.0
    max_new_tokens: MaxNewTokens = None
    prompts: Prompts = None
    repeats: Repeats = None
    budget: Budget = None
    precision: Precision = None
    engine: Engines = "builtin"
    concurrency: Concurrency = "1"
    request_rate: RequestRate = None
    samples: Samples = 1
    context: Context = None
    forecast: Forecast = False
    exhaustive: Exhaustive = False
    costs: Costs = None
    acceptance_rule: AcceptanceRule = None
    forward: Forward = "auto"
    graph: Graph = "auto"
    compile_forward: Compile = False
    acceptance: Acceptance = None
    dummy_weights: DummyWeights = False
    device: Device = "auto"
    dtype: Dtype = None
    threads: Threads = None
    seed: Seed = 0
    pairings_file: PairingsFile = None


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its dataclass arguments as options of its own.

    Typer reads options from a function's signature alone; so many are not written out twice.
    """
    hints = get_type_hints(command, include_extras=True)
    taken: dict[str, Any] = {name: cls for name, cls in hints.items() if is_dataclass(cls)}

    def parameters() -> Iterator[inspect.Parameter]:
        for parameter in inspect.signature(command).parameters.values():
            cls = taken.get(parameter.name)
            if cls is None:
                yield parameter.replace(annotation=hints[parameter.name])
                continue
            types = get_type_hints(cls, include_extras=True)
            for one in fields(cls):
                kind = inspect.Parameter.KEYWORD_ONLY
                yield inspect.Parameter(
                    one.name, kind, default=one.default, annotation=types[one.name]
                )

    @wraps(command)
    def spread_out(**values: Any) -> None:
        for name, cls in taken.items():
            values[name] = cls(**{one.name: values.pop(one.name) for one in fields(cls)})
        command(**values)

    signature = inspect.Signature(
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters()]
    )
    spread_out.__signature__ = signature  # type: ignore[attr-defined]
    spread_out.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return spread_out
