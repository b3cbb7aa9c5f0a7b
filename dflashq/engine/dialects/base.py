"""The two interfaces that an engine API has to implement: Dialect and EngineClient.

A new API is one module with a class that follows `Dialect`, and one line in `DIALECTS`. What its
servers report at `/metrics` is read by `engine.stats`, whose tables list the names by engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from pydantic import SecretStr

from dflashq.core.model import Generation, Sampling
from dflashq.engine.profiles import Profile
from dflashq.engine.request import Conversation, TokenObserver


class EngineClient(Protocol):
    """An asynchronous client of one server; opened, used and closed in one event loop.

    `base_url` may be assigned when the engine comes back on another port: requests that are
    already in flight keep the old address.
    """

    base_url: str

    async def open(self) -> None:
        """Create the HTTP session. Sends nothing."""

    async def close(self) -> None:
        """End every request in flight and the session. Safe to repeat."""

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        rid: str,
        end_ids: Iterable[int],
        conversation: Conversation | None = None,
        watch: TokenObserver | None = None,
    ) -> Generation:
        """Generate one assistant turn; the result holds the token ids exactly as sampled.

        `prompt_ids` is `conversation` as `ChatRenderer` renders it. `rid` must be unique and of
        fixed length: SGLang aborts every request whose id starts with the one it is given.
        `watch` gets all ids so far whenever a piece of a streamed answer arrives; an exception
        that it raises ends the generation. A dialect that cannot stream ids ignores it.

        There is no time limit; cancel the task instead, which frees the engine at once. A failed
        request may be repeated with another `rid`. Raises EngineRefusedError when the server will
        never take this prompt, EngineRequestError for any other failed answer (also one that the
        engine aborted or that is malformed), EngineDownError when no complete answer came.
        """

    async def drop_requests(self) -> None:
        """Close the connection of every request in flight; each raises EngineDownError.

        Later requests use new connections. Safe to repeat.
        """


class Dialect(Protocol):
    """One engine API. Stateless, so one instance serves every thread.

    All methods but `new_client` ask the server once and block for at most a minute; they may be
    repeated. Each raises requests.RequestException when the server does not answer or answers
    with an HTTP error, EngineRequestError when the answer is malformed.
    """

    alive_path: str  # a GET that any running server answers with 200, without generating

    def new_client(
        self, profile: Profile, base_url: str, server_info: dict[str, Any], key: SecretStr | None
    ) -> EngineClient:
        """A client that is not open yet. `server_info` is what `report` returned."""

    def report(self, profile: Profile, base_url: str, key: SecretStr | None) -> dict[str, Any]:
        """What the server says about itself, to be compared with the profile's expectations.

        Usually it holds `served_model_name`. EngineMismatchError when the API lists the models of
        the server and that of the profile is not among them.
        """

    def probe(
        self,
        profile: Profile,
        base_url: str,
        server_info: dict[str, Any],
        key: SecretStr | None,
        attempt: int,
    ) -> None:
        """Generate one token. `attempt` counts from 1.

        EngineMismatchError when the server generates, but never returns token ids.
        """

    def render(
        self, base_url: str, model: str, conversation: Conversation, key: SecretStr | None
    ) -> list[int]:
        """The token ids to which the server itself renders `conversation`."""

    def generate_once(
        self,
        base_url: str,
        model: str,
        conversation: Conversation,
        prompt_ids: list[int],
        sampling: Sampling,
        end_ids: frozenset[int],
        key: SecretStr | None,
    ) -> Generation:
        """`EngineClient.generate` from a thread, for a short answer of at most a minute.

        It does not compare the server's rendering with `prompt_ids`: that is what `render` is for.
        """
