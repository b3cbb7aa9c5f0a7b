"""Lock files: one holder alone or many that share, and who holds it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from dflashq.system.file_lock import FileLock, LockHeldError, held
from tests.support.wait import WAIT_S


def test_a_second_claim_names_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path) as first, FileLock(path) as second:
        first.claim()
        with pytest.raises(LockHeldError, match=f"process {os.getpid()}") as refused:
            second.claim()
        assert refused.value.holder == str(os.getpid())
        first.close()
        first.close()
        second.claim()


def test_other_users_may_take_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        FileLock(tmp_path / "shared").close()
        FileLock(tmp_path / "own", mode=0o600).close()
    finally:
        os.umask(before)
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o666
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600


def test_many_share_and_the_last_one_may_hold_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path) as first, FileLock(path) as second:
        first.share()
        second.share()
        assert not first.try_hold()
        second.close()
        assert first.try_hold()


def test_who_waits_is_told_once_and_goes_on_when_it_is_free(tmp_path: Path) -> None:
    path, waits, entered = tmp_path / "sub" / "lock", threading.Event(), threading.Event()
    calls: list[int] = []

    def wait() -> None:
        calls.append(1)
        waits.set()

    def second() -> None:
        with held(path, wait):
            entered.set()

    with held(path, lambda: pytest.fail("nobody else holds it")):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(WAIT_S)
        assert not entered.is_set()
    assert entered.wait(WAIT_S)
    thread.join(WAIT_S)
    assert calls == [1]
