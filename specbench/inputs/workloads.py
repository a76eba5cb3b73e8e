"""Finds, checks and reads prompts.

A workload is two files: NAME.jsonl, one prompt per line, and NAME.yaml, its card:

    name: chat
    description: text
    license: Apache-2.0
    sha256: of NAME.jsonl, so that a changed prompt is a changed workload
    max_new_tokens: 256
    prompts: 48
    request: {thinking: true}  # settings of requests, which rows may override

Any other file of prompts is read as it was published: workload_formats.py has the known sets, and
prompt_rows.py the kinds of files.
"""

import hashlib
import heapq
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import UsageError, WorkloadError
from specbench.inputs.prompt_rows import Row, read_rows
from specbench.inputs.strict_yaml import Value, read_yaml, whole
from specbench.inputs.workload_formats import SETTINGS, SkippedRow, read_prompt, read_settings
from specbench.records import Prompt
from specbench.settings.words import nearest
from specbench.shipped import DEMO_WORKLOADS, shipped
from specbench.whole_file import read_errors_named

MOST_CHARACTERS = 2**27  # of text; 30,000 long conversations, more than any run needs
_PROMPT_CHARACTERS = 2**10  # memory of a prompt and its messages without their text


class PromptSample:
    """A sample of prompts that are added one by one: those with the lowest hashes that fit.

    It depends on the prompts and not on their order: a shuffled file has the same sample.
    """

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self.num_left_out = 0
        self._most = most_characters
        self._held: list[tuple[int, int, Prompt]] = []  # the highest hash first
        self._num_added = self._size = 0

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """The prompts of the sample, in the order of the file."""
        return tuple(prompt for _, _, prompt in sorted(self._held, key=lambda entry: entry[1]))

    def add(self, prompt: Prompt, sha256: str) -> None:
        """Adds one prompt; `sha256`, the hash of its id, decides whether it stays."""
        self._num_added += 1
        heapq.heappush(self._held, (-int(sha256, 16), self._num_added, prompt))
        self._size += _size(prompt)
        while self._size > self._most and len(self._held) > 1:
            self._size -= _size(heapq.heappop(self._held)[-1])
            self.num_left_out += 1

    def note(self, file: str) -> str:
        """A note about a file of which only a sample is used."""
        return (
            f"{file}: {len(self._held):,} of {self._num_added:,} prompts are used, drawn evenly: "
            f"at most {self._most / 2**20:,.0f} MiB of text are held"
        )


def _size(prompt: Prompt) -> int:
    return len(prompt.text) + _PROMPT_CHARACTERS


MAX_NEW_TOKENS = 131_072
MOST_REASONS = 5  # for skipped rows, in a note
DEFAULT_MAX_NEW_TOKENS = 128  # of a file without a card

CARD_KEYS = ("name", "description", "license", "sha256", "max_new_tokens", "prompts", "request")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Prompts of one kind; only a workload with a card has a license and a length."""

    name: str  # of the card or the file; `demo code` if a general workload has the card's name
    path: Path
    sha256: str  # of the file's bytes
    prompts: tuple[Prompt, ...]
    description: str = ""
    license: str | None = None
    max_new_tokens: int | None = None
    notes: tuple[str, ...] = ()  # notes on the rows of the file that are not prompts

    @property
    def request_settings(self) -> str | None:
        """The settings of its requests in words; None if no prompt has any."""
        counts = Counter(word for prompt in self.prompts for word in prompt.settings.words)
        total = len(self.prompts)
        words = (w if n == total else f"{w} in {n:,} of {total:,}" for w, n in counts.items())
        return ", ".join(words) or None

    @property
    def thinks(self) -> bool:
        """Whether a prompt asks the chat template for thinking."""
        return any(prompt.settings.thinking for prompt in self.prompts)

    @property
    def settings_sha256(self) -> str:
        """A hash of all settings of its requests; "" if no prompt has any."""
        given = {prompt.id: prompt.settings.given for prompt in self.prompts}
        return _hash(json.dumps(given, sort_keys=True)) if any(given.values()) else ""

    def take(self, num_prompts: int, seed: int) -> tuple[Prompt, ...]:
        """A sample spread evenly over the categories; a larger one starts with a smaller one.

        The order depends only on the seed and the ids. Fewer are returned if there are fewer;
        UsageError below one.
        """
        if num_prompts < 1:
            raise UsageError(f"{num_prompts} prompts of {self.name}: at least 1 is needed")
        shuffled = sorted(self.prompts, key=lambda prompt: _hash(f"{seed}/{prompt.id}"))
        drawn: Counter[str] = Counter()
        rank = {}  # within its category; sorting by it alternates categories
        for prompt in shuffled:
            rank[prompt.id] = drawn[prompt.category]
            drawn[prompt.category] += 1
        return tuple(sorted(shuffled, key=lambda prompt: rank[prompt.id])[:num_prompts])


def find_workloads(folder: Path | None = None) -> tuple[str, ...]:
    """The names of a folder's workloads; without one, of workloads/ of the working folder and the
    shipped."""
    folders = [folder] if folder else _general_folders()
    return tuple(sorted({card.stem for root in folders for card in _cards(root)}))


def _cards(folder: Path) -> list[Path]:
    """The cards of a folder's workloads, which may be missing."""
    return [path.with_suffix(".yaml") for path in folder.glob("*.jsonl")]


