import pytest

from specbench.errors import UsageError
from specbench.settings.words import (
    parse_acceptance,
    parse_concurrency,
    parse_contexts,
    parse_ks,
    parse_seconds,
    parse_share,
    parse_temperatures,
)
from tests.cli.calls import specbench
from tests.importers.test_acceptance_files import PROFILE


@pytest.mark.sampled(one_in=2, every=["arguments", "command"])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("-k x", "-k 'x': expected a number, a range, a list or auto: 4, 0..8, 1,2,4,auto"),
        ("-k 8..1", "-k '8..1': a range ascends: 1..8"),
        ("-k 65", "-k '65': K is at most 64"),
        ("-k 99999", "expected a number, a range, a list or auto"),
        ("-k ''", "-k '': expected a number"),
        ("-k -1", "-k '-1': expected a number"),
        ("-k 1.5", "-k '1.5': expected a number"),
        ("--temperature hot", "--temperature 'hot': expected numbers such as 0 or 0,1"),
        ("--temperature -1", "expected 0 (greedy) to 100"),
        ("--temperature nan", "expected 0 (greedy) to 100"),
        ("--temperature inf", "expected 0 (greedy) to 100"),
        ("--temperature ''", "--temperature '': expected numbers"),
        ("--time-budget soon", "--time-budget 'soon': expected a time such as 90s, 3m or 1h"),
        ("--time-budget 0", "--time-budget '0': expected a time"),
        ("--time-budget 2", "--time-budget 2m"),
        ("--time-budget ''", "--time-budget '': expected a time"),
        ("--time-budget -3m", "--time-budget '-3m': expected a time"),
        ("--margin-of-error 200%", "--margin-of-error '200%': expected a share such as 2% or 0.02"),
        ("--margin-of-error 0", "expected a share such as 2% or 0.02"),
        ("--margin-of-error ''", "--margin-of-error '': expected a share"),
        ("--device gpu", "--device 'gpu': choose from auto, cpu, cuda, cuda:N"),
        ("--device cuda:99", "--device cuda:99: this machine has"),
        ("--dtype fp16", "--dtype 'fp16': choose from float32, bfloat16, float16, float64"),
        ("--top-p 0", "--top-p 0 leaves no token; allowed: above 0, at most 1"),
        ("--request-rate inf", "--request-rate inf: expected requests per second"),
        ("-w ./p\udcff.jsonl", "not UTF-8 text, but everything stored must be"),
        ("--resume " + "x" * 300, "File name too long"),
        ("--engine vlm", "--engine 'vlm', did you mean 'vllm'? choose from builtin, trans"),
        ("--engine vllm --engine-command no-such-vllm", "the program no-such-vllm was not found"),
        ("--slo tpot=20", "--slo 'tpot=20'"),
        ("--slo tpot=20ms --time-budget 1m", "--time-budget of --engine builtin"),
        ("--slo tpot=20ms --forecast", "--forecast"),
        ("--num-requests 20", "--num-requests"),
        ("--warmup 20", "need a serving engine"),
        ("--engine openai", "--engine openai measures a running server: add its --base-url"),
        ("--base-url http://localhost:1", "need a serving engine; add --engine with one of"),
        (
            "--engine vllm,sglang --base-url http://localhost:1",
            "--base-url needs a single engine, but --engine names vllm, sglang",
        ),
        ("--engine vllm --base-url localhost:1", "expected an address such as"),
        ("--engine openai --base-url http://localhost:1", "cannot be reached"),
        (
            "--engine openai --base-url 'http://localhost:1/v1?api_key=s'",
            "'http://localhost:1': leave out what follows the ?",
        ),
        (
            '--engine vllm --engine-command "serve {args} \'x"',
            "--engine-command serve {args} 'x: No clos",
        ),
        ("--engine vllm --engine-args '--api-key s'", "--api-key in the engine"),
        ("--engine vllm --engine-command 'env A_KEY=s3 vllm {args}'", "A_KEY in the engine"),
        ("--engine vllm --engine-args --hf-token=s", "--hf-token in the engine"),
        ("--engine vllm --engine-args '--port 99'", "the address of a started server"),
        ("--engine vllm --engine-python /nope/python", "--engine-python: the program"),
        ('--engine vllm --engine-args "\'"', '--engine-args "\'": No closing quotation'),
        ("--engine vllm --concurrency 1,8 --request-rate 2", "a single --concurrency"),
        ("--engine vllm --threads 1", "--threads is for engines in this process"),
        ("--engine vllm --prompt-tokens 512", "--prompt-tokens needs the built-in decoder"),
        ("--method draftmodel", "'draftmodel', did you mean 'draft_model'? choose from"),
        ("--method all,ngram", "all excludes other names"),
        ("--concurrency 0", "--concurrency '0': expected 1 to 1024 concurrent requests"),
        ("--concurrency many", "--concurrency 'many': expected numbers such as 1 or 1,4,16"),
        ("--model-impl fast", "--model-impl 'fast': choose from auto, stock, fused"),
        ("--cuda-graph on", "--cuda-graph 'on': choose from auto, off, step, round"),
        ("--simulate-acceptance 0.5,0.7", "shares must be from 0 to 1 and must not rise"),
        (
            "--simulate-acceptance 0.5 --engine transformers",
            "transformers, which cannot be made to simulate acceptance; use --engine builtin",
        ),
        (
            "--simulate-acceptance 0.5 --engine vllm --base-url http://h:1",
            "--base-url measures what runs, which cannot be made to simulate",
        ),
        ("--simulate-acceptance absent.json", "absent.json: cannot be read"),
        (f"--simulate-acceptance {PROFILE}", "use K that the file has: -k 0,3"),
        (
            "--engine llama_cpp --engine-args '--spec-synth-rates 0.5'",
            "--spec-synth-rates in the engine's arguments: simulated acceptance",
        ),
        (
            "--engine llama_cpp --engine-args --draft-max=9",
            "--engine-args: specbench sets --draft-max for every K",
        ),
        (
            "--engine sglang --engine-args '--speculative_num_steps 9'",
            "--engine-args: specbench sets --speculative-num-steps for every K",
        ),
        (
            "--simulate-acceptance most",
            "expected 0.7, a list such as 0.8,0.6,0.5, histogram:40,20,40 or a",
        ),
        ("tinny", "no pairing 'tinny' in pairings.yaml, did you mean 'tiny'?"),
        ("tiny/drafft", "did you mean 'tiny/draft'?; `specbench list pairings` shows them all"),
        ("-w chatt", "no workload 'chatt', did you mean 'chat'?; there are: "),
        ("-w ''", "no workload ''"),
        ("--resume no-such-run", "no run 'no-such-run' in reports; runs there: none yet"),
        ("--resume", "no run 'latest' in reports; runs there: none yet"),
    ],
)
@pytest.mark.parametrize("command", ["run", "sweep-k"])
def test_a_wrong_value_exits_2_and_says_what_is_allowed(command, arguments, says, tiny, tmp_path):
    (tmp_path / "pairings.yaml").write_text((tiny / "pairings.yaml").read_text())
    for name in ("target", "draft"):
        (tmp_path / name).symlink_to(tiny / name)
    ran = specbench(f"{command} --max-new-tokens 16 {arguments}", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith("error: ")
    assert says in ran.err
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("run --num-prompts 0", "--num-prompts"),
        ("run --num-prompts many", "--num-prompts"),
        ("run --max-new-tokens 1", "--max-new-tokens"),
        ("run --repeats 0", "--repeats"),
        ("run --threads 0", "--threads"),
        ("run --seed -1", "--seed"),
        ("run --top-k -1", "--top-k"),
        ("run --top-p 1.5", "--top-p"),
        ("run --top-p nan", "--top-p"),
        ("run --request-rate nan", "--request-rate"),
        ("run --no-such-option", "--no-such-option"),
        ("run demo/draft --dry-run --device gpu", "--device 'gpu': choose from auto, cpu, cuda"),
        (
            "run demo/draft --dry-run --prompt-tokens 943 --max-new-tokens 100",
            "--prompt-tokens 943: the context of demo has 1,024 tokens, and answers of demo chat "
            "take up to 100 of them; choose at most 924",
        ),
        ("run demo/draft --dry-run --engine transformers --concurrency 4", "--concurrency 1"),
        ("run demo/draft --dry-run --engine transformers -k auto", "-k auto"),
        (
            "run demo/draft --dry-run --engine vllm --base-url http://localhost:1 --ray",
            "--ray starts servers",
        ),
        ("run demo/draft --dry-run --slo tpot=20ms --best-of 2 --temperature 1", "--best-of"),
        ("verify demo/draft --detect 1% --num-tokens 999", "--detect and --num-tokens"),
        ("verify demo/draft --time-budget 1m --num-tokens 999", "--time-budget"),
        ("verify demo/draft --time-budget 1m --engine vllm", "--time-budget"),
        ("verify demo/draft --warmup 2 --engine vllm", "--warmup"),
        ("list methods --fits", "list methods"),
        ("list methods --config pairings.yaml", "--config"),
        ("list workloads --runs-dir old", "--runs-dir"),
        (
            "list things",
            "list 'things': choose from pairings, workloads, methods, parameters, metrics, "
            "families, runs",
        ),
        ("list pairing", "list 'pairing', did you mean 'pairings'?"),
        ("list", "Missing argument"),
        ("check", "Missing argument 'BASELINE'. Example: specbench check baseline.json latest"),
        ("walk", "walk"),
        ("report no-such-run", "no run 'no-such-run' in reports; runs there: none yet"),
        ("report", "no run 'latest' in reports; runs there: none yet"),
        ("report ../etc", "no run '../etc' in reports"),
        ("report " + "x" * 300, "File name too long"),
        ("check " + "x" * 300 + ".json latest", "File name too long"),
        ("check " + "x" * 300 + " latest", "File name too long"),
        ("import no.json --temperature nan", "--temperature"),
        ("pair demo --draft", "'--draft' requires an argument"),
        ("pair demo --draft -k 2", "unexpected extra argument"),
        ("pair demo --draft a b", "Repeat the option for each value: --draft a --draft b"),
        ("report --format pdf", "--format 'pdf': choose from html, md, csv, parquet"),
        ("doctor nobody", "no pairing 'nobody'"),
    ],
)
def test_other_commands_and_options_give_the_same_kind_of_error(arguments, says, empty_folder):
    ran = specbench(arguments, cwd=empty_folder)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert "Traceback" not in ran.err


