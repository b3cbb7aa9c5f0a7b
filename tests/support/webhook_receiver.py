"""An HTTP server that keeps what is sent to a webhook, and answers with chosen status codes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.server_thread import ServerThread


@dataclass(frozen=True)
class WebhookRequest:
    """One request: `body` is JSON, `row` what it says."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = json.loads(self.body)
        return row


class WebhookReceiver(ServerThread):
    """Answers the next requests with the status codes `answers`, then with 204.

    `requests` are those that it has received. A context manager.
    """

    def __init__(self, *answers: int) -> None:
        self.answers, self.requests = list(answers), list[WebhookRequest]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append(WebhookRequest(self.path, dict(self.headers), body))
                self.send_response(outer.answers.pop(0) if outer.answers else 204)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        super().__init__(ThreadingHTTPServer(("127.0.0.1", 0), Handler))

    @property
    def url(self) -> str:
        """Where it receives; the path counts as a secret."""
        return f"http://127.0.0.1:{self.port}/hook/secret-path"
