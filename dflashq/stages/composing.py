"""The rows of a batch, composed when it is committed from what was kept of each prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dflashq.core import codec
from dflashq.core.answer import split_answer
from dflashq.core.model import Generation, Prompt, RunSpec
from dflashq.core.output import Output
from dflashq.core.sample import conversation, rejected_row, sample_row
from dflashq.engine.render import Renderer
from dflashq.ledger.entries import generation_field, read_generation
from dflashq.stages.settled import Settled


@dataclass(frozen=True, slots=True)
class Composer:
    """Composes rows one at a time: a batch of long answers, as text, would fill the memory.

    `entries` is what is finished of the batch, `attempt` the number of the attempt that commits it.
    Safe from any thread, and to repeat: the same row every time.
    """

    renderer: Renderer
    spec: RunSpec
    attempt: int
    prompts: Mapping[int, Prompt]
    entries: Mapping[str, bytes | Generation]

    def line(self, one: Settled) -> bytes:
        """The encoded row of a settled prompt; KeyError when its work was not kept."""
        prompt, markers = self.prompts[one.index], self.renderer.markers()
        fields = (generation_field(one.index, slot) for slot in one.slots)
        generations = [self._generation(self.entries[field]) for field in fields]
        parts = [
            split_answer(
                Output(generation.output_array, markers, thinking=self.spec.thinking),
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