def test_lengths_that_may_fit_the_context_are_planned(empty_folder):
    # 98% of 942 tokens and an answer of 100 fill the context of 1,024.
    command = "run demo/draft --dry-run --max-new-tokens 100 --prompt-tokens"
    assert specbench(f"{command} 942", cwd=empty_folder).code == 0


@pytest.mark.parametrize(
    ("text", "ks"),
    [
        ("4", (4,)),
        ("0", (0,)),
        ("0..8", tuple(range(9))),
        ("4,1,2", (1, 2, 4)),
        ("0..2,2,8", (0, 1, 2, 8)),
        (" 1 , 3..4 ", (1, 3, 4)),
        ("64", (64,)),
    ],
)
def test_ks_are_a_number_a_range_or_a_list(text, ks):
    assert parse_ks(text) == (ks, False)


@pytest.mark.parametrize(
    ("text", "ks"), [("auto", ()), ("0..2,auto", (0, 1, 2)), (" auto , 4", (4,))]
)
def test_auto_is_allowed_with_or_without_numbers(text, ks):
    assert parse_ks(text) == (ks, True)


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("0.7", (0.7,)),
        ("1", (1.0,)),
        ("0.8,0.6,0.6", (0.8, 0.6, 0.6)),
        # 100 rounds: 60 kept at least one draft, 20 at least two, none more.
        ("histogram:40,40,20", (0.6, 0.2, 0.0)),
        ("histogram:40,60", (0.6, 0.0)),
    ],
)
def test_acceptance_is_a_rate_a_list_or_a_histogram(text, rates):
    assert parse_acceptance(text) == pytest.approx(rates)


