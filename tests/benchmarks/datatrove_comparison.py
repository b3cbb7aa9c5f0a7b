"""`python datatrove_comparison.py URL COUNT IN_FLIGHT FOLDER`: datatrove on the same server.

It answers the same prompts.

Runs in whatever Python has datatrove; it imports nothing of ours. An environment for it:
`pip install "datatrove[io]==0.10.1" httpx aiofiles aiosqlite xxhash orjson`. Prints one JSON
list: seconds of the run, CPU seconds of the process in all, and without its imports.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

NAME = "${rank}_chunk_${chunk_index}.jsonl"


def main(url: str, count: int, in_flight: int, folder: str) -> None:
    """Generate for every prompt and write the answers down, as its users do."""
    from datatrove.data import Document  # noqa: PLC0415 - seconds of imports
    from datatrove.pipeline.inference.run_inference import (  # noqa: PLC0415
        InferenceConfig,
        InferenceRunner,
    )
    from datatrove.pipeline.writers import JsonlWriter  # noqa: PLC0415

    async def rollout(document: Any, generate: Any) -> Any:
        return await generate({"messages": [{"role": "user", "content": document.text}]})

    runner = InferenceRunner(
        rollout_fn=rollout,
        config=InferenceConfig(
            server_type="endpoint",
            endpoint_url=url,
            model_name_or_path="emulated",
            max_concurrent_generations=in_flight,
            default_generation_params={"max_completion_tokens": 4096},
        ),
        output_writer=JsonlWriter(f"{folder}/out", output_filename=NAME),
        checkpoints_local_dir=f"{folder}/checkpoints",
        records_per_chunk=count,
    )
    documents = [Document(text=f"What is {n} plus 0?", id=f"p{n}") for n in range(count)]
    began, imported = time.monotonic(), time.process_time()
    runner.run(documents, rank=0, world_size=1)
    used = time.process_time()
    print(json.dumps([time.monotonic() - began, used, used - imported]))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
