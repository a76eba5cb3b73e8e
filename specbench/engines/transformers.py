"""The methods of transformers, and its export, a program that calls `generate`. Without torch.

Sources: generation/configuration_utils.py and candidate_generator.py of 5.17 to 5.23. `generate`
decodes one request at a time; the assistant reads K from its generation config.
transformers_engine.py runs it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.engines.deployment import (
    ConfigFile,
    Deployment,
    Export,
    dotted,
    exported,
    model_name,
    newer_release_note,
    read_release,
    recurrent_type,
    settings_lost,
)
from specbench.errors import UsageError
from specbench.files.model_spec import ModelSpec
from specbench.records import ASSISTED_DEFAULT
from specbench.records.keys import GENERATE

# Methods without drafts, at K = 0; the first is the baseline of the others.
STATIC = "generate_static"
BASELINES = (GENERATE, STATIC)

# The most tokens per round that `assisted_default` drafts, unless the draft model's checkpoint has
# another number; the engine's record contains the number used.
ASSISTED_DEFAULT_K = 20

# Our drafting methods that transformers also has, with its names for them.
ASSISTED, LOOKUP = "assisted", "prompt_lookup"
COUNTERPARTS: Mapping[str, tuple[str, ...]] = {
    "draft_model": (ASSISTED, ASSISTED_DEFAULT),
    "ngram": (LOOKUP,),
}

CONFIG_NAME = "generate.py"

_OLDEST, _NEWEST = (5, 17), (5, 24)
_SHORT_CONVOLUTIONS = ("lfm2", "lfm2_moe", "lfm3")  # tested: same text as without drafts
# Methods for different tokenizers: the first at temperature 0, the second above.
_RETOKENIZING = ("string_match", "token_intersection")
# Arguments of `generate` that turn drafting on.
_MODEL, _LOOKUP = "assistant_model", "prompt_lookup_num_tokens"
_MTP, _LAYERS = "use_mtp", "assistant_early_exit"
_ARGUMENTS = {
    **dict.fromkeys(("draft_model", "dflash", "gemma4_mtp", *_RETOKENIZING), _MODEL),
    "ngram": _LOOKUP,
    "mtp": _MTP,
    "self_speculation": _LAYERS,
}

_PROGRAM = """\
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

