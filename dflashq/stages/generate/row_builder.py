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
from dflashq.ledger.kept_codec import decode_generation, generation_field
from dflashq.stages.generate.settled_prompt import SettledPrompt

log = logging.getLogger(__name__)


class RowError(DflashqError):
    """No row can be composed of a prompt's answers, though their verdict is accepted."""

    def __init__(self, index: int, cause: BaseException) -> None:
        self.index = index
        super().__init__(
            f"its row could not be composed: {type(cause).__name__}: {str(cause)[:500]}"
        )


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """Composes rows one at a time: the long answers of a whole batch, as text, fill the memory.

    `prompts` are those of the batch by index, `entries` its finished work by kept field, `attempt`
    the number of the attempt that commits it. Safe from any thread; the same prompt always gives
    the same row.
    """

    renderer: ChatRenderer
    spec: RunSpec
    attempt: int
    prompts: Mapping[int, Prompt]
    entries: Mapping[str, bytes | Generation]

    def line(self, settled: SettledPrompt) -> bytes:
        """The encoded row of a settled prompt; KeyError when its work was not kept.

        RowError when no row can be composed of an accepted prompt. A rejected prompt always has a
        row, without its answers where they cannot be written.
        """
        fields = (generation_field(settled.index, kept_slot) for kept_slot in settled.slots)
        payloads = [self.entries[field] for field in fields]
        try:
            return self._line(settled, payloads)
        except (OSError, MemoryError):
            raise
        except BaseException as exc:
            if not (isinstance(exc, Exception) or is_panic(exc)):
                raise
            if settled.verdict.accepted:
                raise RowError(settled.index, exc) from exc
            log.warning("rejected without its answers: index=%d: %s", settled.index, exc)
            return self._line_without_answers(settled)

    def _line(self, settled: SettledPrompt, payloads: list[bytes | Generation]) -> bytes:
        prompt, markers = self.prompts[settled.index], self.renderer.markers()
        generations = [_generation(payload) for payload in payloads]
        answers = [
            split_answer(
                OutputSegments(generation.output_array, markers, thinking=self.spec.thinking),
                self.renderer.decode,
                prompt.tools,
            )
            for generation in generations
        ]
        row = sample_row(
            prompt=prompt,
            messages=conversation(prompt, answers),
            generations=generations,
            reasoning_tokens=settled.counts["reasoning_tokens"],
            attempt=self.attempt,
            retries=list(settled.retries),
        )
        if not settled.verdict.accepted:
            row = rejected_row(row, settled.verdict)
        return codec.encode_generated(row)

    def _line_without_answers(self, settled: SettledPrompt) -> bytes:
        row = sample_row(
            prompt=self.prompts[settled.index],
            messages=[],
            generations=[],
            reasoning_tokens=0,
            attempt=self.attempt,
            retries=[],
        )
        return codec.encode_generated(rejected_row(row, settled.verdict))


def _generation(payload: bytes | Generation) -> Generation:
    return payload if isinstance(payload, Generation) else decode_generation(payload)
