"""Build the tiny thinking model of the tests: `build_tiny_model.py OUT [--steps N]`.

Run by the engine's Python. Makes a byte-level tokenizer with Qwen3's markers and trains a Qwen3
of about 200,000 parameters until it thinks, closes its thinking, answers and ends its turn; a few
minutes on two cores. The same seed gives the same tokenizer; weights may differ in the last bits
from machine to machine.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import torch
from tiny_lessons import Lesson, corpus, lesson, long_lesson
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SEED = 20_260
VOCABULARY = 1_000
CONTEXT = 4_096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
WORDS = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+")
BATCH, LONG_BATCH, LONG_EVERY = 16, 3, 8
RATE = 6e-3


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE over what the lessons say, so that any text can be encoded."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(corpus(random.Random(SEED)), trainer)
    core.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    core.add_tokens([AddedToken(s, special=False, normalized=False) for s in MARKUP])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=Path(__file__).with_name("tiny_template.jinja").read_text(),
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Random weights; three layers, so that it can copy a word out of the question."""
    torch.manual_seed(SEED)
    config = Qwen3Config(
        vocab_size=(len(tokenizer) + 63) // 64 * 64,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).float()
    model.generation_config.update(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        do_sample=True,
        temperature=1.0,
        top_k=20,
        top_p=0.95,
    )
    return model


def encode(tokenizer: PreTrainedTokenizerFast, example: Lesson) -> tuple[list[int], list[int]]:
    """(prompt ids, ids to learn) of a lesson, as the engine would see them."""
    prompt = tokenizer.apply_chat_template(
        example.messages,
        tools=example.tools,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=example.thinking,
    )
    thought = f"{example.thought}\n</think>\n\n" if example.thinking else ""
    return tokenizer.encode(prompt), tokenizer.encode(f"{thought}{example.answer}<|im_end|>")


def batch(tokenizer: PreTrainedTokenizerFast, lessons: list[Lesson]) -> dict[str, torch.Tensor]:
    """Padded on the right; labels only where the model speaks."""
    pairs = [encode(tokenizer, example) for example in lessons]
    width = max(len(p) + len(a) for p, a in pairs)
    ids = torch.full((len(pairs), width), tokenizer.pad_token_id)
    labels = torch.full((len(pairs), width), -100)
    mask = torch.zeros((len(pairs), width), dtype=torch.long)
    for row, (prompt, answer) in enumerate(pairs):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
        mask[row, :end] = 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
    """Every eighth batch is of long prompts, so that length does not undo the format."""
    rng, began = random.Random(SEED), time.monotonic()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    model.train()
    for step in range(steps):
        long = step % LONG_EVERY == LONG_EVERY - 1
        make, size = (long_lesson, LONG_BATCH) if long else (lesson, BATCH)
        loss = model(**batch(tokenizer, [make(rng) for _ in range(size)])).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}, {time.monotonic() - began:.0f} s")
            sys.stdout.flush()


def main() -> None:
    """Train, then save in bfloat16."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    print(f"{len(tokenizer)} tokens, {sum(p.numel() for p in model.parameters())} parameters")
    train(model, tokenizer, options.steps)
    model.eval().to(torch.bfloat16).save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
