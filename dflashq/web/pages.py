"""The pages: their top comes whole from the server, the rest is filled by the API."""

from __future__ import annotations

from flask import Blueprint, g, redirect, render_template, request, session, url_for
from werkzeug.wrappers import Response

from dflashq.core.errors import DflashqError
from dflashq.core.estimates.rate import in_words
from dflashq.web import payloads
from dflashq.web.auth import safe_path
from dflashq.web.context import doors_of, monitor_of

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
def everywhere() -> dict[str, object]:
    """What every page shows."""
    auth = doors_of()
    return {"who": g.get("who"), "csrf": auth.csrf(), "guarded": bool(auth.tokens)}


@pages.get("/")
def overview() -> str:
    """All runs."""
    try:
        seen = payloads.overview(monitor_of().seen())
    except DflashqError as exc:
        return render_template("overview.html", runs=None, waits=str(exc))
    return render_template("overview.html", runs=seen["runs"], workers=seen["workers"])


@pages.get("/runs/<run>")
def one_run(run: str) -> str:
    """One run."""
    return render_template("run.html", run=payloads.run_row(monitor_of().run(run)))


@pages.get("/runs/<run>/samples")
def samples(run: str) -> str:
    """Samples of a run to read."""
    one = monitor_of().run(run)
    return render_template("samples.html", run=payloads.run_row(one))


@pages.get("/workers")
def workers() -> str:
    """All workers."""
    return render_template("workers.html")


@pages.get("/login")
def login() -> Response | str:
    """The form that asks for the token."""
    if not doors_of().tokens or g.get("who"):
        return redirect("/")
    return render_template("login.html", to=safe_path(request.args.get("to", "/")), wrong=False)


@pages.post("/login")
def enter() -> Response | tuple[str, int]:
    """A session for whoever knows a token."""
    to = safe_path(request.form.get("to", "/"))
    if doors_of().enter(request.form.get("token", "").strip()):
        return redirect(to)
    return render_template("login.html", to=to, wrong=True), 403


@pages.post("/logout")
def leave() -> Response:
    """End the session."""
    session.clear()
    return redirect(url_for("pages.login"))
