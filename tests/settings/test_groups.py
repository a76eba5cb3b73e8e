"""Options are fields of groups, and run.json has every value under its own name."""

from dataclasses import dataclass, fields, replace
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from specbench.cli.measure import read_methods
from specbench.cli.options import with_option_per_field
from specbench.errors import UsageError
from specbench.settings import (
    DecoderSettings,
    DraftSettings,
    LoadSettings,
    RunSettings,
    SamplingSettings,
    StoredSettings,
)
from specbench.settings.option import Option, leaves
from tests.settings.flat_settings import changed, settings_of

SETTINGS = settings_of(pairings=("a/b",), workloads=("chat",))


def parsed(*words: str) -> RunSettings:
    """The settings that a command gets whose only parameter they are."""
    heard: list[RunSettings] = []

    def command(settings: RunSettings) -> None:
        heard.append(settings)

    app = typer.Typer()
    app.command()(with_option_per_field(command))
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return heard[0]


def test_engines_methods_and_dtypes_are_named_in_any_spelling():
    settings = parsed("--engine", "llama.cpp,TensorRT-LLM,vLLM,SGLang", "--dtype", "BFloat16")
    assert settings.load.engines == ("llama_cpp", "tensorrt_llm", "vllm", "sglang")
    assert settings.machine.dtype == "bfloat16"
    assert read_methods("Draft-Model,EAGLE3") == ("draft_model", "eagle3")


def test_setting_names_are_unique_across_groups():
    names = [leaf.name for leaf in leaves(RunSettings)]
    assert len(names) == len(set(names)) == len(fields(SETTINGS.stored))


def test_settings_groups_are_restored_from_stored_settings():
    settings = changed(SETTINGS, adaptive=True, contexts=(512,), dtype="float64", most_drafters=2)
    assert settings.draft == DraftSettings(adaptive=True)
    assert settings.load == LoadSettings(contexts=(512,))
    assert RunSettings.of(settings.stored) == settings


def test_settings_survive_grouping_and_flattening():
    stored = StoredSettings(**{leaf.name: f"the {leaf.name}" for leaf in leaves(RunSettings)})
    assert RunSettings.of(stored).stored == stored


def test_methods_choose_pairings_and_are_not_stored():
    settings = replace(SETTINGS, workload=replace(SETTINGS.workload, methods="ngram"))
    assert settings.stored == SETTINGS.stored


def test_every_settings_group_has_defaults():
    assert parsed() == settings_of(pairings=(), workloads=("chat", "code", "creative"))


def test_option_values_are_parsed_into_settings_groups():
    settings = parsed("big", "-w", "a,b", "-w", "c", "-k", "1..2,auto", "--prompt-tokens", "4k,512")
    assert settings.workload.pairings == ("big",)
    assert settings.workload.workloads == ("a", "b", "c")
    assert settings.draft == DraftSettings(num_speculative_tokens=(1, 2), adaptive=True)
    assert settings.load == LoadSettings(contexts=(512, 4096))
    assert parsed("--temperature", "0,1").sampling == SamplingSettings(temperatures=(0.0, 1.0))


@dataclass(frozen=True, kw_only=True)
class CupSettings:
    num_cups: Annotated[int, Option(names=("--cups",), min=1, help="Cups.")] = 3
    kind: str = "tea"  # not an option


def test_a_command_can_have_its_own_defaults_for_a_group():
    heard: list[CupSettings] = []
    hers = CupSettings(num_cups=5, kind="coffee")

    def command(settings: CupSettings = hers) -> None:
        heard.append(settings)

    app = typer.Typer(rich_markup_mode=None)
    app.command()(with_option_per_field(command))
    for words in ([], ["--cups", "2"]):
        assert CliRunner().invoke(app, words).exit_code == 0
    assert heard == [hers, replace(hers, num_cups=2)]
    assert "default: 5; x>=1" in CliRunner().invoke(app, ["--help"]).output


def test_a_stored_acceptance_that_is_a_text_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match=r"'x\.json'"):
        _ = DecoderSettings(acceptance="x.json").simulated
