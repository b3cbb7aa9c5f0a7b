"""Is a server ready? It says what it is, and one token comes out."""

from __future__ import annotations

import logging
from typing import Any

import requests
from pydantic import SecretStr

from dflashq.core.errors import EngineMismatchError, EngineRequestError
from dflashq.core.model import Sampling
from dflashq.engine.dialects.openai import chat_body, output_ids_of, prompt_ids_of
from dflashq.engine.http_probe import ask
from dflashq.engine.profiles import Profile
from dflashq.engine.request import Conversation

log = logging.getLogger(__name__)

_SAY = {"role": "user", "content": "Say something."}


class Readiness:
    """Asks one server, in the profile's dialect. `missing` tells how far it got."""

    def __init__(self, profile: Profile, base_url: str, api_key: SecretStr | None) -> None:
        self._profile, self._base_url, self._api_key = profile, base_url, api_key
        self.server_info: dict[str, Any] = {}
        self.missing = "it does not listen yet"
        self._tries = 0

    def reached(self) -> bool:
        """Ask once; blocks for seconds at most. EngineMismatchError: it will never do."""
        try:
            if self._profile.launch.dialect == "openai":
                self.server_info = chat_report(self._profile, self._base_url, self._api_key)
            else:
                self.server_info = self._ask("/server_info")
            self.missing = "it listens, but generates nothing"
            self._generate()
        except requests.RequestException as exc:
            log.debug("engine at %s: %s (%s)", self._base_url, self.missing, exc)
            refused = exc.response is not None and exc.response.status_code in (401, 403)
            if refused:
                self.missing = "it asks for a key: set DFLASHQ_ENGINE_API_KEY"
            return False
        return True

    def _generate(self) -> None:
        if self._profile.launch.dialect == "openai":
            self._chat()
            return
        # Another prompt each time: one that it cannot take does not keep it from being ready.
        self._tries += 1
        ids = [1, 1 + self._tries % 100]
        one = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
        self._ask("/generate", one)

    def _chat(self) -> None:
        """One token by chat, and whether its ids come along: without them it is of no use."""
        one = Sampling(temperature=0.0, max_new_tokens=1)
        talk = Conversation([_SAY], None, self._profile.model.thinking)
        model = str(self.server_info["served_model_name"])
        answer = self._ask("/v1/chat/completions", chat_body(model, talk, one, "probe", ()))
        try:
            complete = bool(prompt_ids_of(answer)) and bool(output_ids_of(answer))
        except EngineRequestError:
            complete = False
        if not complete:
            raise EngineMismatchError(
                f"the server at {self._base_url} does not return token ids with its chat answers; "
                "no prompt was sent to it. Without the exact ids there is no sample: use a server "
                "that takes `return_token_ids`, such as vLLM 0.10.2 or later, or SGLang."
            )

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return ask(self._base_url + path, body, self._api_key)


def chat_report(profile: Profile, base_url: str, api_key: SecretStr | None) -> dict[str, Any]:
    """What a chat server tells about itself: `/v1/models`, and `/server_info`, `/version` if any.

    requests.RequestException when it does not list its models, EngineMismatchError when ours is
    not among several.
    """
    rows = ask(f"{base_url}/v1/models", None, api_key).get("data") or []
    names = [str(row.get("id")) for row in rows]
    wanted = profile.model.id
    if wanted not in names and len(names) != 1:
        raise EngineMismatchError(
            f"the server at {base_url} does not serve {wanted!r} but "
            f"{', '.join(names) or 'nothing'}; no prompt was sent to it. Set model.id of profile "
            f"{profile.name!r} to the model that you mean."
        )
    report: dict[str, Any] = {}
    for path in ("/version", "/server_info"):
        try:
            told = ask(base_url + path, None, api_key)
        except requests.RequestException:
            continue  # both are extras that not every server has
        report |= told if isinstance(told, dict) else {}
    chosen = wanted if wanted in names else names[0]
    limit = next((r.get("max_model_len") for r in rows if str(r.get("id")) == chosen), None)
    told_length = {} if limit is None else {"max_model_len": limit}
    return report | told_length | {"served_model_name": chosen}
