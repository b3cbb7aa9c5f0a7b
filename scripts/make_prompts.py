"""Writes N synthetic prompts in ShareGPT shape as JSON lines, the same for the same N and seed.

python scripts/make_prompts.py N OUT [--seed S]
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

DOMAINS = {"coding": 46, "general": 26, "math": 11, "agent": 9, "code-other": 7}
SUBJECTS = {
    "coding": ["a list", "a binary tree", "a date string", "a matrix", "a linked list"],
    "general": ["a garden", "a night train", "a small bakery", "a lighthouse", "a chess club"],
    "math": ["two trains", "three pumps", "a box of pencils", "a sum of money", "a triangle"],
    "agent": ["a hotel room", "a parcel", "a calendar", "the weather", "a bank transfer"],
    "code-other": ["a log file", "a SQL table", "a folder of images", "a CSV file", "a regex"],
}
ORDERS = {
    "coding": "Write a Python function that works on {subject} and explain its running time.",
    "general": "Tell me three things that matter when somebody looks after {subject}.",
    "math": "A question is about {subject}: {a} of one kind and {b} of another. How many in all?",
    "agent": "Find out what I need to know about {subject} number {a} and tell me what you did.",
    "code-other": "Give me one shell command for {subject} with {a} lines, and explain each flag.",
}
DETAILS = [
    "Keep it short.",
    "Use plain words.",
    "Name the edge cases.",
    "Think about empty input first.",
    "Show one example with numbers.",
    "Say what could go wrong.",
    "Answer for somebody who is new to this.",
]


def conversations(count: int, seed: int = 0) -> Iterator[dict[str, object]]:
    """`count` rows; every prompt has its own number in it, so that none repeats."""
    draw = random.Random(seed)
    domains, shares = list(DOMAINS), list(DOMAINS.values())
    for number in range(count):
        domain = draw.choices(domains, shares)[0]
        order = ORDERS[domain].format(
            subject=draw.choice(SUBJECTS[domain]), a=draw.randint(2, 99), b=draw.randint(2, 99)
        )
        text = f"{order} {' '.join(draw.sample(DETAILS, 3))} (request {number})"
        turns = [{"from": "human", "value": text}, {"from": "gpt", "value": "An older answer."}]
        if draw.random() < 0.1:
            turns.append(
                {"from": "human", "value": f"And what changes with {draw.choice(DETAILS)}"}
            )
        yield {
            "id": f"synthetic-{number}",
            "source": "synthetic",
            "domain": domain,
            "conversations": turns,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Write synthetic prompts in ShareGPT shape.")
    parser.add_argument("count", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with args.out.open("w", encoding="utf-8", newline="\n") as out:
        for row in conversations(args.count, args.seed):
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"wrote {args.count} prompts to {args.out}")


if __name__ == "__main__":
    main()
