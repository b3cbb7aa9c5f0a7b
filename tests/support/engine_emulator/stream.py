"""Server-sent pieces of an answer, as SGLang sends them with incremental streaming output."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web


class Stream:
    """The stream of one request; `sent` counts the ids sent so far."""

    def __init__(self, request: web.Request, every: int) -> None:
        self._request, self._every = request, every
        self._response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.sent = 0

    def due(self, made: int) -> bool:
        """The first id is sent at once, then whenever so many are new."""
        return made - self.sent >= (self._every if self.sent else 1)

    async def send(self, piece: dict[str, Any]) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._request)
        self.sent += len(piece["output_ids"])
        await self._response.write(b"data: " + json.dumps(piece).encode() + b"\n\n")

    async def end(self, body: dict[str, Any]) -> web.StreamResponse:
        """The last piece: what is left of the ids, and how it ended."""
        await self.send({**body, "output_ids": body["output_ids"][self.sent :]})
        await self._response.write(b"data: [DONE]\n\n")
        await self._response.write_eof()
        return self._response

    async def refuse(self, message: str) -> web.StreamResponse:
        """A refusal inside a stream: HTTP 200 all the same."""
        error = {"message": message, "type": "invalid_request_error", "code": 400}
        await self._response.prepare(self._request)
        await self._response.write(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
        await self._response.write(b"data: [DONE]\n\n")
        await self._response.write_eof()
        return self._response
