"""The pages: the server renders their top, the rest is filled in from the API."""

from __future__ import annotations

from flask import Blueprint, g, redirect, render_template, request, session, url_for
from werkzeug.wrappers import Response

from dflashq.core.errors import DflashqError
from dflashq.core.estimates.rate import in_words
from dflashq.web import payloads
from dflashq.web.auth import safe_path
from dflashq.web.context import auth_of, monitor_of

pages = Blueprint("pages", __name__)


@pages.app_template_filter("words")
def words(seconds: float) -> str:
    """A length of time in words."""
    return in_words(seconds)


@pages.app_template_filter("number")
def number(value: float) -> str:
    """1234567 as 1,234,567."""
    return f"{value:,.0f}"


@pages.app_context_processor
def common_values() -> dict[str, object]:
    """What the templates of all pages may use."""
    auth = auth_of()
    return {"who": g.get("who"), "csrf": auth.csrf_token(), "guarded": bool(auth.tokens)}


@pages.get("/")
def overview() -> str:
    """All runs."""
    try:
        row = payloads.overview(monitor_of().snapshot())
    except DflashqError as exc:
        return render_template("overview.html", runs=None, waits=str(exc))
    return render_template("overview.html", runs=row["runs"], workers=row["workers"])


@pages.get("/runs/<run>")
def one_run(run: str) -> str:
    """One run."""
    return render_template("run.html", run=payloads.run_row(monitor_of().run(run)))


@pages.get("/runs/<run>/samples")
def samples(run: str) -> str:
    """The samples of a run, to read."""
    return render_template("samples.html", run=payloads.run_row(monitor_of().run(run)))


@pages.get("/workers")
def workers() -> str:
    """All workers."""
    return render_template("workers.html")


@pages.get("/login")
def login() -> Response | str:
    """The form that asks for the token."""
    if not auth_of().tokens or g.get("who"):
        return redirect("/")
    return render_template("login.html", to=safe_path(request.args.get("to", "/")), wrong=False)


@pages.post("/login")
def enter() -> Response | tuple[str, int]:
    """Begin a session for whoever knows a token."""
    to = safe_path(request.form.get("to", "/"))
    if auth_of().log_in(request.form.get("token", "").strip()):
        return redirect(to)
    return render_template("login.html", to=to, wrong=True), 403


@pages.post("/logout")
def leave() -> Response:
    """End the session."""
    session.clear()
    return redirect(url_for("pages.login"))
