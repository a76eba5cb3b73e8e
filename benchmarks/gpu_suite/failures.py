"""A capture that is made to fail, and one without memory: what runs, and what runs after it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.gpu_suite.claims import all_of, claim
from benchmarks.gpu_suite.decoders import Pair, Text, medium_pair, num_equal, texts
from benchmarks.gpu_suite.machine import NO_GPU, Json, Machine
from specbench.decode.decoder import Decoder, MakeLauncher
from specbench.decode.drafter import Proposal
from specbench.decode.graphs import Launchers
from specbench.decode.sampling import Sampler
from specbench.decode.verifier import Verdict, verify

KS = (0, 2, 4)
_TOO_MUCH = 1 << 50  # bytes


class FailsInCaptures:
    """The verifier, which in captures at some K first does what a graph cannot hold."""

    def __init__(
        self, fault: Callable[[Tensor], object], ks: Sequence[int], is_capturing: Callable[[], bool]
    ) -> None:
        self._fault, self._ks, self._is_capturing = fault, ks, is_capturing

    def __call__(
        self,
        proposal: Proposal,
        logits_BNV: Tensor,
        sampler: Sampler,
        seed_B: Tensor,
        positions_BN: Tensor,
    ) -> Verdict:
        if logits_BNV.shape[1] - 1 in self._ks and self._is_capturing():
            self._fault(logits_BNV)
        return verify(proposal, logits_BNV, sampler, seed_B, positions_BN)


def failed_captures(machine: Machine) -> Json:
    """Two kinds of failure, each followed by other launchers over the same pool of memory."""
    pair = medium_pair(machine, torch.float32, layers=2)
    launchers = Launchers("round", machine.device)
    if not machine.is_cuda:
        return after_failures(pair, launchers, lambda: False, reason=NO_GPU)
    found = after_failures(pair, launchers, torch.cuda.is_current_stream_capturing)
    torch.cuda.empty_cache()  # asserts where a failed capture left its pool open
    return found


def after_failures(
    pair: Pair,
    launchers: MakeLauncher,
    is_capturing: Callable[[], bool],
    *,
    reason: str | None = None,
) -> Json:
    """Texts, graphs and reasons of decoders that share launchers, one after the other.

    `reason` says why nothing is captured here.
    """
    requests = pair.requests(2, prompt=20, new_tokens=pair.machine.pick(24, 8))
    plain = pair.decoder(graph="off")
    expected = [texts(plain, requests, k=k, num_rows=2) for k in KS]

    def ran(decoder: Decoder) -> Json:
        own: list[list[Text]] = [texts(decoder, requests, k=k, num_rows=2) for k in KS]
        assert decoder.launcher is not None, "it has served"
        return {
            "graph": decoder.launcher.graph,
            "graph_reason": decoder.launcher.reason,
            "equal": sum(num_equal(a, b) for a, b in zip(own, expected, strict=True)),
        }

    waits = FailsInCaptures(lambda logits: logits.sum().item(), KS, is_capturing)
    hungry = FailsInCaptures(_take_too_much, (2,), is_capturing)
    found = {
        "waits in every capture": ran(pair.decoder(make_launcher=launchers, verifier=waits)),
        "after it": ran(pair.decoder(make_launcher=launchers)),
        "no memory for K = 2": ran(pair.decoder(make_launcher=launchers, verifier=hungry)),
        "after both": ran(pair.decoder(make_launcher=launchers)),
    }
    kinds = {name: (one["graph"], one["graph_reason"]) for name, one in found.items()}
    refusal = kinds["no memory for K = 2"][1] or ""
    as_predicted = [
        kinds["waits in every capture"][0] == "off",
        kinds["after it"] == ("round", None),
        kinds["no memory for K = 2"][0] == "round",
        "K=2" in refusal and "K=4" not in refusal and "K=0" not in refusal,
        kinds["after both"] == ("round", None),
    ]
    num_equal_texts = sum(one["equal"] for one in found.values())
    return {
        "ways": found,
        "of": len(KS) * len(requests),
        "claims": [
            all_of("texts equal to eager ones", num_equal_texts, 4 * len(KS) * len(requests)),
            claim(
                "failures that stay where they are",
                sum(as_predicted),
                at_least=len(as_predicted),
                reason=reason,
            ),
        ],
    }


def _take_too_much(logits: Tensor) -> None:
    torch.empty(_TOO_MUCH, dtype=torch.uint8, device=logits.device)
