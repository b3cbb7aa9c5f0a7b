"""What all batches of a worker share: the engine as it is now, the gate, the renderer."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pydantic import SecretStr

from dflashq.core import codec
from dflashq.core.errors import EngineDownError
from dflashq.core.generations.special_tokens import SpecialTokens
from dflashq.core.model import Message, Sampling, canonical_json
from dflashq.core.redact import without_secrets
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.engine.concurrency_limit import AimdLimit
from dflashq.engine.dialects import DIALECTS
from dflashq.engine.dialects.base import EngineClient
from dflashq.engine.gate import Gate
from dflashq.engine.profile_match import running_limit
from dflashq.engine.profiles import Profile
from dflashq.engine.request import Conversation
from dflashq.engine.startup_check import StartupCheck
from dflashq.engine.stats import EngineStats
from dflashq.ledger import Lease
from dflashq.stages.attempt import Attempt
from dflashq.stages.circuit_breaker import ENGINE_DOWN, CircuitBreaker
from dflashq.stages.event_loop import EventLoopThread
from dflashq.stages.keep_blockage import KeepBlockage
from dflashq.stages.keep_writer import KeepWriter

log = logging.getLogger(__name__)

# SGLang's main process outlives its scheduler by up to 8 s.
DEATH_WAIT_S = 15.0
ERROR_CHARS = 500
_SAY: list[Message] = [{"role": "user", "content": "Say something."}]
# Long enough to show that it decodes, short enough for an engine that is busy.
_PROBE_SAMPLING = Sampling(temperature=0.0, max_new_tokens=64)
_OURS = Conversation(_SAY, None, thinking=False)


class EngineSession:
    """One worker's place of work.

    `engine_ready`, `engine_down`, `engine_vitals` and `check_engine` may come from any thread.
    `is_lease_current` says whether a lease is surely held still; `refund_deaths` takes so many
    engine deaths off the restart budget; `restart_engine` asks for another engine, with a reason.
    """

    def __init__(
        self,
        profile: Profile,
        renderer: ChatRenderer,
        loop: EventLoopThread,
        keeping: KeepWriter,
        api_key: SecretStr | None = None,
        *,
        is_lease_current: Callable[[Lease], bool] = lambda lease: True,
        refund_deaths: Callable[[int], None] = lambda deaths: None,
        restart_engine: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.profile, self.renderer, self.loop, self.keeping = profile, renderer, loop, keeping
        renderer.load()
        self.markers: SpecialTokens = renderer.markers()
        self.gate = Gate(1, loop.loop)
        self.gate.threadsafe_close(ENGINE_DOWN)
        self.health = CircuitBreaker(
            self.gate,
            self._probe,
            self.note_error,
            None if profile.launch.kind == "external" else self._restart_engine,
            profile.launch.sick_s,
        )
        keeping.blockage = KeepBlockage(self._close_blocked, self.gate.threadsafe_open)
        self._client: EngineClient | None = None
        self._api_key = api_key
        self._limit: AimdLimit | None = None
        self.stats: EngineStats | None = None
        self.engine_id = ""
        self.last_error = ""
        self.output_tokens = 0
        # A first turn that some engine has answered: what a probe asks again.
        self.control: tuple[list[int], Conversation] | None = None
        self.engine_records: dict[str, dict[str, Any]] = {}
        self.context_length: int | None = profile.model.context_length
        self.is_lease_current, self.refund_deaths = is_lease_current, refund_deaths
        self._ask_restart = restart_engine
        self._attempts: set[Attempt] = set()
        self._dead = asyncio.Event()
        self._ended_by_us = False
        self._probing: asyncio.Task[bool] | None = None

    @property
    def client(self) -> EngineClient:
        """The engine's client; EngineDownError before the first engine was ready."""
        if self._client is None:
            raise EngineDownError("no engine has been ready yet")
        return self._client

    def engine_ready(self, base_url: str, server_info: dict[str, Any]) -> None:
        """A (new) engine answers: talk to it from now on. Blocks for the loop."""
        record = self._record(server_info)
        self.engine_id = codec.sha256(canonical_json(record))[:16]
        self.engine_records[self.engine_id] = record
        running = running_limit(self.profile, server_info)
        limit = self.profile.concurrency.in_flight(running)
        self._limit = AimdLimit(limit, running, self.profile.concurrency.queue_s)
        self.loop.run(self._switch(base_url, server_info, limit))
        log.info("engine ready: %s, %d generations in flight", self.engine_id, limit)

    async def _switch(self, base_url: str, server_info: dict[str, Any], limit: int) -> None:
        if self._client is None:
            dialect = DIALECTS[self.profile.launch.dialect]
            self._client = dialect.new_client(self.profile, base_url, server_info, self._api_key)
            await self._client.open()
        self._client.base_url = base_url
        self._dead.clear()
        self._ended_by_us = False
        self.health.reset()
        self.gate.set_limit(limit)
        self.gate.open(ENGINE_DOWN)

    def check_engine(self, base_url: str, server_info: dict[str, Any]) -> None:
        """EngineMismatchError for a server that renders or generates otherwise than it should."""
        StartupCheck(self.profile, self.renderer, self._api_key).check(base_url, server_info)

    def engine_vitals(self, stats: EngineStats) -> None:
        """What the engine's metrics say now; the number in flight follows from it."""
        self.stats = stats
        admission = self._limit
        if admission is not None and admission.update(time.monotonic(), stats):
            log.info("%d generations in flight from now on: %s", admission.limit, admission.why)
            self.loop.loop.call_soon_threadsafe(self.gate.set_limit, admission.limit)

    @property
    def sick(self) -> str:
        """Why the engine counts as sick: it answers with errors only. Empty while it is well."""
        return self.health.sick

    async def _probe(self) -> None:
        """The beginning of an answer that was given before; EngineError when it does not come.

        Before any, the same of a conversation of ours: the engine's check had one generated.
        """
        ours = self.renderer.render(_SAY, None, thinking=False), _OURS
        ids, conversation = self.control or ours
        await self.client.generate(
            *(ids, _PROBE_SAMPLING, f"probe-{secrets.token_hex(13)}", self.markers.end_ids),
            conversation,
        )

    def _restart_engine(self, reason: str) -> None:
        """Have the supervisor start another engine; no prompt in flight is to blame for that."""
        self._ended_by_us = True
        self._ask_restart(reason)

    def engine_down(self, reason: str) -> None:
        """Admit nobody until `engine_ready`; batches wait, they do not fail.

        What is in flight ends now: a server that hangs would never drop it.
        """
        log.warning("engine down: %s", reason)
        self.note_error(f"engine down: {reason}")
        self.stats = None
        self.gate.threadsafe_close(ENGINE_DOWN)
        self.loop.loop.call_soon_threadsafe(self._dead.set)
        self.loop.submit(self._hang_up())
        self.loop.loop.call_soon_threadsafe(self.health.reset)

    def note_error(self, sentence: str) -> None:
        """Remember what went wrong last, and when: people look at it from afar."""
        at = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
        self.last_error = f"{at[:19]} UTC {sentence}"[:ERROR_CHARS]

    def _close_blocked(self, reason: str) -> None:
        self.note_error(reason)
        self.gate.threadsafe_close(reason)

    async def _hang_up(self) -> None:
        if self._client is not None:
            await self._client.drop_requests()

    def _record(self, server_info: dict[str, Any]) -> dict[str, Any]:
        return {
            "profile": self.profile.model_dump(mode="json"),
            "server_info": without_secrets(server_info),
            "tokenizer_sha256": self.renderer.tokenizer_sha256,
            "template_sha256": self.renderer.template_sha256,
        }

    def engine_record(self) -> dict[str, Any]:
        """The record of the engine as it is now."""
        return self.engine_records[self.engine_id]

    def enter(self, attempt: Attempt) -> None:
        """An attempt begins its generations."""
        self._attempts.add(attempt)

    def leave(self, attempt: Attempt) -> None:
        """An attempt has ended; nothing more of it is kept."""
        self._attempts.discard(attempt)
        self.keeping.forget(attempt)

    async def saw_death(self) -> bool:
        """Whether the engine that dropped a request is dead; waits for its supervisor to see it.

        False: it answers a probe, so the connection was lost for another reason, or we ended it:
        nobody is to blame.
        """
        dead = asyncio.ensure_future(self._dead.wait())
        try:
            done, _ = await asyncio.wait(
                {dead, self._shared_probe()},
                timeout=DEATH_WAIT_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if dead not in done and not any(task.result() for task in done):
                # The probe failed as well: it takes the supervisor a while to see a death.
                await asyncio.wait({dead}, timeout=DEATH_WAIT_S)
            return dead.done() and not self._ended_by_us
        finally:
            dead.cancel()

    def _shared_probe(self) -> asyncio.Task[bool]:
        """One probe for all who lost their connection at once."""
        if self._probing is None or self._probing.done():
            self._probing = self.loop.loop.create_task(self.health.probe_answers())
        return self._probing

    async def admit(self, attempt: Attempt, *, alone: bool = False) -> None:
        """Wait for a slot of the engine, to be given back by `gate.leave`.

        The oldest batch comes first, and nothing else while kept work is full.

        Nothing is begun under a lease that may have run out (`is_lease_current`): it waits for the
        heartbeat.
        A prompt that must run alone waits for the end of its batch, so that the engine is emptied
        once for all of them.
        """
        order = attempt.order + (0.5 if alone else 0.0)
        while True:
            await self.gate.enter(order, alone=alone)
            admitted = False
            try:
                room = not self.keeping.full or self._oldest() is attempt
                if room and self.is_lease_current(attempt.lease):
                    self.keeping.begin(attempt)
                    admitted = True
                    return
            finally:
                if not admitted:
                    self.gate.leave()
            # Not a poll of the engine: room comes from another batch's commit, seconds away, and
            # proof from the next heartbeat.
            await asyncio.sleep(1.0)

    def _oldest(self) -> Attempt | None:
        # A copy: batches come and go in threads of their own.
        return min(tuple(self._attempts), key=lambda a: a.order, default=None)

    def wait_idle(self, timeout_s: float) -> bool:
        """Block until nothing is in flight; False when time ran out first."""
        try:
            self.loop.run(asyncio.wait_for(self.gate.idle(), timeout_s))
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """End the client, the keeping thread and the loop; nothing may be at work. Blocks."""
        self.keeping.close()
        self.loop.run(self._disconnect())
        self.loop.close()

    async def _disconnect(self) -> None:
        if self._client is not None:
            await self._client.close()
