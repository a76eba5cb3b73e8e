"""Whether the text is the target's own, whatever decodes it: greedy, late, together, alone."""

from typing import Any

import torch
from transformers import GenerationConfig

from benchmarks.gpu_suite.claims import all_of, claim
from benchmarks.gpu_suite.decoders import GRAPHS, GREEDY, Pair, Text, medium_pair, num_equal, texts
from benchmarks.gpu_suite.distribution import (
    NUM_TOKENS,
    PROMPT,
    accept_all,
    exact_distribution,
    p_value,
    tiny,
)
from benchmarks.gpu_suite.machine import Json, Machine, in_a_line
from specbench.decode.round import Verifier
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.decode.verifier import verify
from specbench.engines.kernel_choices import FORWARDS
from specbench.engines.transformers_engine import make_peer
from specbench.errors import ModelError
from specbench.records import Request, Sampling

K, AWAY = 4, 20
WARM = Sampling(temperature=0.8)
WRONG = "wrong: keeps every draft, K=3"
NEAR_TIE_ULP = 2.0


def identity(machine: Machine) -> Json:
    """Greedy texts of every graph mode, forward and K against `generate` in float32."""
    models = {}
    for layers in (2, machine.pick(8, 3)):
        pair = medium_pair(machine, torch.float32, layers=layers)
        requests = pair.requests(4, prompt=20, new_tokens=machine.pick(64, 12))
        expected = [_generated(pair.target, request) for request in requests]
        models[f"{layers} layers"] = _ways(pair, requests, expected)
    ways = [way for of_model in models.values() for way in of_model]
    return {
        "dtype": "float32",
        "against": "generate",
        "models": models,
        "claims": [_equal_texts(ways)],
    }


def self_consistency(machine: Machine) -> Json:
    """The same in bfloat16 against our own K = 0: kernels differ with the shape, so near-ties
    may fall either way. A difference counts as one where the two best logits lie that close."""
    pair = medium_pair(machine, torch.bfloat16, layers=8)
    requests = pair.requests(4, prompt=20, new_tokens=machine.pick(64, 12))
    expected = texts(pair.decoder(), requests, k=0, num_rows=4)
    found = _ways(pair, requests, expected)
    return {
        "dtype": "bfloat16",
        "against": "auto round K=0",
        "ways": found,
        "claims": [_equal_texts(found)],
    }


def catch_up(machine: Machine) -> Json:
    """K = 4, then 20 rounds at K = 0, then K = 4: accepted as after a fresh prefill."""
    pair = medium_pair(machine, torch.float32, layers=8)
    decoder = pair.decoder()
    (request,) = pair.requests(1, prompt=20, new_tokens=machine.pick(96, 60))
    served = decoder.serve([request], GREEDY, _Pause(), num_rows=1)
    result = served.results[0]
    before = sum(result.rounds.num_emitted[: _Pause.ROUNDS + AWAY])  # and one from prefill
    fresh = Request(
        prompt_ids=request.prompt_ids + result.output_ids[:before],
        max_new_tokens=request.max_new_tokens - before,
    )
    again = decoder.serve([fresh], GREEDY, FixedK(K), num_rows=1).results[0]
    resumed = result.rounds.num_accepted[_Pause.ROUNDS + AWAY :]
    equal = [resumed == again.rounds.num_accepted, result.output_ids[before:] == again.output_ids]
    return {
        "num_rounds_compared": len(resumed),
        "equal_accepted": equal[0],
        "equal_text": equal[1],
        "accepted_after_pause": list(resumed[:8]),
        "claims": [all_of("counts and text after a pause as after a prefill", sum(equal), 2)],
    }


def together_and_alone(machine: Machine) -> Json:
    """A request's text with one row in flight and with eight, greedy and sampled, float32."""
    pair = medium_pair(machine, torch.float32, layers=8)
    requests = pair.requests(16, prompt=20, new_tokens=machine.pick(48, 10))
    decoder = pair.decoder()
    found: dict[str, Json] = {}
    for name, sampling in (("greedy", Sampling()), ("sampled", WARM)):
        sampler = Sampler(sampling)
        eight = texts(decoder, requests, k=K, num_rows=8, sampler=sampler)
        one = texts(decoder, requests, k=K, num_rows=1, sampler=sampler)
        found[name] = {"equal": num_equal(one, eight), "of": len(requests)}
    num_right = sum(one["equal"] for one in found.values())
    claims = [all_of("texts alone as among eight", num_right, len(found) * len(requests))]
    return {"dtype": "float32", "k": K, **found, "claims": claims}


