"""`pair` orders the drafts of one target as exhaustive measuring does.

The drafts are the target's first layers, of two depths, as they are or with noise on their
weights. Exhaustive measuring decodes every draft at every K. It orders drafts by tokens per round
over the cost of a round, at each draft's best K. Tokens are counts that repeat exactly. So do
costs, on a clock that advances by the layers and tokens of every forward: rounds of these models
are so short that load on the machine would change their order.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from specbench.report.document import build_document
from specbench.runs import load_run
from tests.cli.calls import specbench
from tests.cli.clocks import work_clock
from tests.decoding.models import tiny_llama
from tests.tiny_pair import make_tokenizer

LAYERS = 8
# Name -> layers and the noise on them, a share of each weight's deviation.
DRAFTS = {"small": (1, 0.0), "large": (3, 0.0), "noisy": (1, 2.0), "slow": (4, 2.0)}
SMALL = ("--num-prompts", "5", "--threads", "1", "--device", "cpu")


def forward_s(num_layers: int, num_tokens: int) -> float:
    """Embedding and output cost as much as a layer, and each additional token a twentieth."""
    return 0.001 * (1 + num_layers) * (1 + 0.05 * (num_tokens - 1))


@pytest.fixture(scope="module", autouse=True)
def clock() -> Iterator[None]:
    with work_clock(forward_s):
        yield


def truncated(target: LlamaForCausalLM, layers: int, noise: float) -> LlamaForCausalLM:
    """The target's first layers; noise lowers agreement and takes no time."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = layers
    draft = LlamaForCausalLM(config).eval()
    kept = {name: t for name, t in target.state_dict().items() if name in draft.state_dict()}
    draft.load_state_dict(kept)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for linear in (m for m in draft.model.modules() if isinstance(m, nn.Linear)):
            added = torch.randn(linear.weight.shape, generator=generator)
            linear.weight += noise * linear.weight.std() * added
    return draft


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("order")
    target = tiny_llama(vocab_size=272, num_hidden_layers=LAYERS, eos_token_id=0)
    for layer in target.model.layers[1:]:  # what later layers add is small: drafts agree
        layer.self_attn.o_proj.weight.data.mul_(0.03)
        layer.mlp.down_proj.weight.data.mul_(0.03)
    models = {"target": target}
    models |= {name: truncated(target, *how) for name, how in DRAFTS.items()}
    for name, model in models.items():
        model.save_pretrained(folder / name)
        make_tokenizer().save_pretrained(folder / name)
    prompts = "".join(
        json.dumps({"id": f"p{i}", "turns": [f"prompt number {i}"]}) + "\n" for i in range(5)
    )
    (folder / "prompts.jsonl").write_text(prompts)
    return folder


def exhaustive_order(folder: Path, drafts: Sequence[str], *options: str) -> list[str]:
    """Each draft at every K, by emitted tokens over the round's cost at the best K."""
    drafters = "".join(f"      {n}: {{method: draft_model, model: ./{n}}}\n" for n in drafts)
    head = "targets:\n  target:\n    model: ./target\n    drafters:\n"
    (folder / "pairings.yaml").write_text(head + drafters)
    ran = specbench("sweep-k", "target", *options, cwd=folder)
    assert ran.is_complete, ran.err
    run = json.loads(ran.out)["run_id"]
    best: dict[str, float] = {}
    for cell in build_document(load_run(run, folder / "reports")).cells:
        if cell.key.draft.k:
            emitted = float(cell.metrics["mean_acceptance_length"])
            gain = emitted / float(cell.metrics["break_even_length"])
            best[cell.key.draft.drafter] = max(best.get(cell.key.draft.drafter, 0.0), gain)
    print("exhaustive", best)
    return sorted(best, key=lambda name: -best[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafts", "num_measured", "num_tokens"),
    [(("large", "noisy"), 1, 12), pytest.param(tuple(DRAFTS), 2, 24, marks=pytest.mark.long)],
)
def test_drafts_are_ranked_as_exhaustive_measuring_ranks_them(
    shelf: Path, drafts: tuple[str, ...], num_measured: int, num_tokens: int
) -> None:
    length = ("--max-new-tokens", str(num_tokens))
    options = ("-w", "prompts.jsonl", "-k", "1,3,5", "--json", *SMALL, *length)
    named = [word for name in reversed(drafts) for word in ("--draft", f"./{name}")]
    top = ("--measure-top", str(num_measured))
    ran = specbench("pair", "./target", *named, *top, *options, cwd=shelf)
    assert ran.is_complete, ran.err
    ranking = json.loads(ran.out)["ranking"]
    print([(entry["drafter"], entry["speedup"], entry["gains"]) for entry in ranking])
    order = [entry["drafter"] for entry in ranking]
    assert order == exhaustive_order(shelf, drafts, *options) == list(drafts)
    is_measured = [i < num_measured for i in range(len(drafts))]
    assert [entry["is_measured"] for entry in ranking] == is_measured
