"""Runs in the trainers' environment: the tiny target's hidden states, as both trainers read them.

`specforge ROWS.jsonl MODEL OUT`: one .ckpt a row. `speculators ARROW MODEL OUT`: one .safetensors
a row of the Arrow folder, the last plane before the final norm.
"""

import json
import sys
from pathlib import Path

import torch
from datasets import load_from_disk
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

LAYERS = (0, 1)


@torch.no_grad()
def planes(model, ids):
    """[T, layers + 1, H]: the outputs of LAYERS, and of the last layer before the final norm."""
    last = []
    hook = model.model.layers[-1].register_forward_hook(
        lambda _module, _inputs, out: last.append(out[0] if isinstance(out, tuple) else out)
    )
    states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    hook.remove()
    chosen = [states[layer + 1][0] for layer in LAYERS]
    return torch.stack([*chosen, last[0].reshape(chosen[0].shape)], dim=1).to(torch.bfloat16)


def main():
    kind, source, folder, out = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    out = Path(out)
    out.mkdir(parents=True)
    if kind == "specforge":
        rows = [json.loads(line) for line in Path(source).read_text().splitlines()]
    else:
        rows = list(load_from_disk(source).with_format(None))
    for number, row in enumerate(rows):
        ids, mask = list(row["input_ids"]), list(row["loss_mask"])
        states = planes(model, ids)
        if kind == "specforge":
            features = {
                "input_ids": torch.tensor(ids),
                "loss_mask": torch.tensor(mask),
                "hidden_states": states[:, :-1].flatten(1).unsqueeze(0),
            }
            torch.save(features, out / f"data_{number:05d}.ckpt")
        else:
            save_file(
                {"token_ids": torch.tensor(ids), "hidden_states": states.contiguous()},
                out / f"hs_{number}.safetensors",
            )


main()
