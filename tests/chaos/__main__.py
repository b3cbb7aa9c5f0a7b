"""`python -m tests.chaos`: see `tests.chaos.run`."""

from tests.chaos.run import main

main()
