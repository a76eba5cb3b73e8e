"""A draft for the embedded target with another tokenizer: `python -m tools.demo.other_draft`.

It starts as the embedded draft under another vocabulary and is trained for a few minutes.
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.shipped import PACKAGE
from tools.demo.corpus import DRAFT_START, END, SEED, training_conversations
from tools.demo.corpus.grammar import Dice
from tools.demo.documents import batches, encode
from tools.demo.tokenizer import CHAT_TEMPLATE, END_OF_TEXT, TURN_END, TURN_START
from tools.demo.trainer import answer_loss
from tools.training.trainer import MuonAdamW, Schedule, one_by_one

VOCAB_SIZE = 1536
TOKENS_PER_STEP = 1408
PAIRINGS = """\
targets:
  demo:
    model: demo:target
    workloads: demo
    drafters:
      same: {method: draft_model, model: demo:draft}
      intersection: {method: token_intersection, model: ./draft}
      strings: {method: string_match, model: ./draft}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--steps", type=int, default=800, help="training steps (800)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = train_tokenizer()
    draft = revocabularied(tokenizer)
    train(draft, tokenizer, arguments.steps)
    folder = arguments.out / "draft"
    draft.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    pairings = arguments.out / "pairings.yaml"
    pairings.write_text(PAIRINGS)
    print(f"measure it: specbench run demo --pairings {pairings}")


def train_tokenizer(conversations: int = 1000) -> PreTrainedTokenizerFast:
    """As SentencePiece makes them: pieces that begin with a space, bytes for what has none."""
    bpe = Tokenizer(models.BPE(byte_fallback=True))
    bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    bpe.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[
            *(END_OF_TEXT, TURN_START, TURN_END),
            *(f"<0x{byte:02X}>" for byte in range(256)),
        ],
        show_progress=False,
    )
    texts = (
        message["content"]
        for conversation in training_conversations(SEED + 1, 0, conversations)
        for message in conversation.messages()
    )
    bpe.train_from_iterator(texts, trainer)
    # The trainer knows no other way to put bytes into the vocabulary than as special tokens.
    content = json.loads(bpe.to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    bpe = Tokenizer.from_str(json.dumps(content))
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def revocabularied(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The embedded draft; a new token starts as the mean of the old ones that spell it."""
    folder = PACKAGE / "demo" / "models" / "draft"
    draft = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    before = AutoTokenizer.from_pretrained(folder)
    old = draft.get_input_embeddings().weight.detach()
    rows = [
        old[before(tokenizer.decode([i]), add_special_tokens=False)["input_ids"] or [0]].mean(0)
        for i in range(len(tokenizer))
    ]
    draft.resize_token_embeddings(len(tokenizer))
    with torch.no_grad():
        draft.get_input_embeddings().weight.copy_(torch.stack(rows))
    return draft


def train(draft: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
    """On the answers that the embedded draft was distilled on; without the target."""
    conversations = training_conversations(SEED, DRAFT_START, END)
    documents = [encode(conversation, tokenizer) for conversation in conversations]
    rows = batches(documents, TOKENS_PER_STEP, Dice(SEED, "other draft", 0))
    schedule = Schedule(steps=steps, muon_lr=4e-3, adamw_lr=2e-3)
    parameters = dict(draft.named_parameters())
    optimizer = MuonAdamW(parameters, len(tokenizer), orthogonalize=one_by_one)
    for step in range(steps):
        loss = answer_loss(draft, rows[step % len(rows)])
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        factor = schedule.factor(step)
        optimizer.step(schedule.muon_lr * factor, schedule.adamw_lr * factor)
        draft.zero_grad(set_to_none=True)
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
