"""Memory is checked before it is allocated: from files only, with hints for using less."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.errors import ModelError
from specbench.files.model import open_model
from specbench.fit.demand import GIB, demand, shortage
from specbench.fit.memory_plan import DeploymentSpec, plan_pair
from specbench.inputs.config import load_pairings
from specbench.inputs.model_spec import model_spec
from specbench.inputs.pairing import DrafterSpec, Target
from tests.cli.calls import specbench

HERE = DeploymentSpec(device="cpu", memory_bytes=21 * GIB, context=512)


def shape(name: str) -> tuple[Target, tuple[DrafterSpec, ...]]:
    (pairing,) = load_pairings().select([f"shape-{name}"])
    return pairing.target, (pairing.drafter,)


def test_a_float32_shortage_on_a_cpu_suggests_bfloat16():
    target, drafters = shape("8b")
    message = shortage(target, drafters, HERE)
    assert message is not None
    assert re.match(r"needs .*34\.9 GiB .*float32 \(34\.5 GiB ", message)
    assert re.search(r"21\.0 GiB free; .*--dtype bfloat16 \(17\.5 GiB\)$", message)
    assert shortage(target, drafters, replace(HERE, dtype="bfloat16")) is None
    assert shortage(target, drafters, replace(HERE, device="cuda")) is None
    assert shortage(target, drafters, replace(HERE, memory_bytes=None)) is None


def test_a_float32_shortage_on_an_old_gpu_suggests_float16():
    target, drafters = shape("8b")
    old = replace(HERE, device="cuda", dtype="float32", compute_capability=(7, 0))
    assert "--dtype float16 (17.6 GiB)" in (shortage(target, drafters, old) or "")


def test_fewer_rows_and_shorter_texts_are_suggested_if_they_help():
    target, drafters = shape("8b")
    many = replace(HERE, dtype="bfloat16", concurrency=64, context=8000)
    message = shortage(target, drafters, many) or ""
    assert re.search("64 .*8,000 tokens", message)
    assert ": --concurrency 2 (" in message
    few = replace(many, concurrency=2)
    assert shortage(target, drafters, few) is None
    assert shortage(target, drafters, replace(few, concurrency=4)) is not None


def test_a_shortage_without_a_remedy_suggests_a_smaller_model():
    target, drafters = shape("70b")
    message = shortage(target, drafters, HERE) or ""
    assert "smaller model" in message
    assert "133.9 GiB" in message


@pytest.mark.parametrize("placement", ["auto", "balanced", "sequential", "cuda:1"])
def test_a_model_that_is_spread_over_cards_is_not_compared_with_one_of_them(placement: str):
    target, (drafter,) = shape("70b")
    card = replace(HERE, device="cuda", memory_bytes=79 * GIB)
    placed = replace(target, model=replace(target.model, device_map=placement))
    is_spread = placement != "cuda:1"
    assert (shortage(placed, [drafter], card) is None) == is_spread
    plan = plan_pair(open_model(placed.model), drafter, card)
    assert plan is not None
    assert plan.fits is (None if is_spread else False)
    assert shortage(placed, [drafter], HERE) is not None  # a CPU has one memory


def test_a_missing_model_is_planned_without_packing():
    spec = model_spec("owner/far-away")
    target = Target(name="far", model=replace(spec, weights_gib=48.0), drafters=())
    message = shortage(target, [], HERE) or ""
    assert re.match(r"needs .*least 96\.0 GiB, .*21\.0 GiB free; .*smaller model", message)


def test_a_cpu_holds_all_drafters_together_and_a_gpu_one_at_a_time():
    target, (drafter,) = shape("8b")
    other = replace(drafter, name="other", model=replace(target.model, weights_gib=5.0))
    small, large = (demand(target, [draft], HERE).weights for draft in (drafter, other))
    alone = demand(target, [], HERE).weights
    assert demand(target, [drafter, other], HERE).weights == small + large - alone
    on_gpu = replace(HERE, device="cuda", dtype="float32")
    assert demand(target, [drafter, other], on_gpu).weights == large


def test_stated_weights_are_a_minimum_and_drafters_of_one_model_share_it():
    target, (drafter,) = shape("8b")
    alone = demand(target, [], HERE).weights
    own = demand(target, [drafter], HERE).weights - alone
    assert own > 4 * GIB  # more than the file states

    def weights(gib: float, of_target: float, names: tuple[str, ...]) -> int:
        stated = replace(drafter, model=replace(drafter.model, weights_gib=gib))
        model = replace(target.model, weights_gib=of_target)
        drafters = [replace(stated, name=name) for name in names]
        return demand(replace(target, model=model), drafters, HERE).weights

    assert weights(0.1, 0.1, ("a", "b")) == alone + own
    assert weights(50, 0.1, ("a", "b")) == alone + 50 * GIB
    assert weights(0.1, 100, ("a",)) == 100 * GIB + own


@pytest.mark.parametrize("fitting", [350, 256])
def test_the_suggested_length_of_texts_is_halved_down_to_256_tokens(fitting: int) -> None:
    target, drafters = shape("8b")
    memory = demand(target, drafters, replace(HERE, context=fitting)).total
    long = replace(HERE, context=701, memory_bytes=memory)
    assert f"answers of {fitting} tokens (" in (shortage(target, drafters, long) or "")
    less = replace(HERE, context=701, memory_bytes=memory - 1)
    assert f"answers of {fitting} tokens (" not in (shortage(target, drafters, less) or "")


def test_a_missing_model_needs_at_least_the_stated_weights():
    (pairing,) = load_pairings().select(["llama-3.1-8b/eagle3"])
    message = shortage(pairing.target, [pairing.drafter], replace(HERE, memory_bytes=GIB)) or ""
    assert message.startswith("needs at least ")


ABSURD = {
    "vocab_size": "x",
    "hidden_size": -5,
    "num_hidden_layers": 10**9,
    "num_attention_heads": True,
    "intermediate_size": [320, 2**60],
}


@pytest.mark.parametrize(("name", "value"), ABSURD.items(), ids=ABSURD)
def test_sizes_that_no_model_has_are_refused(name: str, value: object, tmp_path: Path) -> None:
    (pairing,) = load_pairings().select(["demo/draft"])
    folder = pairing.target.model.folder
    assert folder is not None
    (tmp_path / "target").mkdir()
    for file in folder.iterdir():
        (tmp_path / "target" / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "target" / "config.json").unlink()
    (tmp_path / "target" / "config.json").write_text(json.dumps({**config, name: value}))
    spec = replace(pairing.target.model, folder=tmp_path / "target")
    with pytest.raises(ModelError, match=f"{name}"):
        demand(replace(pairing.target, model=spec), [pairing.drafter], HERE)
    with pytest.raises(ModelError, match=name):  # also of a draft model
        demand(pairing.target, [replace(pairing.drafter, model=spec)], HERE)
    ran = specbench("run --target ./target --draft ngram --dry-run", cwd=tmp_path)
    assert (ran.code, name in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("command", ["run", "sweep-k", "pair", "doctor"])
def test_every_command_checks_memory_the_same_way(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.probes.host.host_available_bytes", lambda: 21 * GIB)
    ran = specbench(command, "shape-8b", cwd=tmp_path)
    assert ran.code == (1 if command == "doctor" else 2)
    message = " ".join((ran.out if command == "doctor" else ran.err).split())
    assert re.search(r"GiB .*float32 \(34\.5 GiB ", message)
    assert ": --dtype bfloat16 (17." in message
    assert ("--skip-memory-check" in message) is (command != "doctor")
    assert not (tmp_path / "reports").exists()
