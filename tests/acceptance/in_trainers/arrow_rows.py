"""Runs in the trainers' environment: the rows of a `save_to_disk` folder, as JSON."""

import json
import sys

from datasets import load_from_disk

source, target = sys.argv[1:]
rows = load_from_disk(source).with_format(None)
with open(target, "w") as out:
    json.dump([{k: row[k] for k in ("input_ids", "loss_mask")} for row in rows], out)
