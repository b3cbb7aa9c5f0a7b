"""Who may use the monitor: tokens, sessions, and protection against forged requests."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from urllib.parse import urlsplit

from flask import Flask, Response, abort, g, redirect, request, session, url_for
from pydantic import SecretStr
from werkzeug.wrappers import Response as BaseResponse

from dflashq.core.errors import ConfigError, UsageError

SHORTEST_TOKEN = 16  # characters
OPEN_ENDPOINTS = frozenset({"pages.login", "pages.enter", "static", "health"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Tokens:
    """The tokens of a setting `NAME:TOKEN,...` and their owners; without any, none is needed.

    ConfigError for a token that is too short.
    """

    def __init__(self, setting: SecretStr | None) -> None:
        text = setting.get_secret_value().strip() if setting is not None else ""
        self._digests: dict[str, bytes] = {}
        for number, part in enumerate(filter(None, (p.strip() for p in text.split(","))), 1):
            name, colon, token = part.partition(":")
            if not colon:
                name, token = f"token {number}", part
            if len(token) < SHORTEST_TOKEN:
                raise ConfigError(
                    f"DFLASHQ_MONITOR_TOKEN: the token of {name} has less than {SHORTEST_TOKEN} "
                    "characters; make one with: python3 -c 'import secrets; "
                    "print(secrets.token_urlsafe(24))'"
                )
            self._digests[name.strip()] = hashlib.sha256(token.encode()).digest()

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, token: str) -> str | None:
        """The owner of a token, None for a wrong one; all are compared, in constant time."""
        given, owner = hashlib.sha256(token.encode()).digest(), None
        for name, digest in self._digests.items():
            if hmac.compare_digest(digest, given):
                owner = name
        return owner

    def secret_key(self) -> bytes:
        """The key that signs cookies; it follows from the tokens, so a restart ends no session."""
        if not self._digests:
            return secrets.token_bytes(32)
        return hashlib.sha256(b"dflashq monitor" + b"".join(self._digests.values())).digest()


def refuse_open_network(host: str, tokens: Tokens) -> None:
    """UsageError where the monitor would listen on a network without a token."""
    if not tokens and not is_loopback(host):
        raise UsageError(
            f"the monitor does not listen on {host} without a token: set DFLASHQ_MONITOR_TOKEN "
            "(or leave --host away and use a tunnel: ssh -L 8787:127.0.0.1:8787 HOST)"
        )


class Auth:
    """Authentication, CSRF protection and security headers of an app."""

    def __init__(self, app: Flask, tokens: Tokens) -> None:
        self.tokens = tokens
        app.secret_key = tokens.secret_key()
        app.config.update(
            SESSION_COOKIE_NAME="dflashq",
            SESSION_COOKIE_HTTPONLY=True,
            SESSION_COOKIE_SAMESITE="Strict",
            MAX_CONTENT_LENGTH=64 * 1024,
        )
        app.before_request(self._check)
        app.after_request(_headers)

    def csrf_token(self) -> str:
        """The CSRF token of the session, which every form and every POST of a page carries."""
        if "csrf" not in session:
            session["csrf"] = secrets.token_urlsafe(24)
        return str(session["csrf"])

    def log_in(self, token: str) -> bool:
        """Begin a session for the owner of a token; False when it is none of ours."""
        owner = self.tokens.owner(token)
        if owner is None:
            return False
        session.clear()
        session["who"] = owner
        session.permanent = True
        return True

    def _check(self) -> BaseResponse | None:
        g.bearer = False
        if not self.tokens and not is_loopback(_requested_host()):
            # DNS rebinding: a page on the web has pointed a name of its own at this machine.
            abort(403, "this monitor has no token and answers to 127.0.0.1 and localhost only")
        refusal = self._identify()
        if refusal is not None:
            return refusal
        if request.method not in ("GET", "HEAD", "OPTIONS") and not g.bearer:
            self._refuse_forged_request()
        return None

    def _identify(self) -> BaseResponse | None:
        """Set `g.who` to the caller's name; returns a refusal where there is none."""
        if not self.tokens:
            g.who = f"somebody at {request.remote_addr}"
            return None
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        owner = self.tokens.owner(token.strip()) if scheme.lower() == "bearer" else None
        g.bearer = owner is not None
        g.who = owner or session.get("who")
        if g.who or request.endpoint in OPEN_ENDPOINTS:
            return None
        if request.path.startswith("/api/") or request.path == "/metrics" or scheme:
            return Response(
                '{"error": "a token is needed: Authorization: Bearer …"}\n',
                401,
                {"WWW-Authenticate": "Bearer"},
                mimetype="application/json",
            )
        return redirect(url_for("pages.login", to=request.full_path.rstrip("?")))

    def _refuse_forged_request(self) -> None:
        given = request.headers.get("X-CSRF-Token") or request.form.get("csrf", "")
        known = session.get("csrf", "")
        if not known or not hmac.compare_digest(str(known).encode(), given.encode()):
            abort(403, "the page is too old to be trusted with this: load it again (CSRF token)")


def _requested_host() -> str:
    return urlsplit(f"//{request.host}").hostname or ""


def _headers(response: BaseResponse) -> BaseResponse:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def safe_path(path: str) -> str:
    """The path if it is one of this site, else that of the first page: for after the login."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if plain and "\n" not in path and "\r" not in path else "/"
