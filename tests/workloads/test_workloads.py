"""Workloads are found by name, checked against their card, and sampled."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from specbench.errors import UsageError, WorkloadError
from specbench.inputs.workloads import Workload, find_workloads, load_workload, load_workloads
from specbench.records import Message, Prompt
from specbench.settings.words import workload_named
from specbench.shipped import DEMO_WORKLOADS


def write_workload(folder: Path, name: str, *, text: str = "Hello", id_key: str = "id") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps({id_key: "a", "category": "greeting", "turns": [text]}).encode()
    (folder / f"{name}.jsonl").write_bytes(content)
    (folder / f"{name}.yaml").write_text(
        f"name: {name}\ndescription: Greetings.\nlicense: CC0-1.0\n"
        f"sha256: {hashlib.sha256(content).hexdigest()}\nmax_new_tokens: 64\nprompts: 1\n"
    )
    return folder


def text_of(workload: Workload) -> str:
    return workload.prompts[0].turns[0][0].content


def test_a_workload_has_its_cards_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_workload(Path("workloads"), "greet")
    workload = load_workload("greet")
    assert workload.name == "greet"
    assert workload.path == folder / "greet.jsonl"
    assert (workload.license, workload.max_new_tokens) == ("CC0-1.0", 64)
    assert workload.description == "Greetings."
    assert workload.prompts[0].category == "greeting"


@pytest.mark.parametrize("id_key", ["id", "question_id"])
def test_both_names_of_an_id_are_allowed_with_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id_key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_workload(Path("workloads"), "greet", id_key=id_key)
    assert load_workload("greet").prompts[0].id == "a"


def test_a_workload_file_without_a_card_is_named_by_its_file(tmp_path: Path) -> None:
    path = write_workload(tmp_path, "greet") / "greet.jsonl"
    workload = load_workload(str(path))
    assert workload.name == "greet.jsonl"
    assert workload.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (workload.license, workload.max_new_tokens) == (None, None)


def test_a_pairings_own_folder_comes_first_then_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_workload(tmp_path / "own", "chat", text="from the pairing")
    write_workload(Path("workloads"), "chat", text="from the working folder")
    write_workload(Path("workloads"), "extra", text="only here")
    assert text_of(load_workload("chat", folder=folder)) == "from the pairing"
    assert text_of(load_workload("chat")) == "from the working folder"
    assert text_of(load_workload("extra", folder=folder)) == "only here"


def test_two_workloads_of_one_name_have_different_labels(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = write_workload(write_workload(tmp_path / "mine", "code"), "greet")
    names = {name: load_workload(name, folder=mine).name for name in ("code", "greet", "chat")}
    assert names == {"code": "mine code", "greet": "greet", "chat": "chat"}
    general, demo = load_workload("code"), load_workload("code", folder=DEMO_WORKLOADS)
    assert (general.name, demo.name) == ("code", "demo code")
    assert general.sha256 != demo.sha256
    for folder in (None, mine, DEMO_WORKLOADS):
        assert load_workload("demo code", folder=folder) == demo
    assert load_workloads(["code", "demo code"], folder=DEMO_WORKLOADS) == (demo,)
    write_workload(Path("workloads"), "code")  # of the working folder, not of a target
    assert load_workload("code", folder=Path("workloads").resolve()).name == "code"


def test_a_stored_workload_is_named_by_its_label_or_as_for_the_run() -> None:
    assert workload_named("code", ["demo code", "demo chat"]) == "demo code"
    assert workload_named("demo code", ["demo code"]) == "demo code"
    assert workload_named("code", ["code", "demo code"]) == "code"
    assert workload_named("code", ["demo code", "mine code"]) == "code"  # which is refused


def test_only_a_pairings_own_folder_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_workload(write_workload(tmp_path / "own", "b"), "a")
    write_workload(Path("workloads"), "mine")
    assert find_workloads(folder) == ("a", "b")
    assert "mine" in find_workloads()


def test_an_unknown_name_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "own", "greet")
    with pytest.raises(WorkloadError, match=r"'greeet'.*'greet'"):
        load_workload("greeet", folder=folder)


def workload_of(categories: str) -> Workload:
    """One prompt per letter: "aab" has two of category a and one of b."""
    return Workload(
        name="letters",
        path=Path("letters.jsonl"),
        sha256="",
        prompts=tuple(
            Prompt(id=str(i), category=letter, turns=((Message(role="user", content="x"),),))
            for i, letter in enumerate(categories)
        ),
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_smaller_sample_is_a_prefix_of_a_larger_one(seed: int) -> None:
    workload = workload_of("aaaaaabbbc")
    whole = workload.take(10, seed)
    assert sorted(p.id for p in whole) == sorted(p.id for p in workload.prompts)
    for n in range(1, 10):
        assert workload.take(n, seed) == whole[:n]


@pytest.mark.parametrize("seed", range(5))
def test_a_sample_of_prompts_is_balanced_over_categories(seed: int) -> None:
    workload = workload_of("a" * 90 + "bbb" + "c")
    drawn = Counter(prompt.category for prompt in workload.take(6, seed))
    assert drawn == {"a": 3, "b": 2, "c": 1} or drawn == {"a": 2, "b": 3, "c": 1}
    assert {prompt.category for prompt in workload.take(3, seed)} == {"a", "b", "c"}


def test_the_prompt_sample_depends_on_the_seed() -> None:
    workload = workload_of("a" * 100)
    assert workload.take(5, seed=1) == workload.take(5, seed=1)
    assert workload.take(5, seed=1) != workload.take(5, seed=2)


def test_a_draw_does_not_depend_on_the_order_of_the_file() -> None:
    workload = workload_of("aabbcc")
    turned = Workload(name="letters", path=workload.path, sha256="", prompts=workload.prompts[::-1])
    assert workload.take(4, seed=0) == turned.take(4, seed=0)


def test_a_sample_takes_at_most_all_prompts_and_at_least_one() -> None:
    assert len(workload_of("abc").take(100, seed=0)) == 3
    with pytest.raises(UsageError, match=r"0 prompts.*1"):
        workload_of("abc").take(0, seed=0)
