"""`specbench run`: measure pairings at their K, with K = 0 beside them."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import options
from specbench.cli.measure import measure, read_settings


def run(
    pairings: options.PairingNames = None,
    workload: options.Workloads = None,
    num_speculative_tokens: Annotated[
        str | None,
        typer.Option(
            "-k",
            "--num-speculative-tokens",
            help="K: 4, 0..8, 1,2,4 or auto.",
            show_default="the pairing's, else 4",
        ),
    ] = None,
    temperature: options.Temperature = "0",
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    max_new_tokens: options.MaxNewTokens = None,
    prompts: options.Prompts = None,
    repeats: options.Repeats = None,
    budget: options.Budget = None,
    precision: options.Precision = None,
    engine: options.Engines = "builtin",
    concurrency: options.Concurrency = "1",
    request_rate: options.RequestRate = None,
    context: options.Context = None,
    forward: options.Forward = "auto",
    graph: options.Graph = "auto",
    compile_forward: options.Compile = False,
    acceptance: options.Acceptance = None,
    dummy_weights: options.DummyWeights = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    out: options.Out = Path("reports"),
    pairings_file: options.PairingsFile = None,
    resume: options.Resume = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure pairings on workloads and say per workload whether to speculate."""
    settings = read_settings(
        command="run",
        pairings=pairings,
        workloads=workload,
        ks=num_speculative_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        prompts=prompts,
        repeats=repeats,
        budget=budget,
        precision=precision,
        engine=engine,
        concurrency=concurrency,
        request_rate=request_rate,
        context=context,
        forward=forward,
        graph=graph,
        compile_forward=compile_forward,
        acceptance=acceptance,
        dummy_weights=dummy_weights,
        device=device,
        dtype=dtype,
        threads=threads,
        seed=seed,
        pairings_file=pairings_file,
    )
    measure(settings, out=out, resume=resume, dry_run=dry_run, as_json=as_json)
