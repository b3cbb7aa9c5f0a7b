"""A fleet under random, seeded faults: `python -m tests.chaos`."""
