"""What a pass holds while requests pass through: the log of their rounds, and no more."""

import gc
import tracemalloc

import pytest
import torch

from specbench.decode.drafter import NoDrafter
from specbench.decode.scheduler import FixedK
from specbench.forward.runner import StockRunner
from specbench.records import Request
from tests.decoding.models import tiny_llama
from tests.decoding.test_serving import serve


@pytest.mark.slow
def test_memory_is_flat_while_requests_pass_through() -> None:
    def peak(num_requests: int) -> int:
        requests = [
            Request(prompt_ids=(1, 2, 3), max_new_tokens=8, seed=i) for i in range(num_requests)
        ]
        runner = StockRunner(tiny_llama(seed=0))
        serve(runner, NoDrafter(), requests[:4], FixedK(0), 4)
        slots_before = [layer.keys.data_ptr() for layer in runner.cache.layers]
        gc.collect()
        tracemalloc.start()
        serve(runner, NoDrafter(), requests, FixedK(0), 4)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert [layer.keys.data_ptr() for layer in runner.cache.layers] == slots_before
        return most

    # Four times the requests: what grows is the log of their rounds, a few KiB each.
    assert peak(80) - peak(20) < 60 * 8 * 1024


@pytest.mark.long
@pytest.mark.slow
def test_tensors_do_not_grow_with_the_requests_that_passed_through() -> None:
    """What torch holds is no memory of Python's."""

    class Weighing(FixedK):
        num_rounds = most_bytes = 0

        def observe(self, _: object) -> None:
            self.num_rounds += 1
            if self.num_rounds % 7:  # four requests end in every seventh round
                return
            # Tensors of tests that trace are of no size, and may be held by the compiler.
            real = (torch.Tensor, torch.nn.Parameter)
            tensors = {id(o): o for o in gc.get_objects() if type(o) in real}
            now = sum(tensor.nbytes for tensor in tensors.values())
            self.most_bytes = max(self.most_bytes, now)

    def held(num_requests: int) -> int:
        requests = [
            Request(prompt_ids=(1, 2, 3), max_new_tokens=8, seed=i) for i in range(num_requests)
        ]
        gc.collect()
        policy = Weighing(0)
        serve(runner, NoDrafter(), requests, policy, 4)
        return policy.most_bytes

    runner = StockRunner(tiny_llama(seed=0))
    held(4)
    assert held(40) == held(8) > 0
