"""Who gets in, and that no other site can act for who is in."""

from __future__ import annotations

import socket

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from dflashq.cli.root import root
from dflashq.config import Settings
from dflashq.core.errors import ConfigError, UsageError
from dflashq.web.auth import Tokens, is_loopback, refuse_open_network, safe_path
from tests.integration.web.conftest import Sampled
from tests.support.monitor_fixture import TOKEN, MonitorFixture

PAGES = ("/", "/runs/r", "/runs/r/samples", "/workers")


@pytest.fixture
def guarded(settings: Settings, sampled: Sampled) -> MonitorFixture:
    stage = MonitorFixture(settings, f"ann:{TOKEN},bob:{TOKEN[::-1]}")
    stage.look()
    return stage


def log_in(stage: MonitorFixture, token: str) -> int:
    stage.client.get("/login")
    with stage.client.session_transaction() as session:
        csrf = session["csrf"]
    return stage.client.post("/login", data={"token": token, "csrf": csrf}).status_code


def test_without_a_token_nothing_is_told(guarded: MonitorFixture) -> None:
    for page in PAGES:
        response = guarded.client.get(page)
        assert response.status_code == 302
        assert response.headers["Location"].startswith("/login")
    for path in ("/api/runs", "/api/stream", "/api/session"):
        response = guarded.client.get(path)
        assert response.status_code == 401
        assert "r" not in response.json
    assert guarded.client.post("/api/runs/r/pause", json={}).status_code == 401
    assert guarded.ledger.state("r") == "active"
    assert guarded.client.get("/health").status_code == 200
    assert guarded.client.get("/metrics").status_code == 401


def test_a_bearer_token_opens_the_api_and_names_who_did_it(guarded: MonitorFixture) -> None:
    headers = {"Authorization": f"Bearer {TOKEN[::-1]}"}
    assert guarded.get("/runs", **headers)["runs"][0]["name"] == "r"
    response = guarded.client.post("/api/runs/r/pause", json={"reason": "lunch"}, headers=headers)
    assert response.json["done"] == "bob paused the run: lunch."
    assert b"dflashq_" in guarded.client.get("/metrics", headers=headers).data
    wrong = guarded.client.get("/api/runs", headers={"Authorization": f"Bearer {TOKEN}x"})
    assert wrong.status_code == 401


def test_the_login_form_gives_a_strict_cookie(guarded: MonitorFixture) -> None:
    assert log_in(guarded, "wrong") == 403
    assert guarded.client.get("/").status_code == 302
    assert log_in(guarded, TOKEN) == 302
    response = guarded.client.get("/")
    assert response.status_code == 200
    assert TOKEN not in response.text
    cookie = guarded.client.get("/api/session").headers.get("Set-Cookie", "")
    for part in ("HttpOnly", "SameSite=Strict"):
        assert part in cookie
    assert guarded.get("/session")["who"] == "ann"
    csrf = guarded.get("/session")["csrf"]
    assert guarded.client.post("/logout", data={"csrf": csrf}).status_code == 302
    assert guarded.client.get("/").status_code == 302


def test_a_session_outlives_a_restart_but_not_its_token(
    guarded: MonitorFixture, settings: Settings
) -> None:
    assert log_in(guarded, TOKEN) == 302
    cookie = guarded.client.get_cookie("dflashq")
    assert cookie is not None
    for tokens, status in ((f"ann:{TOKEN},bob:{TOKEN[::-1]}", 200), (f"ann:{TOKEN}-new", 302)):
        other = MonitorFixture(settings, tokens)
        other.look()
        other.client.set_cookie("dflashq", cookie.value)
        assert other.client.get("/").status_code == status


def test_a_post_without_our_csrf_token_is_refused(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    stage.get("/session")
    for verb in ("pause", "resume", "cancel", "backfill"):
        bare = stage.client.post(f"/api/runs/r/{verb}", json={"confirm": "r", "what": "dead"})
        assert bare.status_code == 403, verb
        wrong = stage.post(f"/runs/r/{verb}", {"confirm": "r", "what": "dead"}, csrf="x" * 32)
        assert wrong.status_code == 403, verb
    assert stage.ledger.state("r") == "active"
    assert stage.post("/runs/r/pause", {}).status_code == 200


def test_an_open_monitor_answers_to_loopback_names_only(
    stage: MonitorFixture, sampled: Sampled
) -> None:
    """A page of another site that had its name rebound to 127.0.0.1 must read nothing."""
    stage.look()
    for host, status in (
        ("127.0.0.1:8787", 200),
        ("localhost:8787", 200),
        ("[::1]:8787", 200),
        ("evil.example:8787", 403),
        ("127.0.0.1.evil.example", 403),
    ):
        assert stage.client.get("/api/runs", headers={"Host": host}).status_code == status, host


def test_headers_allow_our_own_files_only(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    for page in (*PAGES, "/api/runs", "/nothing", "/static/run.js"):
        response = stage.client.get(page)
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["X-Frame-Options"] == "DENY"
    for page in PAGES:
        text = stage.client.get(page).text
        assert "<script>" not in text
        assert " style=" not in text
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text


def test_names_are_shown_and_never_run(stage: MonitorFixture) -> None:
    stage.ledger.register("x", "f" * 64, "q", 1, 1)
    stage.ledger.set_state("x", "paused", "<script>alert(1)</script>")
    stage.look()
    text = stage.client.get("/runs/x").text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_it_does_not_listen_beyond_this_host_without_a_token() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.8.9.1"):
        refuse_open_network(host, Tokens(None))
    for host in ("0.0.0.0", "::", "10.1.2.3", "gpu-host"):
        with pytest.raises(UsageError, match="without a token"):
            refuse_open_network(host, Tokens(None))
        refuse_open_network(host, Tokens(SecretStr(TOKEN)))
    assert not is_loopback("localhost.evil.example")


def test_the_command_refuses_an_open_door(settings: Settings) -> None:
    result = CliRunner().invoke(root, ["monitor", "--host", "0.0.0.0"])
    assert result.exit_code == 2
    assert "DFLASHQ_MONITOR_TOKEN" in result.output


def test_a_taken_port_is_told_in_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(root, ["monitor", "--port", str(port)])
    assert result.exit_code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in result.output


def test_a_short_token_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="less than 16") as caught:
        Tokens(SecretStr("ann:short-one"))
    assert "short-one" not in str(caught.value)


def test_after_the_login_only_our_own_pages() -> None:
    assert safe_path("/runs/r?x=1") == "/runs/r?x=1"
    for path in ("//evil.example", "https://evil.example", "/\\evil.example", "", "/a\nb"):
        assert safe_path(path) == "/"