@pytest.mark.parametrize(
    "text",
    ["1.1", "-0.1", "0.5,0.6", "nan", "histogram:", "histogram:4", "histogram:0,0", "half:1"],
)
def test_an_impossible_simulated_acceptance_is_a_usage_error(text):
    with pytest.raises(UsageError, match="--simulate-acceptance"):
        parse_acceptance(text)


def test_concurrency_values_are_parsed_without_duplicates():
    assert parse_concurrency("16,1, 4,1") == (16, 1, 4)


def test_temperatures_are_numbers_each_once():
    assert parse_temperatures("0,1,0.7,1") == (0.0, 1.0, 0.7)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("3m", 180), ("1.5h", 5400), (" 2m ", 120)]
)
def test_a_time_budget_is_parsed_into_seconds(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["2", "90", " 1.5 "])
def test_a_budget_without_a_unit_is_refused_with_both_readings(text):
    with pytest.raises(UsageError) as refused:
        parse_seconds(text)
    for meant in (f"--time-budget {text.strip()}m", f"--time-budget {text.strip()}s"):
        assert meant in str(refused.value)
        parse_seconds(meant.partition(" ")[2])


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.02", 0.02), ("0.5%", 0.005)])
def test_a_precision_is_parsed_as_a_percentage_or_fraction(text, share):
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "contexts"),
    [
        ("512", (512,)),
        ("4k", (4096,)),
        ("512,4k,32k", (512, 4096, 32768)),
        ("32K, 512 ,4096,4k", (512, 4096, 32768)),
        ("1,1024k", (1, 1_048_576)),
    ],
)
def test_contexts_are_sorted_token_counts(text, contexts):
    assert parse_contexts(text) == contexts


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        *(("tokens such as 512", text) for text in ("-4k", "1.5k", "512,,4k", "4m", "512..4k")),
        *(("1 to 1024k tokens", text) for text in ("0", "512,0k", "1025k")),
    ],
)
def test_a_context_is_a_number_of_1_to_1024k_tokens(expected, text):
    with pytest.raises(UsageError, match=f"--prompt-tokens '{text}': expected {expected}"):
        parse_contexts(text)


@pytest.mark.parametrize(
    "parse",
    [
        parse_ks,
        parse_seconds,
        parse_share,
        parse_temperatures,
        parse_concurrency,
        parse_contexts,
        parse_acceptance,
    ],
)
@pytest.mark.parametrize("text", ["", "x", "--", "1e400", "9" * 5000, "\0"])
def test_unparsable_option_values_are_usage_errors(parse, text):
    with pytest.raises(UsageError):
        parse(text)
