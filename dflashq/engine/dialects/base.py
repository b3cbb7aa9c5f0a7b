"""What the stages need of an engine, whichever dialect it speaks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from pydantic import SecretStr

from dflashq.core.model import Generation, Sampling
from dflashq.engine.dialects.openai import OpenAIClient
from dflashq.engine.dialects.sglang import SGLangClient
from dflashq.engine.profiles import Profile
from dflashq.engine.request import Conversation, TokenObserver

__all__ = ["Conversation", "EngineClient", "TokenObserver", "open_client"]


class EngineClient(Protocol):
    """One server; opened, used and closed in one loop."""

    base_url: str

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        rid: str,
        end_ids: Iterable[int],
        conversation: Conversation | None = None,
        watch: TokenObserver | None = None,
    ) -> Generation:
        """One assistant turn: `prompt_ids` is `conversation` as we render it.

        `rid` must be unique and of fixed length. Raises EngineRefusedError (this prompt, for good),
        EngineRequestError (it failed: the prompt's fault or the engine's), EngineDownError (no
        answer), and what `watch` raises where the engine streams. Cancelling it frees the engine
        at once.
        """

    async def hang_up(self) -> None:
        """Drop every request under way; each ends with EngineDownError."""

    async def open(self) -> None:
        """Make the session. Nothing is sent yet."""

    async def close(self) -> None:
        """End everything under way. Safe to repeat."""


def open_client(
    profile: Profile, base_url: str, server_info: dict[str, Any], api_key: SecretStr | None
) -> EngineClient:
    """The client for the profile's dialect, not open yet."""
    if profile.launch.dialect == "openai":
        return OpenAIClient(base_url, str(server_info["served_model_name"]), api_key)
    return SGLangClient(base_url, api_key, stream_every=profile.launch.stream_every)
