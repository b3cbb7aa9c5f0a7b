"""Asynchronous HTTP to one engine: JSON over reused connections, one error class per failure."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, NoReturn, Self

import aiohttp
import orjson
from pydantic import SecretStr

from dflashq.core.errors import (
    EngineDownError,
    EngineError,
    EngineRefusedError,
    EngineRequestError,
)

log = logging.getLogger(__name__)

CONTROL_S = 30.0  # the time limit of every request that is not a generation
_CONNECT_S = 10.0
_CLOSE_S = 2.0
_KEEP_ALIVE_S = 2.0
_REFUSED = {400, 413, 422}  # the request itself is wrong, and will be wrong again
_LONGEST_WAIT_S = 3600.0  # a longer Retry-After is cut to this


class EngineHttpSession:
    """An HTTP session with one server; opened, used and closed in one event loop.

    An idle connection is reused for two seconds only. Servers close idle ones after five
    (uvicorn), and a connection that closes while we write would look like a death of the engine.

    `base_url` may be assigned when the engine comes back on another port; requests in flight keep
    the old one. Generations have no time limit, since a long answer is no fault: the supervisor
    watches whether tokens move instead. `api_key` is sent with every request and never logged.
    """

    def __init__(self, base_url: str, api_key: SecretStr | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._session: aiohttp.ClientSession | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Create the HTTP session. Sends nothing."""
        self._session = self._new_session()

    async def close(self) -> None:
        """Give background requests two seconds, then end every request. Safe to repeat."""
        if self._background:
            await asyncio.wait(self._background, timeout=_CLOSE_S)
        for task in self._background:
            task.cancel()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def drop_requests(self) -> None:
        """Close the connection of every request in flight; each raises EngineDownError.

        Later requests use a new session. Safe to repeat; a closed client stays closed.
        """
        if self._session is not None:
            dropped, self._session = self._session, self._new_session()
            await dropped.close()

    def run_in_background(self, call: Coroutine[Any, Any, object], what: str) -> None:
        """Run a request that nobody awaits; an EngineError is only logged, with `what`."""
        task = asyncio.get_running_loop().create_task(self._log_errors(call, what))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def json(
        self, method: str, path: str, body: object = None, limit_s: float | None = CONTROL_S
    ) -> Any:
        """The JSON of a 200 answer. Errors of `request`; EngineRequestError when it is no JSON.

        `limit_s`: time limit in seconds, None for no limit.
        """
        encoded = None if body is None else _encoded(body)
        answer = await self.request(method, path, encoded, limit_s)
        try:
            return orjson.loads(answer)
        except ValueError:
            raise EngineRequestError(
                f"{path} answered 200 with {len(answer)} bytes that are no JSON."
            ) from None

    async def request(
        self, method: str, path: str, body: bytes | None, limit_s: float | None
    ) -> bytes:
        """The body of a 200 answer.

        EngineDownError when no complete answer comes within `limit_s`; EngineRefusedError for a
        status that calls the request itself wrong (400, 413, 422); EngineRequestError, with the
        status and the seconds of Retry-After, for any other.
        """
        url = self.base_url + path
        with _failures(url):
            async with self._request_context(method, url, body, limit_s) as response:
                answer = await response.read()
        if response.status != 200:
            _refuse(url, response.status, answer, response.headers)
        return answer

    async def events(self, path: str, body: object) -> AsyncGenerator[dict[str, Any], None]:
        """The JSON objects of a server-sent stream, each as it arrives. Errors of `request`.

        Close the generator when you leave it early (`contextlib.aclosing`). An error inside the
        stream comes with status 200; the code that it carries decides which error is raised.
        """
        url, incomplete = self.base_url + path, b""
        with _failures(url):
            async with self._request_context("POST", url, _encoded(body), None) as response:
                if response.status != 200:
                    _refuse(url, response.status, await response.read(), response.headers)
                async for piece in response.content.iter_any():
                    *lines, incomplete = (incomplete + piece).split(b"\n\n")
                    for line in lines:
                        if line.startswith(b"data: {"):
                            yield _event(url, line[6:])

    def _request_context(
        self, method: str, url: str, body: bytes | None, limit_s: float | None
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:
            raise EngineError("the client is not open: call `open` or use it in `async with`.")
        return self._session.request(
            method,
            url,
            data=body,
            timeout=_limit(limit_s),
            allow_redirects=False,  # prompts go to the configured address and nowhere else
        )

    def _new_session(self) -> aiohttp.ClientSession:
        headers = {"Content-Type": "application/json"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key.get_secret_value()}"
        # trust_env: the engine is reached directly, never through a proxy of the environment.
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=_limit(None),
            trust_env=False,
            raise_for_status=False,
            headers=headers,
        )

    @staticmethod
    async def _log_errors(call: Coroutine[Any, Any, object], what: str) -> None:
        try:
            await call
        except EngineError as exc:
            log.debug("%s: %s", what, exc)


