"""Runs in the trainers' environment: SpecForge's own rendering of our conversations, as JSON."""

import json
import sys

from specforge.data.loss_mask import has_consecutive_supervised_tokens
from specforge.data.prompt_builder import prepare_prompt_tasks
from transformers import AutoTokenizer

source, model, target = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model)
tasks = prepare_prompt_tasks(
    source,
    tokenizer,
    chat_template="qwen3-thinking",
    max_length=4096,
    is_preformatted=False,
    train_only_last_turn=True,
    cache_dir=None,
    cache_key=None,
    num_proc=None,
    min_loss_tokens=2,
    loss_mask_filter=has_consecutive_supervised_tokens,
)
supervised = []
for task in tasks:
    payload = task["payload"]
    ids = [i for i, bit in zip(payload["input_ids"], payload["loss_mask"], strict=True) if bit]
    supervised.append(tokenizer.decode(ids))
with open(target, "w") as out:
    json.dump(supervised, out)
