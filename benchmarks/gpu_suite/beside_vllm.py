"""vLLM beside ours over the same shape and prompts without drafts, where it is installed."""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_suite.machine import Json, Machine, absent
from benchmarks.gpu_suite.stage import Stage
from specbench.stats.intervals import interval, speedup_ratio

LIMIT_S = 200.0
NUM_REQUESTS = 6
_ANSWER = "answer.json"
# In a process of its own: it takes the device as it likes, and gives it back. Weights are made up.
_PROGRAM = """
import json, sys, time
from pathlib import Path
from vllm import LLM, SamplingParams

def main():
    folder = Path(sys.argv[1])
    asked = json.loads((folder / "asked.json").read_text())
    llm = LLM(model=str(folder), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
              max_model_len=asked["max_model_len"], max_num_seqs=1)
    how = SamplingParams(temperature=0.0, max_tokens=asked["new_tokens"], ignore_eos=True,
                         detokenize=False)
    seconds = []
    for ids in asked["prompts"][:1] + asked["prompts"]:
        began_s = time.perf_counter()
        (result,) = llm.generate([{"prompt_token_ids": ids}], how, use_tqdm=False)
        seconds.append(time.perf_counter() - began_s)
        assert len(result.outputs[0].token_ids) == asked["new_tokens"]
    (folder / "answer.json").write_text(json.dumps(seconds[1:]))

if __name__ == "__main__":
    main()
"""


def beside_vllm(stage: Stage, machine: Machine) -> Json:
    """Seconds of whole requests at K = 0, ours first; then our memory is given back for theirs."""
    if find_spec("vllm") is None:
        return absent("vLLM is not installed")
    pair = stage.pair(machine)
    requests = pair.requests(NUM_REQUESTS, machine)
    engine = pair.builtin(machine)
    engine.generate(requests[0], engine.baseline)
    ours = [engine.generate(request, engine.baseline).total_s for request in requests]
    new_tokens, config = requests[0].max_new_tokens, pair.model.config
    prompts = [request.prompt_ids for request in requests]
    del engine, pair
    stage.clear()
    machine.give_back()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        config.save_pretrained(folder)
        asked = {"prompts": prompts, "new_tokens": new_tokens, "max_model_len": 1024}
        (folder / "asked.json").write_text(json.dumps(asked))
        (folder / "program.py").write_text(_PROGRAM)
        command = [sys.executable, str(folder / "program.py"), str(folder)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return absent(f"vLLM took more than {LIMIT_S:g} s")
        answer = folder / _ANSWER
        if done.returncode or not answer.exists():
            return absent(f"vLLM ended with {done.returncode}: {done.stderr[-400:]}")
        theirs = json.loads(answer.read_text())
    ratio = {
        "own": "builtin K=0",
        "peer": "vLLM",
        "decode": None,
        "end_to_end": asdict(interval(speedup_ratio(theirs, ours))),
    }
    return {"new_tokens": new_tokens, "ours_s": ours, "vllm_s": theirs, "ratios": [ratio]}
