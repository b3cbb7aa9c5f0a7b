"""One asyncio loop in a thread of its own: all generations of a worker run on it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from dflashq.system.threads import SupervisedThread, report

Result = TypeVar("Result")
NAME = "generations"


class EventLoopThread:
    """A running event loop; `submit` and `run` may be called from any other thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_report)
        self._thread = SupervisedThread(NAME, self._serve, wake=self._end)
        self._thread.start()

    def _serve(self) -> None:
        # A loop that was thrown out of its round goes on with what it has when it is run again.
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Schedule a coroutine; its future can be waited for, or cancelled, from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and block until it ends."""
        return self.submit(coroutine).result()

    def close(self) -> None:
        """Cancel what still runs, wait for it, and end the thread."""
        self.run(self._cancel_all())
        self._thread.stop()
        self.loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.loop.shutdown_default_executor()


def _report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What no task or callback of ours has caught."""
    exc = context.get("exception") or RuntimeError(context["message"])
    report(NAME, exc, context["message"])
