"""Whether the prompts or the engine are at fault for failures: the engine if all requests fail.

Pure: the caller passes the time, in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

# Failures in a row that blame the engine; fewer where the server itself asks to come later.
STREAK, LIMITED_STREAK = 8, 3
LEAST_S = 3.0  # a shorter streak may be one lost connection that many requests shared
# A request that has run this many times longer than the failed ones, and at least so long, is
# being served.
OUTLIVES, OUTLIVES_LEAST_S = 3.0, 2.0


class FailureStreak:
    """The failures of one engine's requests since the last answer.

    `answered` counts all answers so far. Of the current streak, `words` is the message of the last
    failure, `retry_after_s` its Retry-After, and `longest_s` how long the slowest failure took.
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
        """How many different senders have failed in the streak."""
        return len(self._senders)

    def clear(self) -> None:
        """End the streak: the engine answers, or it is another one. `answered` stays."""
        self.words, self.retry_after_s = "", 0.0
        self._senders.clear()
        self._count, self.longest_s = 0, 0.0

    def note_answer(self) -> None:
        """Count an answer, which ends the streak."""
        self.answered += 1
        if self._count:
            self.clear()

    def note_failure(
        self, now_s: float, sender: Hashable, words: str, *, took_s: float, retry_after_s: float
    ) -> None:
        """Count a failure, after `took_s` seconds, of a request of `sender` (prompt or probe)."""
        if not self._count:
            self._since_s = now_s
        self._count += 1
        self._senders.add(sender)
        self.longest_s = max(self.longest_s, took_s)
        self.words, self.retry_after_s = words, retry_after_s

    def hits_everything(self, now_s: float, running_since_s: Iterable[float]) -> bool:
        """Whether the engine fails every request.

        `running_since_s`: when each request in flight was sent. One that has run much longer than
        the failed ones is being served, so the engine does work.
        """
        if len(self._senders) < 2:
            return False
        # A Retry-After is meant for everybody, even while other requests are still served.
        if self.retry_after_s and self._count >= LIMITED_STREAK:
            return True
        if self._count < STREAK and now_s - self._since_s < 3 * LEAST_S:
            return False
        if now_s - self._since_s < LEAST_S:
            return False
        lasting_s = max(OUTLIVES_LEAST_S, OUTLIVES * self.longest_s)
        return all(now_s - since_s < lasting_s for since_s in running_since_s)
