"""Runs in the trainers' environment: what SpecForge's prompt builder makes of a file, as JSON."""

import json
import sys

from specforge.data.loss_mask import has_consecutive_supervised_tokens
from specforge.data.prompt_builder import prepare_prompt_tasks

source, target = sys.argv[1:]
tasks = prepare_prompt_tasks(
    source,
    None,
    chat_template=None,
    max_length=4096,
    is_preformatted=False,
    train_only_last_turn=False,
    cache_dir=None,
    cache_key=None,
    num_proc=None,
    min_loss_tokens=2,
    loss_mask_filter=has_consecutive_supervised_tokens,
)
with open(target, "w") as out:
    json.dump([task["payload"] for task in tasks], out)
