"""The rows of a batch, composed when it is committed from what was kept of each prompt."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from dflashq.core import codec
from dflashq.core.errors import DflashqError, is_panic
from dflashq.core.generations.answer_text import split_answer
from dflashq.core.generations.sample_rows import conversation, rejected_row, sample_row
from dflashq.core.generations.segments import OutputSegments
from dflashq.core.model import Generation, Prompt, RunSpec
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.ledger.kept_codec import generation_field, read_generation
from dflashq.stages.generate.settled_prompt import SettledPrompt

log = logging.getLogger(__name__)


class RowError(DflashqError):
    """No row can be made of a prompt's answers, though they were judged good."""

    def __init__(self, index: int, cause: BaseException) -> None:
        self.index = index
        super().__init__(
            f"its row could not be composed: {type(cause).__name__}: {str(cause)[:500]}"
        )


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """Composes rows one at a time: a batch of long answers, as text, would fill the memory.

    `entries` is what is finished of the batch, `attempt` the number of the attempt that commits it.
    Safe from any thread, and to repeat: the same row every time.
    """

    renderer: ChatRenderer
    spec: RunSpec
    attempt: int
    prompts: Mapping[int, Prompt]
    entries: Mapping[str, bytes | Generation]

    def line(self, one: SettledPrompt) -> bytes:
        """The encoded row of a settled prompt; KeyError when its work was not kept.

        RowError when no row can be made of an accepted one. A rejected prompt always has a row: at
        worst without its answers.
        """
        fields = (generation_field(one.index, slot) for slot in one.slots)
        kept = [self.entries[field] for field in fields]
        try:
            return self._line(one, kept)
        except (OSError, MemoryError):
            raise
        except BaseException as exc:
            if not (isinstance(exc, Exception) or is_panic(exc)):
                raise
            if one.verdict.accepted:
                raise RowError(one.index, exc) from exc
            log.warning("rejected without its answers: index=%d: %s", one.index, exc)
            bare = sample_row(self.prompts[one.index], [], [], 0, self.attempt, [])
            return codec.encode_generated(rejected_row(bare, one.verdict))

    def _line(self, one: SettledPrompt, kept: list[bytes | Generation]) -> bytes:
        prompt, markers = self.prompts[one.index], self.renderer.markers()
        generations = [self._generation(payload) for payload in kept]
        parts = [
            split_answer(
                OutputSegments(generation.output_array, markers, thinking=self.spec.thinking),
                self.renderer.decode,
                prompt.tools,
            )
            for generation in generations
        ]
        row = sample_row(
            *(prompt, conversation(prompt, parts), generations),
            *(one.counts["reasoning_tokens"], self.attempt, list(one.retries)),
        )
        return codec.encode_generated(
            row if one.verdict.accepted else rejected_row(row, one.verdict)
        )

    @staticmethod
    def _generation(found: bytes | Generation) -> Generation:
        return found if isinstance(found, Generation) else read_generation(found)