def sampling_distribution(machine: Machine) -> Json:
    """Chi-square of sampled texts against the exact distribution, in graphs where there are any.

    A p-value below 0.001 comes once in a thousand correct runs; the last verifier is wrong.
    """
    pair = Pair(
        machine=machine,
        target=tiny(machine.device, seed=0),
        draft=tiny(machine.device, seed=1),
    )
    probs = exact_distribution(pair.target, WARM.temperature)
    num_samples = machine.pick(10_240, 512)
    requests = [
        Request(prompt_ids=PROMPT, max_new_tokens=NUM_TOKENS, seed=seed)
        for seed in range(num_samples)
    ]
    ways: dict[str, tuple[int, Verifier]] = {
        "K=0": (0, verify),
        "K=1": (1, verify),
        "K=3": (3, verify),
        WRONG: (3, accept_all),
    }
    found: dict[str, Json] = {}
    for name, (k, verifier) in ways.items():
        decoder = pair.decoder(verifier=verifier)
        own = texts(decoder, requests, k=k, num_rows=64, sampler=Sampler(WARM))
        assert decoder.launcher is not None, "it has served"
        found[name] = {"p": p_value(torch.tensor(own), probs), "graph": decoder.launcher.graph}
    sound = min(one["p"] for name, one in found.items() if name != WRONG)
    return {
        "num_samples": num_samples,
        "temperature": WARM.temperature,
        "ways": found,
        "claims": [
            claim("lowest p-value of a sound verifier", sound, at_least=1e-3),
            claim("p-value of the one that is wrong", found[WRONG]["p"], at_most=1e-6),
        ],
    }


class _Pause(FixedK):
    """K = 4 for some rounds, 0 for 20, and 4 again."""

    ROUNDS = 4

    def __init__(self) -> None:
        super().__init__(K)
        self._num_chosen = 0

    def choose(self, num_rows: int, num_live: int, num_behind: int) -> int:  # noqa: ARG002
        self._num_chosen += 1
        return 0 if self.ROUNDS < self._num_chosen <= self.ROUNDS + AWAY else K


def _ways(pair: Pair, requests: list[Request], expected: list[Text]) -> list[Json]:
    """Every forward that runs here, graph mode and K; the others with their reason."""
    found: list[Json] = []
    for forward in FORWARDS:
        for graph in GRAPHS:
            try:
                decoder = pair.decoder(forward=forward, graph=graph)
            except ModelError as error:
                found.append({"forward": forward, "refused": in_a_line(error)})
                break
            for k in (0, K):
                own = texts(decoder, requests, k=k, num_rows=len(requests))
                gaps = [
                    _gap_ulp(pair.target, request, a, b)
                    for request, a, b in zip(requests, own, expected, strict=True)
                    if a != b
                ]
                assert decoder.launcher is not None, "it has served"
                found.append(
                    {
                        "forward": forward,
                        "graph": decoder.launcher.graph,
                        "graph_reason": decoder.launcher.reason,
                        "k": k,
                        "equal": num_equal(own, expected),
                        "of": len(requests),
                        "num_near_ties": sum(gap < NEAR_TIE_ULP for gap in gaps),
                        "gaps_ulp": gaps,
                    }
                )
    return found


def _equal_texts(ways: list[Json]) -> Json:
    ran = [way for way in ways if "equal" in way]
    num_right = sum(way["equal"] + way["num_near_ties"] for way in ran)
    return all_of("texts equal but for near-ties", num_right, sum(way["of"] for way in ran))


def _generated(model: Any, request: Request) -> Text:
    """transformers' own greedy text."""
    ids_1T = torch.tensor([request.prompt_ids], device=model.device)
    settings = GenerationConfig(max_new_tokens=request.max_new_tokens, do_sample=False)
    out = make_peer(model).generate(
        ids_1T, attention_mask=torch.ones_like(ids_1T), generation_config=settings
    )
    return tuple(out[0].tolist()[len(request.prompt_ids) :])


@torch.inference_mode()
def _gap_ulp(model: Any, request: Request, one: Text, other: Text) -> float:
    """How far apart the two best logits are where two texts part, in steps of the dtype."""
    at = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    ids_1T = torch.tensor([request.prompt_ids + one[:at]], device=model.device)
    logits_V = make_peer(model)(input_ids=ids_1T, use_cache=False).logits[0, -1]
    best, second = logits_V.float().topk(2).values.tolist()
    step = torch.finfo(model.dtype).eps * 2.0 ** int(torch.tensor(best).abs().log2().floor())
    return float((best - second) / step)