@functools.cache
def _limit(total_s: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total_s, sock_connect=_CONNECT_S)


def _encoded(body: object) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # orjson takes no integer of more than 64 bits; a tool's schema may hold one
        return json.dumps(body).encode()


@contextlib.contextmanager
def _failures(url: str) -> Iterator[None]:
    """Turn everything that prevents a complete answer into EngineDownError."""
    try:
        yield
    except TimeoutError as exc:
        raise EngineDownError(f"the engine at {url} did not answer in time.") from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise EngineDownError(
            f"the engine at {url} dropped the request ({type(exc).__name__}: {exc}).",
            delivered=not isinstance(exc, aiohttp.ClientConnectorError),
        ) from exc


def _event(url: str, line: bytes) -> dict[str, Any]:
    try:
        row = json_object(orjson.loads(line), "a piece of the stream")
    except ValueError:
        raise malformed(f"a piece of {len(line)} bytes is no JSON") from None
    error = row.get("error")
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        _refuse(url, error["code"], line)
    if error is not None:
        raise EngineRequestError(f"the engine broke off: {message_of(line)}")
    return row


def message_of(answer: bytes) -> str:
    """The error message in a server's answer, flat or under `error`; else the answer's text.

    At most 1,000 characters.
    """
    try:
        row = orjson.loads(answer)
    except ValueError:
        return answer[:500].decode(errors="replace") or "no message"
    if isinstance(row, dict) and isinstance(row.get("error"), dict):
        row = row["error"]
    message = row.get("message") if isinstance(row, dict) else None
    return str(message or row)[:1000]


def json_object(value: Any, what: str) -> dict[str, Any]:
    """`value` as a JSON object; EngineRequestError when it is none."""
    if not isinstance(value, dict):
        raise malformed(f"{what} is no object")
    return value


def token_ids(value: Any, what: str) -> list[int]:
    """`value` as a list of token ids; EngineRequestError when it is none."""
    # Written as JSON without the characters of integers, a list of integers is "[]". That takes a
    # third of the time of testing the type of each item.
    if not isinstance(value, list) or orjson.dumps(value).translate(None, b"-0123456789,") != b"[]":
        raise malformed(f"{what} is no list of token ids")
    return value


def number(value: Any) -> float | None:
    """`value` as a float; None when it is no number."""
    return float(value) if isinstance(value, int | float) else None


def malformed(why: str) -> EngineRequestError:
    """The error for an answer that does not have the documented form; `why` is a clause."""
    return EngineRequestError(f"the engine's answer is malformed: {why}. It was dropped.")


def _refuse(
    url: str, status: int, answer: bytes, headers: Mapping[str, str] | None = None
) -> NoReturn:
    sentence = f"HTTP {status} from {url}: {message_of(answer)}"
    if status in _REFUSED:
        raise EngineRefusedError(sentence)
    wait_s = retry_after_s((headers or {}).get("Retry-After", ""), datetime.now(UTC))
    raise EngineRequestError(sentence, status=status, retry_after_s=wait_s)


def retry_after_s(value: str, now: datetime) -> float:
    """The seconds that a Retry-After header asks for, at most an hour; 0 when it is unreadable.

    It holds seconds or a date (RFC 9110, section 10.2.3). `now` must have a time zone.
    """
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - now).total_seconds()
        except (ValueError, TypeError):  # no date, or one without a zone
            return 0.0
    return min(max(seconds, 0.0), _LONGEST_WAIT_S) if math.isfinite(seconds) else 0.0
