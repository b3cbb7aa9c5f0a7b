"""Whether the engine answers at all: while it fails on everything, no other prompt is sent to it.

A circuit breaker over all requests of a worker: a closed gate, probes, an open gate.
https://martinfowler.com/bliki/CircuitBreaker.html. A probe asks again for the beginning of an
answer that was given before: when it is given, the prompts that fail are to blame.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager

from dflashq.core import metrics
from dflashq.core.backoff import delay_s
from dflashq.core.errors import EngineDownError, EngineError, EngineRequestError
from dflashq.engine.failure_streak import FailureStreak
from dflashq.engine.gate import Gate

log = logging.getLogger(__name__)

ENGINE_DOWN = "the engine is down"
ENGINE_SICK = "the engine answers with errors only"
PAUSE_S, PAUSE_CAP_S = 1.0, 60.0
PROBE_S = 30.0  # a probe that takes longer has failed
PROBE = "a probe"
_ADVICE = {
    401: ". Set its key in DFLASHQ_ENGINE_API_KEY",
    403: ". Set its key in DFLASHQ_ENGINE_API_KEY",
    404: ". Does this server speak the dialect of its profile?",
    405: ". Does this server speak the dialect of its profile?",
}


class _Request:
    """One request under way; compared by identity."""

    __slots__ = ("sender", "since_s")

    def __init__(self, sender: Hashable, since_s: float) -> None:
        self.sender, self.since_s = sender, since_s


class CircuitBreaker:
    """Counts what the requests of one worker meet. Belongs to the thread of the loop.

    `probe` sends one request of its own and raises EngineError when that fails. `limit` says how
    many may be in flight on a well engine. `restart(reason)` is called once the engine has been
    sick for `sick_s`; None for a server of others, which is waited for. `sick` (why, empty while it
    is well), `sick_since_ms` and `withdrawn` may be read from any thread.
    """

    def __init__(
        self,
        gate: Gate,
        probe: Callable[[], Awaitable[object]],
        note_error: Callable[[str], None],
        restart: Callable[[str], None] | None,
        sick_s: float,
    ) -> None:
        self._gate, self._probe = gate, probe
        self._note_error, self._restart, self._sick_s = note_error, restart, sick_s
        self._streak = FailureStreak()
        self._running: set[_Request] = set()
        self._recovery: asyncio.Task[None] | None = None
        self._sick_since_s = 0.0
        self.failed = 0
        self.sick = ""
        self.sick_since_ms = 0
        self.sicknesses = 0

    @property
    def answered(self) -> int:
        """How many requests of prompts were answered so far; `failed` is how many were not."""
        return self._streak.answered

    @property
    def withdrawn(self) -> bool:
        """The batches are better off with healthy workers."""
        return bool(self.sick)

    @contextmanager
    def request(self, sender: Hashable) -> Iterator[None]:
        """Watch one request of a prompt: how it ends is counted, whatever that is."""
        request = _Request(sender, time.monotonic())
        self._running.add(request)
        try:
            yield
        except (EngineRequestError, EngineDownError) as exc:
            self._running.discard(request)
            self.failed += 1
            self._note_failure(request, exc)
            raise
        else:
            self._streak.note_answer()
        finally:
            self._running.discard(request)

    async def probe_answers(self) -> bool:
        """Ask for a short answer; whether it came. A failure counts in the streak of all."""
        request = _Request(PROBE, time.monotonic())
        try:
            # wait_for of Python 3.11 swallows a cancellation that comes with the answer.
            async with asyncio.timeout(PROBE_S):
                await self._probe()
        except TimeoutError:
            self._note_failure(request, EngineRequestError(f"a probe took over {PROBE_S:.0f} s"))
        except EngineError as exc:
            self._note_failure(request, exc)
        except Exception as exc:
            # Nobody but the recovery could open the gate again: it must not end by this.
            log.exception("the probe of the engine broke")
            broken = f"a probe broke: {type(exc).__name__}: {exc}"
            self._note_failure(request, EngineRequestError(broken))
        else:
            return True
        return False

    def reset(self) -> None:
        """The engine went away, or another one is there: nothing that was seen counts any more."""
        if self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None
        self._streak.clear()
        self._recovered("another engine answers")

    # --- inside

    def _note_failure(self, request: _Request, exc: EngineError) -> None:
        now = time.monotonic()
        status = exc.status if isinstance(exc, EngineRequestError) else None
        metrics.ENGINE_FAILURES.add(status=str(status or "none"))
        self._streak.note_failure(
            now,
            request.sender,
            f"{str(exc).rstrip('.')}{_ADVICE.get(status or 0, '')}",
            took_s=now - request.since_s,
            retry_after_s=exc.retry_after_s if isinstance(exc, EngineRequestError) else 0.0,
        )
        if ENGINE_DOWN in self._gate.reasons:
            return  # its supervisor knows already
        if self._recovery is None and self._streak.hits_everything(now, self._since()):
            self._gate.close(ENGINE_SICK)
            self._recovery = asyncio.get_running_loop().create_task(self._recover())

    def _since(self) -> Iterator[float]:
        return (request.since_s for request in self._running)

    async def _recover(self) -> None:
        """Probe until one is answered; the gate stays closed meanwhile."""
        failures = 0
        while not await self.probe_answers():
            self._note_sickness()
            failures += 1
            pause_s = delay_s(failures, PAUSE_S, PAUSE_CAP_S)
            await self._pause(max(pause_s, self._streak.retry_after_s))
        self._recovery = None
        self._streak.clear()
        self._recovered("it answers what it answered before")

    def _note_sickness(self) -> None:
        words = f"{ENGINE_SICK}, the last: {self._streak.words}"
        if self._streak.retry_after_s:
            words += f" (it asks to wait {self._streak.retry_after_s:.0f} s, and is given that)"
        if not self.sick:
            self.sicknesses += 1
            self._sick_since_s = time.monotonic()
            self.sick_since_ms = int(time.time() * 1000)
            log.error("the engine is sick, nothing new is sent to it: %s", words)
        self.sick = words
        self._note_error(words)

    async def _pause(self, seconds: float) -> None:
        """Wait, or have the engine started anew once it has been sick for too long."""
        left_s = self._sick_since_s + self._sick_s - time.monotonic()
        if self._restart is None or seconds < left_s:
            await asyncio.sleep(seconds)
            return
        await asyncio.sleep(max(0.0, left_s))
        self._restart(self.sick)
        # The restart resets this; until then there is nothing to do.
        await asyncio.sleep(PAUSE_CAP_S)

    def _recovered(self, how: str) -> None:
        if self.sick:
            lasted_s = time.monotonic() - self._sick_since_s
            log.info("the engine is well after %.0f s: %s", lasted_s, how)
        self.sick, self.sick_since_ms = "", 0
        self._gate.open(ENGINE_SICK)