def _own_name(card: Path, general: Mapping[str, Path]) -> str:
    """The name of a target's own workload: after its folder if a general one has the same name."""
    other = general.get(card.stem)
    if other is None or other.resolve() == card.resolve():
        return card.stem
    owner = "demo" if card.parent == DEMO_WORKLOADS else card.parent.name
    return f"{owner} {card.stem}"


def load_workloads(
    names: Sequence[str],
    *,
    folder: Path | None = None,
    field: str | None = None,
    without_settings: bool = False,
) -> tuple[Workload, ...]:
    """The workloads of a run, each once; WorkloadError, and UsageError for two of one name.

    `without_settings` ignores the settings of requests.
    """
    by_name: dict[str, Workload] = {}
    for name in names:
        workload = load_workload(
            name, folder=folder, field=field, without_settings=without_settings
        )
        twin = by_name.setdefault(workload.name, workload)
        if twin.path != workload.path:
            raise UsageError(
                f"--workload: {twin.path} and {workload.path} are both called {workload.name}, "
                "and a run identifies workloads by name; rename one"
            )
    return tuple(by_name.values())


def load_workload(
    name: str,
    *,
    folder: Path | None = None,
    field: str | None = None,
    without_settings: bool = False,
) -> Workload:
    """The workload of a name, or the prompts of a file, if the name has a dot or a slash.

    A name is looked up in `folder` (a pairing's own workloads), then in workloads/ of the working
    folder, then among the shipped ones. One of `folder` that has the name of a general one is
    called `FOLDER NAME`; so `demo code` is the bundled target's for any target. `field` is the
    field with the prompt in the rows of a file that is not of a known set. WorkloadError gives
    file, line and reason.
    """
    if "." in name or "/" in name:
        return _load_file(Path(name), field, None if without_settings else {})
    general = {card.stem: card for root in reversed(_general_folders()) for card in _cards(root)}
    of_target = {_own_name(card, general): card for card in _cards(folder)} if folder else {}
    hidden = {
        card.stem: label for label, card in of_target.items()
    }  # a general name means its own here
    known = (
        general | {_own_name(card, general): card for card in _cards(DEMO_WORKLOADS)} | of_target
    )
    label = hidden.get(name, name)
    if label in known:
        return _load_with_card(known[label], label, without_settings)
    raise WorkloadError(
        f"no workload {name!r}{nearest(name, known)}; there are: {', '.join(sorted(known))}; "
        "or give a JSONL or JSON file, such as ./prompts.jsonl"
    )


def _general_folders() -> list[Path]:
    return [Path("workloads"), shipped("workloads")]


