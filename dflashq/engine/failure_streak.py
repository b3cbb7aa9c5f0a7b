"""Is a failure the prompt's or the engine's? What hits every request in a row is the engine's.

Pure: the caller brings the time, in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

STREAK, LIMITED_STREAK = 8, 3  # failures in a row; so few where the server itself says: later
LEAST_S = 3.0  # a streak that is shorter may be a connection that was lost for all at once
# A request that has run so much longer than those that failed is being served.
OUTLIVES, OUTLIVES_LEAST_S = 3.0, 2.0


class FailureStreak:
    """The failures of one engine's requests since one of them was answered.

    `answered` counts the answers so far. Of the streak: `words` is what the last failure said,
    `retry_after_s` what it asked for, `longest_s` how long the slowest of them took.
    """

    def __init__(self) -> None:
        self.answered = 0
        self.words = ""
        self.retry_after_s = 0.0
        self._senders: set[Hashable] = set()
        self._count = 0
        self._since_s = 0.0
        self.longest_s = 0.0

    @property
    def senders(self) -> int:
        """How many different senders failed in the streak."""
        return len(self._senders)

    def clear(self) -> None:
        """Another engine, or the same one answers: begin anew. The count of answers stays."""
        self.words, self.retry_after_s = "", 0.0
        self._senders.clear()
        self._count, self.longest_s = 0, 0.0

    def note_answer(self) -> None:
        """A request was answered: the streak is over."""
        self.answered += 1
        if self._count:
            self.clear()

    def note_failure(
        self, now_s: float, sender: Hashable, words: str, *, took_s: float, retry_after_s: float
    ) -> None:
        """A request of `sender` (a prompt, or a probe) failed after `took_s`."""
        if not self._count:
            self._since_s = now_s
        self._count += 1
        self._senders.add(sender)
        self.longest_s = max(self.longest_s, took_s)
        self.words, self.retry_after_s = words, retry_after_s

    def hits_everything(self, now_s: float, running_since_s: Iterable[float]) -> bool:
        """Whether the engine fails whatever it is asked.

        `running_since_s` says when each request that is under way was sent: one that has lasted
        much longer than those that failed is being served, so the engine does work.
        """
        if len(self._senders) < 2:
            return False
        # A server that names a time means everybody, whatever it goes on with meanwhile.
        if self.retry_after_s and self._count >= LIMITED_STREAK:
            return True
        if self._count < STREAK and now_s - self._since_s < 3 * LEAST_S:
            return False
        if now_s - self._since_s < LEAST_S:
            return False
        lasting_s = max(OUTLIVES_LEAST_S, OUTLIVES * self.longest_s)
        return all(now_s - since_s < lasting_s for since_s in running_since_s)
