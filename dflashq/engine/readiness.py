"""Whether a server is ready: it reports what it is, and it generates one token."""

from __future__ import annotations

import logging
from typing import Any

import requests
from pydantic import SecretStr

from dflashq.core.errors import EngineRequestError
from dflashq.engine.dialects import DIALECTS
from dflashq.engine.profiles import Profile

log = logging.getLogger(__name__)


class Readiness:
    """The readiness check of one server. Not thread-safe.

    `server_info` is the last report, empty before the first. `missing` says why the server is not
    ready yet.
    """

    def __init__(self, profile: Profile, base_url: str, api_key: SecretStr | None) -> None:
        self._profile, self._base_url, self._api_key = profile, base_url, api_key
        self._dialect = DIALECTS[profile.launch.dialect]
        self.server_info: dict[str, Any] = {}
        self.missing = "it does not listen yet"
        self._attempts = 0

    def reached(self) -> bool:
        """Ask the server once; True when it is ready. Blocks for seconds; safe to repeat.

        EngineMismatchError when it can never become ready: it serves another model, or returns no
        token ids.
        """
        try:
            self.server_info = self._dialect.report(self._profile, self._base_url, self._api_key)
            self.missing = "it listens, but generates nothing"
            self._attempts += 1
            self._dialect.probe(
                self._profile, self._base_url, self.server_info, self._api_key, self._attempts
            )
        except requests.RequestException as exc:
            log.debug("engine at %s: %s (%s)", self._base_url, self.missing, exc)
            if exc.response is not None:
                self._explain(exc.response)
            return False
        except EngineRequestError as exc:  # malformed: some servers answer before they are ready
            log.debug("engine at %s: %s (%s)", self._base_url, self.missing, exc)
            return False
        return True

    def _explain(self, response: requests.Response) -> None:
        if response.status_code in (401, 403):
            self.missing = "it asks for a key: set DFLASHQ_ENGINE_API_KEY"
        if response.is_redirect:
            address = response.headers["Location"]
            self.missing = f"it redirects to {address}: set DFLASHQ_ENGINE_URL to that server"
