"""The ways in which an alert reaches people: a signed webhook, JSON lines in a file."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from pathlib import Path

import requests
from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.core.alerts import Alert, body_of, signature
from dflashq.core.errors import DflashqError

_TIMEOUT_S = (5.0, 10.0)  # to connect, to answer
_TRANSIENT_STATUS = frozenset({408, 425, 429})


class UndeliveredError(DflashqError):
    """An alert did not arrive; `transient` says whether another try may succeed."""

    def __init__(self, sentence: str, *, transient: bool) -> None:
        self.transient = transient
        super().__init__(sentence)


class Sink(ABC):
    """One way to deliver alerts; each alert is delivered once to each `name`."""

    name: str

    @abstractmethod
    def deliver(self, alert: Alert) -> None:
        """Deliver an alert, or raise UndeliveredError. Blocks for seconds at most.

        A repeat delivers it again, under the same id.
        """


class Webhook(Sink):
    """POSTs alerts to a URL. Neither the URL nor the secret is ever part of a message."""

    name = "webhook"

    def __init__(self, url: str, secret: str) -> None:
        self._url, self._secret = url, secret

    def deliver(self, alert: Alert) -> None:
        now = datetime.now(UTC)
        body, timestamp = body_of(alert, _iso(now)), str(int(now.timestamp()))
        headers = {
            "Content-Type": "application/json",
            "X-Dflashq-Event": alert.event,
            "X-Dflashq-Id": alert.id,
            "X-Dflashq-Timestamp": timestamp,
        }
        if self._secret:
            headers["X-Dflashq-Signature"] = signature(self._secret, timestamp, body)
        try:
            response = requests.post(
                self._url, body, headers=headers, timeout=_TIMEOUT_S, allow_redirects=False
            )
        except requests.RequestException as exc:
            transient = isinstance(exc, requests.ConnectionError | requests.Timeout)
            # from None: the exception quotes the URL, which may be a secret.
            raise UndeliveredError(
                f"no answer ({type(exc).__name__})", transient=transient
            ) from None
        status = response.status_code
        if not 200 <= status < 300:
            transient = status >= 500 or status in _TRANSIENT_STATUS
            raise UndeliveredError(f"it answered HTTP {status}", transient=transient)


class JsonLinesFile(Sink):
    """Appends alerts to a file, each as one JSON line, or writes them to stdout for `-`."""

    name = "file"

    def __init__(self, path: str) -> None:
        self._path = path

    def deliver(self, alert: Alert) -> None:
        line = body_of(alert, _iso(datetime.now(UTC))).decode() + "\n"
        try:
            if self._path == "-":
                sys.stdout.write(line)
                sys.stdout.flush()
                return
            path = Path(self._path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as exc:
            raise UndeliveredError(f"{self._path}: {exc.strerror}", transient=True) from exc


def sinks_of(settings: Settings) -> list[Sink]:
    """The sinks that the settings name; none by default."""
    sinks: list[Sink] = []
    if settings.notify_file:
        sinks.append(JsonLinesFile(settings.notify_file))
    if url := _plain(settings.webhook_url):
        sinks.append(Webhook(url, _plain(settings.webhook_secret)))
    return sinks


def _plain(secret: SecretStr | None) -> str:
    return "" if secret is None else secret.get_secret_value()


def _iso(time: datetime) -> str:
    return time.isoformat(timespec="seconds")