def _load_file(path: Path, field: str | None, settings: Mapping[str, Any] | None) -> Workload:
    sample, skipped, num_rows = PromptSample(), Counter[str](), 0
    taken: dict[str, int] = {}
    for row, content in read_rows(path):
        num_rows += 1
        try:
            prompt = read_prompt(content, row, taken, strict=False, field=field, defaults=settings)
        except SkippedRow as why:
            skipped[str(why).partition(";")[0]] += 1
            continue
        taken[prompt.id] = row.line
        sample.add(prompt, _hash(prompt.id))
    notes = _skipped(path.name, skipped, num_rows)
    prompts = _require(sample.prompts, path, notes)
    if sample.num_left_out:
        notes += (sample.note(path.name),)
    notes += _not_applied(path.name, prompts)
    sha256 = _sha256(path)
    return Workload(
        name=path.name,
        path=path,
        sha256=sha256 if field is None else _hash(f"{sha256}/{field}"),  # other prompts
        prompts=prompts,
        notes=notes,
    )


def _load_with_card(card: Path, label: str, without_settings: bool) -> Workload:
    path = card.with_suffix(".jsonl")
    keys = read_yaml(card, WorkloadError).section(allowed=CARD_KEYS)
    name = keys.must("name", Value.text)
    if name != path.stem:
        keys.entries["name"].fail(f"{name!r} is not the file's name, {path.stem!r}")
    settings = None if without_settings else keys.may("request", _card_settings, {})
    prompts = _strict_prompts(path, settings)  # first: malformed lines explain more
    sha256 = keys.must("sha256", _digest)
    if sha256 != _sha256(path):
        keys.entries["sha256"].fail(
            f"{path.name} has changed; its sha256 is now {_sha256(path)}: restore the file, or "
            "write this hash here if the change is intended"
        )
    if keys.must("prompts", whole(1, 10**9)) != len(prompts):
        keys.entries["prompts"].fail(f"{path.name} has {len(prompts)} prompts")
    return Workload(
        name=label,
        path=path,
        sha256=sha256,
        prompts=prompts,
        description=keys.must("description", Value.text),
        license=keys.must("license", Value.text),
        max_new_tokens=keys.must("max_new_tokens", whole(1, MAX_NEW_TOKENS)),
    )


def _card_settings(value: Value) -> Mapping[str, Any]:
    settings = {name: v.json() for name, v in value.section(allowed=SETTINGS).entries.items()}
    read_settings(settings, value.fail, {})
    return settings


def _digest(value: Value) -> str:
    digest = value.text()
    if not _SHA256.fullmatch(digest):
        value.fail("expected 64 digits of 0-9 and a-f")
    return digest


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(path: Path) -> str:
    with read_errors_named(path, WorkloadError), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _strict_prompts(path: Path, settings: Mapping[str, Any] | None) -> tuple[Prompt, ...]:
    prompts: list[Prompt] = []
    taken: dict[str, int] = {}
    for row, content in read_rows(path):
        prompts.append(read_prompt(content, row, taken, strict=True, defaults=settings))
        taken[prompts[-1].id] = row.line
    return _require(prompts, path)


def _require(
    prompts: Sequence[Prompt], path: Path, notes: Sequence[str] = ()
) -> tuple[Prompt, ...]:
    if not prompts:
        Row(file=path, line=1).fail("; ".join(("the file has no prompts", *notes)))
    return tuple(prompts)


def _not_applied(file: str, prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """Notes on settings in rows for which the run's own are used, such as the temperature."""
    requested = Counter(key for prompt in prompts for key in prompt.not_applied)
    if not requested:
        return ()
    named = ", ".join(f"{key} ({num:,})" for key, num in requested.most_common())
    num_rows = sum(bool(prompt.not_applied) for prompt in prompts)
    return (f"{file}: settings in {num_rows:,} of {len(prompts):,} rows are not applied: {named}",)


def _skipped(file: str, skipped: Counter[str], num_rows: int) -> tuple[str, ...]:
    """A sentence with the number of skipped rows and the reasons; empty if there are none."""
    if not skipped:
        return ()
    most = skipped.most_common(MOST_REASONS)
    reasons = [f"{why} ({num:,})" for why, num in most]
    if rest := skipped.total() - sum(num for _, num in most):
        reasons.append(f"other reasons ({rest:,})")
    return (f"{file}: {skipped.total():,} of {num_rows:,} rows skipped: {', '.join(reasons)}",)
