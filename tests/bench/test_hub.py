"""Missing models are named with their size, downloaded and counted."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import close_session, constants, try_to_load_from_cache

from specbench.bench import hub
from specbench.errors import ModelError
from specbench.files.model import has_weights
from specbench.files.model_spec import ModelSpec
from specbench.inputs.model_spec import model_spec
from specbench.models import library_output
from specbench.models.checkpoint import read_checkpoint
from specbench.models.loading import load_model
from specbench.shipped import PACKAGE
from tests.bench.fake_hub import REVISION, serving

DEMO = PACKAGE / "demo" / "models" / "target"
FAR = ModelSpec(source="nobody-here/no-such-model")
BIG, SHUT = ModelSpec(source="org/big"), ModelSpec(source="org/shut")
PICKLED = ModelSpec(source="org/pickled")


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Messages about slow steps, while the hub may be queried."""
    texts: list[str] = []
    monkeypatch.setattr(library_output, "listeners", [texts.append])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return texts


@pytest.fixture
def address(messages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:  # noqa: ARG001
    """A hub with two copies of the bundled target, one of them gated, and a model in a pickle."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    shutil.copy(DEMO / "config.json", pickled)
    torch.save({}, pickled / "pytorch_model.bin")
    models = {BIG.source: DEMO, SHUT.source: DEMO, PICKLED.source: pickled}
    with serving(models, gated=frozenset({SHUT.source}), pause_s=2e-3) as address:
        # A piece of a file takes longer than the 0.1 s between two counts.
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 2**20)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", _template(address))
        close_session()  # the next one reads the environment again
        yield address
    close_session()


def _template(address: str) -> str:
    return address + "/{repo_id}/resolve/{revision}/{filename}"


def cached_file(name: str) -> str | None:
    file = try_to_load_from_cache(
        BIG.source, name, cache_dir=constants.HF_HUB_CACHE, revision=REVISION
    )
    return file if isinstance(file, str) else None


def mebibytes(words: str) -> float:
    return float(words.removesuffix(" MiB"))


@pytest.mark.usefixtures("address")
def test_the_size_is_named_before_the_download_and_bytes_are_counted_to_the_last(
    messages: list[str],
) -> None:
    warnings: list[str] = []
    hub.download_missing([BIG], warnings.append)
    (line,) = warnings
    size = sum(file.stat().st_size for file in DEMO.iterdir())
    assert f"org/big ({size / 2**20:.1f} MiB)" in line
    counts = [text.removeprefix("downloading org/big: ") for text in messages if text]
    done, totals = zip(*(map(mebibytes, count.split(" of ")) for count in counts), strict=True)
    assert set(totals) == {round(size / 2**20, 1)}
    assert done[0] == 0
    assert any(0 < count < totals[0] for count in done)
    assert max(done) == totals[0]
    assert Path(cached_file("model.safetensors") or "").stat().st_size > 6e6
    assert messages[-1] == ""


@pytest.mark.usefixtures("address")
def test_weights_are_fetched_although_the_config_is_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub, "has_weights", lambda _: False)
    hub.download_missing([BIG], [].append, weights=False)
    assert cached_file("config.json")
    assert cached_file("model.safetensors") is None
    warnings: list[str] = []
    hub.download_missing([BIG], warnings.append)
    stored = (DEMO / "model.safetensors").stat().st_size
    assert f"org/big ({stored / 2**20:.1f} MiB)" in warnings[0]  # only what is still missing
    assert cached_file("model.safetensors")


def test_a_gated_model_is_reported_with_its_page_and_the_login_command(
    address: str, messages: list[str]
) -> None:
    warnings: list[str] = []
    hub.download_missing([SHUT, BIG], warnings.append)
    (shut,) = (line for line in warnings if line.startswith("org/shut"))
    assert f"{address}/org/shut" in shut
    assert "hf auth login" in shut
    assert cached_file("model.safetensors")
    assert messages[-1] == ""


@pytest.mark.usefixtures("address")
def test_a_gated_head_is_not_called_a_head_without_a_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transformers.utils.hub.is_offline_mode", lambda: False)
    with pytest.raises(ModelError, match=r"gated.*\S+/org/shut.*`hf auth"):
        read_checkpoint(SHUT.source)


@pytest.mark.usefixtures("address")
def test_pickled_weights_of_the_hub_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.utils.hub.is_offline_mode", lambda: False)
    with pytest.raises(ModelError, match=r"org/pickled: .*convert them to safetensors first$"):
        load_model(PICKLED, torch.device("cpu"))


@pytest.mark.usefixtures("messages")
def test_a_missing_model_needs_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=rf"{FAR.source}: .*`hf download`"):
        load_model(FAR, torch.device("cpu"))


@pytest.mark.usefixtures("address")
def test_a_failed_download_is_warned_of_and_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: (_ for _ in ()).throw(full))
    warnings: list[str] = []
    hub.download_missing([BIG, ModelSpec(source="org/nothing")], warnings.append)
    failed = [line for line in warnings if "No space left" in line]
    assert [line.partition(":")[0] for line in failed] == ["org/big"]
    assert any(line.startswith("org/nothing: not on") for line in warnings)


@pytest.mark.usefixtures("messages")
def test_an_unreachable_hub_is_tried_once_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    warnings: list[str] = []
    monkeypatch.setattr(hub, "_is_reachable", lambda: looks.append(1))
    hub.download_missing([FAR, model_spec("demo:target")], warnings.append)
    assert len(looks) == 1
    (line,) = warnings
    assert FAR.source in line
    assert "cannot be reached" in line
    assert constants.is_offline_mode()


@pytest.mark.usefixtures("messages")
def test_local_models_need_no_request_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_is_reachable", lambda: pytest.fail("asked the hub"))
    hub.download_missing([model_spec("demo:target")], pytest.fail)
    assert not constants.is_offline_mode()


def test_weights_are_local_if_every_shard_is(tmp_path: Path) -> None:
    spec = ModelSpec(source="./m", folder=tmp_path)
    shutil.copy(DEMO / "config.json", tmp_path)
    assert not has_weights(spec)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}')
    (tmp_path / "a.safetensors").touch()
    assert not has_weights(spec)
    (tmp_path / "b.safetensors").touch()
    assert has_weights(spec)
    index.write_text("{}")
    assert has_weights(spec)  # damaged: loading reports it, a download would not repair it


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://[", "http://a:x", "nowhere"])
def test_a_hub_that_does_not_answer_cannot_be_reached(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    close_session()  # the next one reads the environment again
    assert not hub._is_reachable()
    close_session()


def test_an_internal_error_is_not_reported_as_an_unreachable_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub, "get_session", lambda: None)
    with pytest.raises(AttributeError):
        hub._is_reachable()