prompt = " ".join(sys.argv[1:]) or "Hello"
device = "cuda" if torch.cuda.is_available() else "cpu"
tokenizer = AutoTokenizer.{tokenizer}
target = AutoModelForCausalLM.{target}
{assistant}\
settings = GenerationConfig({settings})
messages = [{{"role": "user", "content": prompt}}]
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
).to(target.device)
output = target.generate(**inputs, generation_config=settings{arguments})
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
"""
_ASSISTANT = """\
assistant = AutoModelForCausalLM.{model}
assistant.generation_config = GenerationConfig({settings})
"""
_RESIZED = "assistant.resize_token_embeddings({}, mean_resizing=False)\n"
_ASSISTANTS_TOKENIZER = """\
assistant_tokenizer = AutoTokenizer.from_pretrained({source})
"""


def vocabulary_notes(deployment: Deployment) -> list[str]:
    """A note that the draft model is resized, because generation/utils.py treats unequal vocabulary
    sizes as different tokenizers."""
    if sizes := deployment.unequal_vocab_sizes:
        return [f"{sizes}: transformers requires equal sizes, so the draft model is resized"]
    return []


def export(deployment: Deployment, version: str | None, config_name: str) -> Export:
    """Export a deployment as a program that reads its prompt from the command line."""
    release = read_release("transformers", version, oldest=_OLDEST, newest=_NEWEST)
    lost = newer_release_note(release, _NEWEST) + settings_lost(deployment)
    deployment, tiers_lost = deployment.flat()
    lost += tiers_lost
    if deployment.k:
        if deployment.simulated is not None:
            raise UsageError(
                "--simulate-acceptance: transformers verifies every draft token; use vllm, sglang, "
                "tensorrt_llm or llama_cpp, or measure with --engine builtin"
            )
        _refuse_states(deployment.target)
        lost += _lost(deployment)
        deployment = deployment.noting(vocabulary_notes(deployment))
    program = ConfigFile(config_name, _program(deployment))
    return exported(
        deployment,
        "transformers",
        dotted(release),
        ("python", program.name, "Hello"),
        lost,
        program,
    )


def adaptive(
    deployment: Deployment,  # noqa: ARG001
    version: str | None,  # noqa: ARG001
    program: Path | None,  # noqa: ARG001
) -> dict[str, tuple[str, ...]]:
    """None: K by its own rule is the method assisted_default, which is always measured."""
    return {}


def _refuse_states(target: ModelSpec) -> None:
    """Raise UsageError if `generate` cannot verify drafts: its cache can remove tokens only from
    attention and short convolutions."""
    if recurrent_type(target) not in (None, *_SHORT_CONVOLUTIONS):
        raise UsageError(
            f"transformers cannot verify drafts with {target.source}: it has recurrent layers, "
            "whose state generate() cannot roll back; export it for vllm, or with -k 0"
        )


def _program(deployment: Deployment) -> str:
    settings: dict[str, Any] = {"max_new_tokens": 256, "do_sample": deployment.temperature > 0}
    if deployment.temperature > 0:
        settings |= {"temperature": deployment.temperature, "top_k": 0, "top_p": 1.0}
    drafting: dict[str, Any] = {
        "num_assistant_tokens": deployment.k,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": deployment.p_min,
    }
    assistant, arguments = "", ""
    argument = deployment.named("transformers", _ARGUMENTS) if deployment.k else None
    if argument == _MODEL:
        model = _loading(deployment, is_drafter=True)
        assistant = _ASSISTANT.format(model=model, settings=_keywords(drafting))
        if deployment.vocab_sizes and deployment.unequal_vocab_sizes:
            assistant += _RESIZED.format(deployment.vocab_sizes[0])
        arguments = f", {_MODEL}=assistant"
        if deployment.method in _RETOKENIZING:
            assistant += _ASSISTANTS_TOKENIZER.format(source=_retokenized(deployment))
            arguments += ", tokenizer=tokenizer, assistant_tokenizer=assistant_tokenizer"
        if deployment.method == "dflash":
            settings["speculation_type"] = "dflash"
    elif argument == _LOOKUP:
        settings[_LOOKUP] = deployment.k
        settings["max_matching_ngram_size"] = deployment.setting("max_ngram")
    elif argument == _MTP:
        settings |= {_MTP: True, "num_assistant_tokens": deployment.k}
    elif argument == _LAYERS:
        settings |= {_LAYERS: _early_exit(deployment), **drafting}
    return _PROGRAM.format(
        tokenizer=f"from_pretrained({_source(deployment.target, {})})",
        target=_loading(deployment, is_drafter=False),
        assistant=assistant,
        settings=_keywords(settings),
        arguments=arguments,
    )


def _retokenized(deployment: Deployment) -> str:
    """The source of the assistant's tokenizer; UsageError if transformers uses another method."""
    if deployment.method != _RETOKENIZING[deployment.temperature > 0]:
        deployment.refuse(
            "transformers",
            "string_match at temperature 0 and token_intersection above it",
        )
    return _source(deployment.head, {})


def _early_exit(deployment: Deployment) -> int:
    num_layers = deployment.whole("num_layers")
    if num_layers == 0:
        raise UsageError(
            f"{deployment.pairing.name}: transformers needs the number of layers that draft; add "
            "num_layers under the drafter's `parameters:`"
        )
    return num_layers


def _loading(deployment: Deployment, *, is_drafter: bool) -> str:
    """The call that loads a model, onto one device unless pairings.yaml has a device_map."""
    spec = deployment.head if is_drafter else deployment.target
    keywords: dict[str, Any] = {"dtype": deployment.dtype or spec.dtype}
    if spec.device_map:
        keywords["device_map"] = spec.device_map
    load = f"from_pretrained({_source(spec, keywords)})"
    return load if spec.device_map else f"{load}.to(device)"


def _source(spec: ModelSpec, keywords: dict[str, Any]) -> str:
    """Arguments that locate the files of a model or of its tokenizer."""
    named: dict[str, Any] = {"revision": spec.revision} if spec.revision else {}
    if spec.trust_remote_code:
        named["trust_remote_code"] = True
    return ", ".join(filter(None, (repr(model_name(spec)), _keywords(named | keywords))))


def _keywords(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _lost(deployment: Deployment) -> list[str]:
    lost = ["more than one request at a time: assisted generation takes a batch of one"]
    lost += deployment.tree_lost
    if deployment.method in _RETOKENIZING:
        lost.append(
            "models of equal vocab_size with different tokenizers: transformers assumes equal "
            "tokenizers and stops"
        )
    if deployment.method == "ngram":
        lost.append(
            f"min_ngram {deployment.setting('min_ngram')}: prompt lookup tries suffixes down to "
            "one token and copies after their first occurrence, specbench after the last"
        )
    return lost
