"""A tokenizer folder of a few kilobytes, with the markers and template of a thinking model."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
TEMPLATE = """
{%- if messages | selectattr('role', 'equalto', 'system') | list | length > 1
     or (messages | selectattr('role', 'equalto', 'system') | list
         and messages[0].role != 'system') %}
{{- raise_exception('System message must be at the beginning.') }}{%- endif %}
{%- if tools %}{{- '<|im_start|>tools\n' }}{%- for t in tools %}{{- t | tojson }}{%- endfor %}
{{- '<|im_end|>\n' }}{%- endif %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.reasoning_content %}{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}{{- '<tool_call>' + call.function.name }}
{%- for key, value in call.function.arguments | items %}{{- ' ' + key + '=' + value | string }}
{%- endfor %}{{- '</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '\n</think>\n\n' }}{%- endif %}
{%- endif %}"""


def save_tiny_tokenizer(folder: Path, *, padded_vocab: int = 320) -> Path:
    """Write the tokenizer (one id a byte, and the markers) and its two configurations."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    inner.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
    )
    tokenizer.save_pretrained(folder)
    end = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    (folder / "config.json").write_text(json.dumps({"text_config": {"vocab_size": padded_vocab}}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    return folder
