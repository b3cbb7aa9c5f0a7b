"""Synchronous requests to a server, for threads: one connection each, short time limits."""

from __future__ import annotations

from typing import Any

import requests
from pydantic import SecretStr

# Seconds to connect and between two received bytes. Short: a shutdown waits for the answer.
ANSWER_S = (3.0, 10.0)
GENERATE_S = (3.0, 60.0)  # the first real batch may compile kernels
_TEXT_S = (2.0, 5.0)


def get_json(url: str, key: SecretStr | None = None) -> Any:
    """The JSON answer to a GET. Blocks for seconds; requests.RequestException without one."""
    return _request("GET", url, key, ANSWER_S).json()


def post_json(
    url: str,
    body: dict[str, Any],
    key: SecretStr | None = None,
    timeout_s: tuple[float, float] | None = None,
) -> Any:
    """The JSON answer to a POST of `body`. Blocks; requests.RequestException without one.

    `timeout_s`: seconds to connect, and between two received bytes; by default `ANSWER_S`.
    """
    return _request("POST", url, key, timeout_s or ANSWER_S, body).json()


def get_text(url: str, key: SecretStr | None = None) -> str:
    """The text answer to a GET. Blocks for seconds; requests.RequestException without one."""
    return _request("GET", url, key, _TEXT_S).text


def _request(
    method: str,
    url: str,
    key: SecretStr | None,
    timeout_s: tuple[float, float],
    body: dict[str, Any] | None = None,
) -> requests.Response:
    headers = {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}
    with requests.Session() as session:
        session.trust_env = False  # the engine is reached directly, never through a proxy
        response = session.request(
            method, url, json=body, headers=headers, timeout=timeout_s, allow_redirects=False
        )
    # A redirect is an error, as it is for the clients that send the prompts: following it would
    # call a server ready whose every generation then fails.
    if response.is_redirect:
        raise requests.HTTPError(f"{url} redirects to another address", response=response)
    response.raise_for_status()
    return response
