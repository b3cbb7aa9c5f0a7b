"""The command line: what it prints, where, and the code it ends with."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dflashq.cli import text_views
from dflashq.cli.root import COMMANDS, root
from dflashq.config import Settings
from dflashq.core.model import Guard, RunRecord
from dflashq.ledger import Ledger
from dflashq.system.ports import free_port
from tests.support.committed_runs import SPEC, CommittedRunFixture
from tests.support.env import environment, variables
from tests.support.paths import ROOT
from tests.support.wait import WAIT_S

PROGRAM = "import sys; from dflashq.cli import main; main()"
PROFILE = "smollm2-cpu"
AGAIN_S = 20.0  # until an interrupt that was dropped is sent again
FIRST, SECOND, LAST = "batch-000000", "batch-000001", "batch-000002"


@pytest.fixture(autouse=True)
def _configured(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a test find its servers, and nothing that lies in this folder."""
    monkeypatch.chdir(tmp_path)
    for name, value in variables(settings).items():
        monkeypatch.setenv(name, value)


def call(*args: str, code: int = 0, stdin: str | None = None) -> Result:
    """Run a command; it must end with `code`, and with a traceback never."""
    result = CliRunner().invoke(root, list(args), input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def answer(*args: str, code: int = 0) -> Any:
    return json.loads(call(*args, code=code).stdout)


def start(*args: str, settings: Settings, code: str = PROGRAM) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env=environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def odd_lines(tmp_path: Path) -> Path:
    path = tmp_path / "odd.jsonl"
    rows = ['{"id": "a", "prompt": "one"}', "", '{"id": 7, "prompt": "two"}', "{oops", "  "]
    path.write_text("\n".join([*rows, '{"id": "b", "prompt": 5}', ""]))
    return path


# --- the program


def test_help_names_every_command_and_each_can_be_called() -> None:
    shown = call("--help").stdout
    for name, text in COMMANDS.items():
        assert name in shown
        assert text.split(",")[0][:30] in " ".join(shown.split())
        assert "Usage: " in call(name, "--help").stdout
    assert call("--version").stdout.startswith("dflashq, version ")


@pytest.mark.parametrize(
    "args",
    [
        ("nope",),
        ("status", "a b"),
        ("enqueue",),
        ("enqueue", "f", "--run", "a/b", "--profile", PROFILE),
        ("enqueue", "f", "--run", "a", "--profile", "no-such"),
        ("enqueue", "f", "--run", "a"),
        ("enqueue", "f", "--run", "a", "--profile", PROFILE, "--sampling", "temperature"),
        ("enqueue", "f", "--run", "a", "--profile", PROFILE, "--sampling", "temprature=1"),
        ("enqueue", "f", "--run", "a", "--profile", PROFILE, "--sampling", "top_p=2"),
        ("enqueue", "f", "--run", "a", "--profile", PROFILE, "--batch-size", "1001"),
    ],
)
def test_a_mistake_in_the_call_is_2(args: tuple[str, ...]) -> None:
    result = call(*args, code=2)
    assert result.stdout == ""
    assert result.stderr.strip()


def test_a_wrong_setting_is_2_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASHQ_LEASE_TTL_S", "soon")
    assert "DFLASHQ_LEASE_TTL_S" in call("status", code=2).stderr


def test_a_bug_is_3_and_its_traceback_is_in_a_file(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Ledger) -> dict[str, str]:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(Ledger, "runs", broken)
    result = call("status", code=3)
    assert "a bug in dflashq" in result.stderr
    assert "nobody thought of this" in result.stderr
    (path,) = (settings.state_dir / "logs").iterdir()
    assert str(path) in result.stderr
    assert "Traceback" in path.read_text()
    shown = CliRunner().invoke(root, ["--debug", "status"])
    assert (shown.exit_code, "Traceback" in shown.stderr) == (3, True)
    assert len(list((settings.state_dir / "logs").iterdir())) == 1


def test_the_process_ends_with_these_codes_too(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    calls = {
        0: ("status",),
        1: ("enqueue", "empty", "--run", "r", "--profile", PROFILE),
        2: ("status", "a b"),
    }
    for code, args in calls.items():
        process = start(*args, settings=settings)
        _, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, "Traceback" in err) == (code, False), err
    broken = "from dflashq.ledger import Ledger; Ledger.runs = lambda self: 1 // 0; " + PROGRAM
    process = start("status", settings=settings, code=broken)
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, "Traceback" in err) == (3, False), err


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ctrl-C until it ends: Python drops an interrupt that comes inside a destructor."""
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=AGAIN_S)
    raise AssertionError("ten interrupts did not end it")


def test_ctrl_c_is_130_and_says_what_stands(settings: Settings, tmp_path: Path) -> None:
    pipe = tmp_path / "endless"
    os.mkfifo(pipe)
    process = start("enqueue", str(pipe), "--run", "r", "--profile", PROFILE, settings=settings)
    try:
        # Opening waits for the reader: then the command is in the middle of reading.
        with pipe.open("w") as sink:
            sink.write('{"prompt": "one"}\n')
            sink.flush()
            out, err = interrupted(process)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, "")
    assert "interrupted. Nothing was enqueued." in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("args", "never"),
    [
        (["--help"], {"redis", "boto3", "celery", "pydantic", "rich", "transformers"}),
        (["status"], {"boto3", "rich", "transformers", "torch", "aiohttp"}),
        (
            ["enqueue", "p", "--run", "r", "--profile", PROFILE],
            {"transformers", "torch", "aiohttp"},
        ),
    ],
)
def test_a_command_loads_only_what_it_needs(
    args: list[str], never: set[str], settings: Settings, fleet: CommittedRunFixture
) -> None:
    fleet.prompts(3).rename("p")
    code = (
        "import sys, json\n"
        "from dflashq.cli.root import root\n"
        "root.main(sys.argv[1:], standalone_mode=False)\n"
        "sys.stderr.write('LOADED ' + json.dumps(sorted(sys.modules)))"
    )
    process = start(*args, settings=settings, code=code)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    loaded = set(json.loads(err.partition("LOADED ")[2]))
    assert "dflashq.cli.root" in loaded
    assert not never & loaded


# --- enqueue


def test_a_dry_run_reads_everything_and_contacts_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DFLASHQ_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    monkeypatch.setenv("DFLASHQ_S3_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    path = str(odd_lines(tmp_path))
    args = ("enqueue", path, "--run", "r", "--profile", PROFILE, "--dry-run")
    found = answer(*args, "--json")
    assert found["lines"] == [
        {"file": path, "line": 2, "do": "skip", "why": "blank_line"},
        {"file": path, "line": 3, "do": "normalise", "why": "id_not_a_plain_string"},
        {"file": path, "line": 4, "do": "reject", "why": "invalid_json"},
        {"file": path, "line": 5, "do": "skip", "why": "blank_line"},
        {"file": path, "line": 6, "do": "reject", "why": "bad_content_type"},
    ]
    assert found["counts"] == {"accept": 1, "normalise": 1, "reject": 2}
    assert (found["prompts"], found["batches"], found["dry_run"]) == (2, 1, True)
    assert found["rejected"] == "rejected-r.jsonl"
    kept = [json.loads(line) for line in Path("rejected-r.jsonl").read_text().splitlines()]
    assert [row["line"] for row in kept] == [4, 6]
    shown = call(*args, "--rejected", "elsewhere").stdout
    assert "4 rows: 1 accepted, 1 normalised, 2 rejected" in shown
    assert f"rejected invalid_json: 1 ({path}:4)" in shown
    assert f"skipped blank_line: 2 ({path}:2, {path}:5)" in shown
    assert "the rejected lines are in elsewhere" in shown
    assert "nothing was sent" in shown


def test_many_lines_of_one_reason_are_named_by_the_first(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text('{"id": "x", "prompt": "q"}\n' + "{oops\n" * 9)
    shown = call("enqueue", str(path), "--run", "r", "--profile", PROFILE, "--dry-run").stdout
    assert f"rejected invalid_json: 9 ({path}:2, {path}:3, {path}:4 and 6 more)" in shown


def test_enqueue_once_again_and_otherwise(fleet: CommittedRunFixture) -> None:
    args = ("enqueue", str(fleet.prompts(12)), "--run", "r", "--profile", PROFILE)
    sized = (*args, "--batch-size", "5", "--sampling", "temperature=0.5")
    first = answer(*sized, "--sampling", "max_new_tokens=99", "--json")
    # Two of the three wait for the canary.
    assert (first["continued"], first["added"], first["hinted"]) == (False, 3, 1)
    assert first["lines"] == []
    again = answer(*sized, "--sampling", "max_new_tokens=99", "--json")
    assert (again["continued"], again["added"], again["hinted"]) == (True, 0, 0)
    assert again["fingerprint"] == first["fingerprint"]
    spec = json.loads(fleet.blobs.get("runs/r/run.json").body)["spec"]
    assert (spec["queue"], spec["thinking"]) == ("generate.smollm2-135m", False)
    assert spec["sampling"] == {
        "temperature": 0.5,
        "top_p": 0.95,
        "top_k": 50,
        "min_p": 0.0,
        "max_new_tokens": 99,
    }
    other = call(*sized, "--thinking", code=1)
    assert "sampling.max_new_tokens: on record 99, asked 256" in other.stderr
    assert "thinking: on record False, asked True" in other.stderr
    assert other.stdout == ""


def test_a_limit_and_the_profile_of_the_settings(
    fleet: CommittedRunFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DFLASHQ_PROFILE", PROFILE)
    shown = call("enqueue", str(fleet.prompts(12)), "--run", "r", "--limit", "7").stdout
    assert "7 prompts in 1 batch enqueued" in shown
    assert fleet.ledger.status("r").prompts == 7


@pytest.mark.parametrize("text", ["", "{oops\n", None])
def test_a_file_that_must_fail_is_1_and_named(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    if text is not None:
        path.write_text(text)
    result = call("enqueue", str(path), "--run", "r", "--profile", PROFILE, "--json", code=1)
    assert result.stdout == ""
    assert str(path) in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_the_script_is_the_same_command(tmp_path: Path) -> None:
    path = odd_lines(tmp_path)
    script = [sys.executable, str(ROOT / "scripts" / "enqueue.py"), str(path), "--run", "r"]
    done = subprocess.run(
        [*script, "--profile", PROFILE, "--dry-run", "--json"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert json.loads(done.stdout)["prompts"] == 2


# --- status, watch


def test_status_without_any_run() -> None:
    assert "no run yet" in call("status").stdout
    assert answer("status", "--json") == {"runs": [], "workers": []}


def test_status_of_all_and_of_one(fleet: CommittedRunFixture, record: RunRecord) -> None:
    ref = fleet.commit(record, FIRST, range(4), {4: "truncated"})
    fleet.complete(ref, "r", FIRST)
    fleet.kill("r", SECOND, "its object is foreign")
    assert fleet.ledger.claim("r", LAST, "gpu0@h", 30.0).lease is not None
    fleet.ledger.announce(
        "gpu0@h",
        {"engine": "ready", "in_flight": 3, "limit": 8, "tokens_per_s": 50.0}
        | {"batches": [f"r/{LAST}"], "output_tokens": 900},
    )
    everything = answer("status", "--json")
    (run,) = everything["runs"]
    assert (run["done"], run["leased"], run["dead"], run["settled"]) == (1, 1, 1, 5)
    assert (run["accepted"], run["rejects"], run["working"]) == (4, {"truncated": 1}, 1)
    assert everything["workers"][0]["name"] == "gpu0@h"
    text = call("status").stdout
    assert "1/3" in text
    assert "3/8" in text
    one = answer("status", "r", "--json")
    assert one["leased_batches"] == [{"batch": LAST, "worker": "gpu0@h", "attempts": 0, "kept": 0}]
    (dead,) = one["dead_batches"]
    assert (dead["batch"], dead["reason"]) == (SECOND, "its object is foreign")
    assert dead["story"][-1] == "its object is foreign"
    lines = call("status", "r").stdout.splitlines()
    assert any("truncated 1" in line for line in lines)
    assert lines[-1] == (
        "1 of 3 batches done, 1 worker at 50 tokens/s, about 1 s left; "
        "1 batch is dead: dflashq backfill r"
    )


def test_a_run_that_nobody_knows_is_1() -> None:
    for args in (("status", "nope"), ("pause", "nope"), ("verify", "nope"), ("watch", "nope")):
        assert "nope" in call(*args, code=1).stderr


def test_redis_away_is_1_in_a_sentence_without_secrets(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DFLASHQ_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    said = call("status", code=1).stderr
    assert "did not answer" in said
    assert settings.redis_password is not None
    assert settings.redis_password.get_secret_value() not in said


def finish(fleet: CommittedRunFixture, record: RunRecord, *, last_dead: bool = False) -> None:
    fleet.complete(fleet.commit(record, FIRST, range(5)), "r", FIRST)
    fleet.complete(fleet.commit(record, SECOND, range(5, 10)), "r", SECOND)
    if last_dead:
        fleet.kill("r", LAST, "conflict")
    else:
        fleet.complete(fleet.commit(record, LAST, [10, 11]), "r", LAST)


def test_watch_ends_with_the_run(
    fleet: CommittedRunFixture, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflashq.cli.watch.LINE_S", 0.1)
    read, finished = text_views.read_details, threading.Event()

    def read_and_finish(ledger: Ledger, run: str) -> text_views.RunDetails:
        """The first look is at a run at work, every later one at a finished one."""
        details = read(ledger, run)
        if not finished.is_set():
            finished.set()
            finish(fleet, record)
        return details

    monkeypatch.setattr(text_views, "read_details", read_and_finish)
    shown = call("watch", "r").stdout.splitlines()
    assert shown[0].startswith("r: 0 of 3 batches done")
    assert shown[-1] == "r: 3 of 3 batches done: 12 accepted, 0 rejected; proof: dflashq verify r"


def test_watch_of_a_run_with_dead_batches_is_1(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    finish(fleet, record, last_dead=True)
    assert "1 batch is dead: dflashq backfill r" in call("watch", "r", code=1).stdout
    assert "conflict" in call("watch", "r", "--once", code=1).stdout


def test_watch_once(record: RunRecord) -> None:
    assert call("watch", "r", "--once").stdout.splitlines()[-1].startswith("0 of 3 batches done")


# --- pause, resume, cancel, verify, backfill, doctor


def test_pause_resume_cancel(fleet: CommittedRunFixture, record: RunRecord) -> None:
    assert answer("pause", "r", "--reason", "night", "--json")["state"] == "paused"
    assert "paused (night)" in call("status", "r").stdout
    shown = call("resume", "r").stdout
    assert "run r is active again: it goes on where it was" in shown
    assert "no worker is up: start one" in shown
    assert fleet.ledger.state("r") == "active"
    asked = call("cancel", "r", code=2)
    assert "--yes" in asked.stderr
    assert fleet.ledger.state("r") == "active"
    assert answer("cancel", "r", "--yes", "--json") == {
        "run": "r",
        "state": "cancelled",
        "reason": "",
    }
    assert "is cancelled and stays so" in call("resume", "r", code=1).stderr
    assert "cancelled for good" in call("backfill", "r", code=1).stderr
    mirrored = json.loads(fleet.blobs.get("runs/r/state.json").body)
    assert mirrored["state"] == "cancelled"


def test_resume_behind_a_dead_canary(fleet: CommittedRunFixture) -> None:
    fleet.enqueue("r", SPEC.model_copy(update={"guard": Guard(canary=5)}))
    fleet.kill("r", FIRST, "conflict")
    shown = call("status", "r").stdout
    assert f"its canary ({FIRST}) is dead: conflict" in shown
    assert answer("status", "r", "--json")["condition"] == "canary_dead"
    fleet.ledger.set_state("r", "paused", "its canary is dead")
    assert "run r is paused, nothing of it begins before: dflashq" in call("backfill", "r").stdout
    assert "the others wait" not in call("resume", "r").stdout, "it is pending already"
    fleet.kill("r", FIRST, "conflict")
    assert "is tried again, and the others wait" in call("resume", "r").stdout
    fleet.kill("r", FIRST, "conflict")
    told = answer("resume", "r", "--accept", "--json")
    assert (told["run"], told["state"]) == ("r", "active")
    assert "without its canary" in told["clause"]


def test_a_sick_worker_is_shown_as_sick(fleet: CommittedRunFixture, record: RunRecord) -> None:
    words = "each of 40 answers was HTTP 500"
    fleet.ledger.announce("w0", {"engine": "ready", "queue": SPEC.queue, "sick": words})
    shown = call("status").stdout
    assert re.search(r"^w0 +sick ", shown, re.MULTILINE)
    assert f"w0 is sick: {words}" in shown
    assert f"the engine of w0 is sick: {words}" in shown
    assert answer("status", "r", "--json")["condition"] == "engines_sick"


def test_verify_and_backfill(fleet: CommittedRunFixture, record: RunRecord) -> None:
    fleet.complete(fleet.commit(record, FIRST, range(5)), "r", FIRST)
    ref = fleet.commit(record, SECOND, range(5, 8), {8: "empty", 9: "truncated"})
    fleet.complete(ref, "r", SECOND)
    fleet.kill("r", LAST, "conflict")
    missing = call("verify", "r", code=1).stdout
    assert f"missing: {LAST}: 2 prompts not committed yet" in missing
    assert "not clean: 0 wrong, 1 missing" in missing
    assert answer("backfill", "r", "--json")["revived"] == [LAST]
    assert "0 dead batches put back" in call("backfill", "r").stdout
    assert answer("backfill", "r", "--rejected", "empty", "--json")["revisions"] == {
        f"{SECOND}.r1": 1
    }
    assert (
        "1 rejected prompt put back to work in 1 revision"
        in call("backfill", "r", "--rejected").stdout
    )
    for batch, index in ((LAST, [10, 11]), (f"{SECOND}.r1", [8]), (f"{SECOND}.r2", [9])):
        fleet.commit(record, batch, index)
    report = answer("verify", "r", "--json")
    assert (report["clean"], report["accepted"], report["rejected"]) == (True, 12, {})
    assert call("verify", "r").stdout.splitlines()[-1].startswith("clean: ")


def test_verify_shows_the_first_of_many(fleet: CommittedRunFixture) -> None:
    fleet.enqueue(spec=SPEC.model_copy(update={"batch_size": 1}), count=30)
    shown = call("verify", "r", code=1).stdout
    assert shown.count("missing: ") == 20
    assert "and 10 more missing (--json)" in shown
    assert len(answer("verify", "r", "--json", code=1)["missing"]) == 30


def test_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = answer("doctor", "--json")
    assert findings["ok"]
    assert {f["name"]: f["state"] for f in findings["findings"]}["s3"] == "ok"
    monkeypatch.setenv("DFLASHQ_S3_BUCKET", "no-such-bucket")
    result = call("doctor", "--profile", "no-such", code=1)
    states = {line[9:].partition(":")[0]: line.split()[0] for line in result.stdout.splitlines()}
    assert (states["redis"], states["s3"], states["profile"]) == ("ok", "failed", "failed")
