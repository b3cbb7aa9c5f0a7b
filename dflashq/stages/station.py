"""What all batches of a worker share: the engine as it is now, the gate, the renderer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from dflashq.core import codec
from dflashq.core.errors import EngineDownError
from dflashq.core.markers import Markers
from dflashq.core.model import canonical_json
from dflashq.engine.gate import Gate
from dflashq.engine.profiles import Profile
from dflashq.engine.render import Renderer
from dflashq.engine.sglang import SGLangClient, effective_running_limit
from dflashq.stages.attempt import Attempt
from dflashq.stages.keeping import Keeping
from dflashq.stages.loop import LoopThread

log = logging.getLogger(__name__)

ENGINE_DOWN = "the engine is down"
DRAINING = "draining"
# SGLang's main process outlives its scheduler by up to 8 s.
DEATH_WAIT_S = 15.0
SECRET_FIELDS = ("api_key", "password", "secret")


class Station:
    """One worker's place of work. `engine_ready` and `engine_down` may come from any thread."""

    def __init__(
        self, profile: Profile, renderer: Renderer, loop: LoopThread, keeping: Keeping
    ) -> None:
        self.profile, self.renderer, self.loop, self.keeping = profile, renderer, loop, keeping
        self.markers: Markers = renderer.markers()
        self.gate = Gate(1, loop.loop)
        self.gate.threadsafe_close(ENGINE_DOWN)
        self._client: SGLangClient | None = None
        self.engine_id = ""
        self.output_tokens = 0
        self.engine_records: dict[str, dict[str, Any]] = {}
        self.context_length: int | None = profile.model.context_length
        self.forgive: Callable[[int], None] = lambda deaths: None
        self._attempts: set[Attempt] = set()
        self._dead = asyncio.Event()

    @property
    def client(self) -> SGLangClient:
        """The engine's client; EngineDownError before the first engine was ready."""
        if self._client is None:
            raise EngineDownError("no engine has been ready yet")
        return self._client

    def engine_ready(self, base_url: str, server_info: dict[str, Any]) -> None:
        """A (new) engine answers: talk to it from now on. Blocks for the loop."""
        record = self._record(server_info)
        self.engine_id = codec.sha256(canonical_json(record))[:16]
        self.engine_records[self.engine_id] = record
        limit = self.profile.concurrency.in_flight(effective_running_limit(server_info))
        self.loop.run(self._switch(base_url, limit))
        log.info("engine ready: %s, %d generations in flight", self.engine_id, limit)

    async def _switch(self, base_url: str, limit: int) -> None:
        if self._client is None:
            self._client = await SGLangClient(base_url).__aenter__()
        self._client.base_url = base_url
        self._dead.clear()
        self.gate.set_limit(limit)
        self.gate.open(ENGINE_DOWN)

    def engine_down(self, reason: str) -> None:
        """Admit nobody until `engine_ready`; batches wait, they do not fail."""
        log.warning("engine down: %s", reason)
        self.gate.threadsafe_close(ENGINE_DOWN)
        self.loop.loop.call_soon_threadsafe(self._dead.set)

    def _record(self, server_info: dict[str, Any]) -> dict[str, Any]:
        report = {
            name: value
            for name, value in server_info.items()
            if not any(word in name for word in SECRET_FIELDS)
        }
        return {
            "profile": self.profile.model_dump(mode="json"),
            "server_info": report,
            "tokenizer_sha256": self.renderer.tokenizer_sha256,
            "template_sha256": self.renderer.template_sha256,
        }

    def enter(self, attempt: Attempt) -> None:
        """An attempt begins its generations."""
        self._attempts.add(attempt)

    def leave(self, attempt: Attempt) -> None:
        """An attempt has ended; nothing more of it is kept."""
        self._attempts.discard(attempt)
        self.keeping.forget(attempt)

    async def saw_death(self) -> bool:
        """Whether the engine that dropped a request is dead; waits for its supervisor to see it.

        False: the connection was lost for another reason, nobody is to blame.
        """
        try:
            await asyncio.wait_for(self._dead.wait(), DEATH_WAIT_S)
        except TimeoutError:
            return False
        return True

    @contextlib.asynccontextmanager
    async def admitted(self, attempt: Attempt, *, alone: bool = False) -> AsyncIterator[None]:
        """One slot of the engine: oldest batch first, and only that while kept work is full.

        A prompt that must run alone waits for the end of its batch, so that the engine is emptied
        once for all of them.
        """
        order = attempt.order + (0.5 if alone else 0.0)
        while True:
            async with self.gate.slot(order, alone=alone):
                if not self.keeping.full or self._oldest() is attempt:
                    yield
                    return
            # Not a poll of the engine: room comes from another batch's commit, seconds away.
            await asyncio.sleep(1.0)

    def _oldest(self) -> Attempt | None:
        return min(self._attempts, key=lambda a: a.order, default=None)

    def close_gate(self) -> None:
        """Admit nothing more: the worker drains."""
        self.gate.threadsafe_close(DRAINING)

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
            await self._client.__aexit__(None, None, None)
