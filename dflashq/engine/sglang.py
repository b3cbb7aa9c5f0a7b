"""SGLang's native API: exact ids in, exact ids out, and every way in which it can fail."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NoReturn, Self

import aiohttp

from dflashq.core.errors import (
    EngineDownError,
    EngineError,
    EngineRefusedError,
    EngineTransientError,
)
from dflashq.core.model import Generation, Message, Sampling
from dflashq.engine.expect import effective_running_limit

__all__ = ["SGLangClient", "effective_running_limit", "parse_metrics"]

_CONNECT_S = 10.0
_ASIDE_S = 30.0  # for every request that is not a generation
_REFUSED = {400, 413, 422}
_TRANSIENT = {408, 409, 425, 429}
_METRIC = re.compile(r"^(sglang:\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_MODE = re.compile(r'(?:^|,)mode="(\w+)"')


class SGLangClient:
    """One HTTP session with one server; use it as an async context manager, from one loop.

    Every request has a connection of its own: an answer takes seconds to minutes, so one
    connect costs nothing, and a connection that the server just closed for idling is never met.
    `base_url` may be assigned when the engine came back on another port; requests that are
    under way keep theirs. Generations have no time limit: what supervises the engine is whether
    tokens move, not how long one answer takes.
    """

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        # The engine is on this host: a proxy of the environment would only be in the way.
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, trust_env=False, raise_for_status=False
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, rid: str, end_ids: Iterable[int]
    ) -> Generation:
        """One assistant turn for `prompt_ids`, with the ids exactly as sampled.

        `rid` must be unique and of fixed length (the server aborts by prefix). Raises
        EngineRefusedError (this prompt, for good), EngineTransientError (try again; also an abort
        and a malformed answer), EngineDownError (no answer), EngineError (not such a server).
        Safe to repeat with another rid. Cancelling it drops the connection; `abort` frees the
        engine sooner.
        """
        body = generate_body(prompt_ids, sampling, rid, end_ids)
        answer = await self._json("POST", "/generate", body, limit_s=None)
        return read_generation(answer, prompt_ids)

    async def server_info(self) -> dict[str, Any]:
        """All resolved arguments and state of the server. Same errors as `generate`."""
        return _table(await self._json("GET", "/server_info"), "/server_info")

    async def tokenize(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, thinking: bool
    ) -> list[int]:
        """The server's own rendering of a conversation, to compare with ours."""
        body: dict[str, Any] = {
            "messages": messages,
            "chat_template_kwargs": {"enable_thinking": thinking},
        }
        if tools:
            body["tools"] = tools
        answer = _table(await self._json("POST", "/v1/tokenize", body), "/v1/tokenize")
        return _ids(answer.get("tokens"), "tokens")

    async def abort(self, rid: str) -> None:
        """Stop one request; its `generate` then ends with EngineTransientError. Safe to repeat."""
        body = json.dumps({"rid": rid, "abort_all": False}).encode()
        await self._request("POST", "/abort_request", body, _ASIDE_S)

    async def health(self) -> bool:
        """True when the server calls itself healthy; it may still be stuck, and the reverse."""
        try:
            await self._request("GET", "/health", None, _ASIDE_S)
        except EngineError:
            return False
        return True

    async def metrics(self) -> dict[str, float]:
        """Counters and gauges by name (`sglang:num_running_reqs`), summed over labels.

        `sglang:realtime_tokens_total.decode` moves every few dozen steps of the engine, while
        `sglang:generation_tokens_total` counts a request only when it has ended.
        """
        return parse_metrics((await self._request("GET", "/metrics", None, _ASIDE_S)).decode())

    async def _json(
        self, method: str, path: str, body: object = None, limit_s: float | None = _ASIDE_S
    ) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        answer = await self._request(method, path, sent, limit_s)
        try:
            return json.loads(answer)
        except ValueError:
            raise EngineTransientError(
                f"{path} answered 200 with {len(answer)} bytes that are no JSON."
            ) from None

    async def _request(
        self, method: str, path: str, body: bytes | None, limit_s: float | None
    ) -> bytes:
        if self._session is None:
            raise EngineError("the client is not open: use it as `async with SGLangClient(...)`.")
        url = self.base_url + path
        try:
            async with self._session.request(
                method,
                url,
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=limit_s, sock_connect=_CONNECT_S),
            ) as response:
                answer = await response.read()
        except TimeoutError as exc:
            raise EngineDownError(f"the engine at {url} did not answer in time.") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise EngineDownError(
                f"the engine at {url} dropped the request ({type(exc).__name__}: {exc}).",
                delivered=not isinstance(exc, aiohttp.ClientConnectorError),
            ) from exc
        if response.status != 200:
            _refuse(url, response.status, answer)
        return answer


