"""Questions to a server from a thread: short, one connection each."""

from __future__ import annotations

from typing import Any

import requests
from pydantic import SecretStr

ASK_S = (3.0, 10.0)  # connect, read: short, so that a shutdown never waits long for an answer
_TEXT_S = (2.0, 5.0)


def ask(
    url: str,
    body: dict[str, Any] | None = None,
    api_key: SecretStr | None = None,
    timeout_s: tuple[float, float] = ASK_S,
) -> Any:
    """The JSON that answers a GET, or a POST of `body`. requests.RequestException without one."""
    return _ask(url, body, api_key, timeout_s).json()


def ask_text(url: str, api_key: SecretStr | None = None) -> str:
    """The text that answers a GET. requests.RequestException without one."""
    return _ask(url, None, api_key, _TEXT_S).text


def _ask(
    url: str, body: dict[str, Any] | None, key: SecretStr | None, timeout_s: tuple[float, float]
) -> requests.Response:
    headers = {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}
    with requests.Session() as session:
        session.trust_env = False  # a proxy of the environment has no business on this host
        answer = session.request(
            "GET" if body is None else "POST", url, json=body, headers=headers, timeout=timeout_s
        )
        answer.raise_for_status()
        return answer
