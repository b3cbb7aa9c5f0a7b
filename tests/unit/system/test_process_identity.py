"""A boot is told from any other, and only a process that can be looked for is called gone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from dflashq.core.worker_identity import ProcessIdentity, WorkerBoot
from dflashq.system import procfs
from dflashq.system.process_identity import new_boot, own_process, proved_gone


def test_a_boot_is_read_back_from_its_text() -> None:
    boot = new_boot("gpu0@h")
    assert WorkerBoot.parse("gpu0@h", boot.text) == boot
    assert boot.text == f"{procfs.boot_id()}:{boot.started_ms}:{boot.token}"
    for text in ("", "host", "host:now:token", "host:1:a:b", ":1:a"):
        assert WorkerBoot.parse("gpu0@h", text) is None


def test_no_two_boots_are_alike_and_the_later_has_the_later_start() -> None:
    boots = [new_boot("gpu0@h") for _ in range(100)]
    assert len({boot.text for boot in boots}) == 100
    assert [boot.started_ms for boot in boots] == sorted(boot.started_ms for boot in boots)


def test_a_host_that_cannot_be_told_is_like_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> str:
        raise PermissionError("no /proc/sys here")

    monkeypatch.setattr(procfs, "boot_id", unreadable)
    assert new_boot("w").host_id != new_boot("w").host_id


@pytest.fixture
def ended() -> ProcessIdentity:
    """A process of ours that has ended."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    started = procfs.start_time(process.pid)
    assert started is not None
    process.communicate(b"\n")
    return ProcessIdentity(process.pid, procfs.pid_namespace(), started)


def row_of(process: ProcessIdentity, boot: WorkerBoot) -> dict[str, Any]:
    return {"boot": boot.text, **process.row()}


def test_an_ended_process_of_this_host_is_gone(ended: ProcessIdentity) -> None:
    old, new = new_boot("w"), new_boot("w")
    assert proved_gone(row_of(ended, old), new)
    assert not proved_gone(row_of(own_process(), old), new)


def test_another_process_with_the_number_of_the_ended_one_is_not_it() -> None:
    recycled = replace(own_process(), start_ticks=own_process().start_ticks - 1)
    assert proved_gone(row_of(recycled, new_boot("w")), new_boot("w"))


def test_nothing_is_proved_of_what_cannot_be_looked_for(ended: ProcessIdentity) -> None:
    boot = new_boot("w")
    elsewhere = replace(boot, host_id="another-host")
    assert not proved_gone(row_of(ended, elsewhere), boot)
    assert not proved_gone(row_of(replace(ended, pid_namespace="pid:[1]"), boot), boot)
    assert not proved_gone(row_of(replace(ended, pid_namespace=""), boot), boot)
    assert not proved_gone({"boot": boot.text, "pid": ended.pid}, boot)
    assert not proved_gone({"pid": 1}, boot)
    assert not proved_gone(row_of(replace(ended, pid=0), boot), boot)


def test_a_proc_that_hides_or_belongs_to_others_proves_nothing(
    ended: ProcessIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = new_boot("w")
    monkeypatch.setattr(procfs, "_stat", lambda pid: None)  # as with hidepid=2
    assert not proved_gone(row_of(own_process(), boot), boot)
    monkeypatch.setattr(os, "readlink", lambda path: "1")  # as after unshare without a new /proc
    assert procfs.pid_namespace() == ""
    assert not proved_gone(row_of(replace(ended, pid_namespace=""), boot), boot)
