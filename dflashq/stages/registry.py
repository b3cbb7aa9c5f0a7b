"""The stages that a worker without an engine can do, each with what makes it."""

from __future__ import annotations

from collections.abc import Callable

from dflashq.blobs.s3 import Blobs
from dflashq.core.stage_spec import ROWS
from dflashq.ledger import Ledger
from dflashq.stages.base import Stage
from dflashq.stages.rows.stage import RowsStage

BUILDERS: dict[str, Callable[[Ledger, Blobs], Stage]] = {ROWS.name: RowsStage}