def generate_body(
    prompt_ids: list[int], sampling: Sampling, rid: str, end_ids: Iterable[int]
) -> dict[str, Any]:
    """The request of one generation: every sampling parameter is spelled out.

    The native API knows no model defaults (128 new tokens, temperature 1), and penalties are not
    exact under speculation, so they are neutral.
    """
    return {
        "input_ids": prompt_ids,
        "rid": rid,
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "max_new_tokens": sampling.max_new_tokens,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": sorted(end_ids),
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        },
        "stream": False,
        "return_logprob": False,
        "return_prompt_token_ids": True,
    }


def read_generation(answer: Any, prompt_ids: list[int]) -> Generation:
    """The Generation in a 200 answer; EngineTransientError when it is an abort or malformed."""
    row = _table(answer, "/generate")
    meta = _table(row.get("meta_info"), "meta_info")
    finish = _table(meta.get("finish_reason"), "finish_reason")
    kind = finish.get("type")
    if kind == "abort":
        raise EngineTransientError(f"the engine aborted the request: {finish.get('message')}.")
    if kind not in ("stop", "length"):
        raise _malformed(f"its finish reason is {kind!r}")
    output_ids = _ids(row.get("output_ids"), "output_ids")
    if meta.get("completion_tokens") != len(output_ids):
        raise _malformed(
            f"it counts {meta.get('completion_tokens')} tokens and carries {len(output_ids)}"
        )
    if row.get("prompt_token_ids") != prompt_ids:
        raise _malformed("it does not answer the prompt that was sent (prompt_token_ids differ)")
    matched = finish.get("matched")
    return Generation(
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        finish_reason=kind,
        matched=matched if isinstance(matched, int | str) else None,
        spec_accept_length=_number(meta.get("spec_accept_length")),
        latency_s=_number(meta.get("e2e_latency")),
    )


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text to sums by name, and by `name.mode` where there is such a label.

    Histogram buckets are left out.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    for name, labels, value in _METRIC.findall(text):
        if name.endswith("_bucket"):
            continue
        sums[name] += float(value)
        if mode := _MODE.search(labels):
            sums[f"{name}.{mode[1]}"] += float(value)
    return dict(sums)


def _refuse(url: str, status: int, answer: bytes) -> NoReturn:
    sentence = f"HTTP {status} from {url}: {_message(answer)}"
    if status in _REFUSED:
        raise EngineRefusedError(sentence)
    if status in _TRANSIENT or status >= 500:
        raise EngineTransientError(sentence)
    raise EngineError(f"{sentence}. This is not an SGLang server that serves the native API.")


def _message(answer: bytes) -> str:
    """The server's own sentence: native errors nest it, the OpenAI ones do not."""
    try:
        row = json.loads(answer)
    except ValueError:
        return answer[:500].decode(errors="replace") or "no message"
    if isinstance(row, dict) and isinstance(row.get("error"), dict):
        row = row["error"]
    message = row.get("message") if isinstance(row, dict) else None
    return str(message or row)[:1000]


def _table(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _malformed(f"{what} is no object")
    return value


def _ids(value: Any, what: str) -> list[int]:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise _malformed(f"{what} is no list of token ids")
    return value


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _malformed(why: str) -> EngineTransientError:
    return EngineTransientError(f"the engine's answer is malformed: {why}. It was dropped.")
