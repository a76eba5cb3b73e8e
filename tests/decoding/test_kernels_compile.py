"""Our kernels compile for absent GPUs, with Triton's own compiler."""

import os
import subprocess
import sys

import pytest

CHILD = """
import sys

from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from specbench.forward.kernels import layer_steps
from specbench.forward.kernels import sampling
from specbench.forward.kernels import slot_attention

DTYPE, *CAPABILITIES = sys.argv[1:]
POINTERS = {
    **dict.fromkeys(
        ("query", "kept", "out", "qkv", "cos_sin", "head_norm", "gate_up", "x"), f"*{DTYPE}"
    ),
    **dict.fromkeys(("sums", "maxima", "totals"), "*fp32"),
    **dict.fromkeys(("first_slots", "positions", "base", "branch_positions", "slots"), "*i64"),
    **dict.fromkeys(("scale", "eps"), "fp32"),
    "seen": "*i1",
}
# The same names stand for other things in the kernels that sample.
SAMPLING = {
    **dict.fromkeys(("out", "scores", "probs", "best", "sums"), "*fp32"),
    **dict.fromkeys(("seeds", "positions", "turns", "lowest"), "*i64"),
    **dict.fromkeys(("above", "limit", "kept"), "*fp64"),
    "tokens": "*i32",
    "temperature": "fp32",
}
TREE_ONLY = dict.fromkeys(("base", "seen", "branch_positions"))


def build(kernel, pointers=POINTERS, **constants):
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    for capability in map(int, CAPABILITIES):
        source = ASTSource(kernel, signature=signature, constexprs=values)
        built = compile(source, target=GPUTarget("cuda", capability, 32))
        print(kernel.__name__, capability, len(built.asm["cubin"]) > 0, built.metadata.shared)


for G, D, queries, is_tree, has_window in [
    (4, 128, 32, False, False),
    (4, 128, 64, True, False),
    (1, 80, 16, False, True),
    (4, 256, 64, True, True),
]:
    pad = 256 if D > 128 else 128
    slots, most_queries = slot_attention.block_sizes(4 if DTYPE == "fp32" else 2, pad)
    build(
        slot_attention._part,
        H=8, G=G, D=D, PAD=pad, QUERIES=min(queries, most_queries), SLOTS=slots, PARTS=33,
        IS_TREE=is_tree, HAS_WINDOW=has_window, **({} if is_tree else TREE_ONLY),
    )
build(slot_attention._together, Q=32, D=128, PAD=128, PARTS=33)
build(layer_steps._turn_and_keep, Q=32, H=8, D=128, HALF=64, HAS_NORM=True)
build(layer_steps._turn_and_keep, Q=32, H=8, D=128, HALF=64, HAS_NORM=False, head_norm=None)
build(layer_steps._gated, BLOCK=layer_steps._BLOCK)
parts = 256  # of a vocabulary of 262,144 tokens
digit = dict(SHIFT=sampling._SHIFTS[-1], BITS=sampling._BITS, IS_FIRST=False)
build(sampling._histogram, SAMPLING, BLOCK=sampling._BLOCK, **digit)
build(sampling._narrow, SAMPLING, TOP_P=0.9, PAD=parts, **digit)
build(sampling._keep, SAMPLING, BLOCK=sampling._BLOCK)
for is_logits in (True, False):
    drawn = {**SAMPLING, "x": POINTERS["x"] if is_logits else "*fp32"}
    build(sampling._race, drawn, PURPOSE=0, IS_LOGITS=is_logits, BLOCK=sampling._BLOCK)
build(sampling._winner, {**SAMPLING, "out": "*i64"}, PAD=parts)
build(sampling._uniform, SAMPLING, PURPOSE=0, HAS_TURNS=True, BLOCK=sampling._BLOCK)
build(sampling._exponential, SAMPLING, PURPOSE=0, BLOCK=sampling._BLOCK)
"""
# Bytes of a program, by compute capability (CUDA programming guide, technical specifications).
MAX_SHARED = {"80": 163 * 1024, "86": 99 * 1024, "89": 99 * 1024, "90": 227 * 1024}


# The interpreter runs code that the compiler refuses, such as two types of a name in a loop.
@pytest.mark.parametrize(
    ("dtype", "capabilities"),
    [
        ("bf16", ["90"]),
        pytest.param("bf16", list(MAX_SHARED), marks=pytest.mark.long),
        pytest.param("fp32", list(MAX_SHARED), marks=pytest.mark.long),
    ],
    ids=["bf16", "bf16-all", "fp32-all"],
)
def test_kernels_compile_and_fit_the_shared_memory(dtype, capabilities):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, dtype, *capabilities],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    print(done.stdout)
    assert len(lines) == len(capabilities) * 16
    for _, capability, has_code, shared in lines:
        assert has_code == "True"
        assert int(shared) <= MAX_SHARED[capability]
