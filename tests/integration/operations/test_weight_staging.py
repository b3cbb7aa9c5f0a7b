"""Weights in memory: one copy a host, gone with its last user and not before."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from dflashq.config import Settings
from dflashq.core.errors import DflashqError
from dflashq.operations.hosts import weight_staging
from dflashq.operations.hosts.weight_staging import staged
from dflashq.system import disk
from tests.support.wait import WAIT_S

USER = (
    "import sys; from pathlib import Path\n"
    "from dflashq.operations.hosts.weight_staging import staged\n"
    "with staged(Path(sys.argv[1]), lambda line: None, Path(sys.argv[2])) as place:\n"
    "    print(place, flush=True); sys.stdin.read()"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.safetensors").write_bytes(b"weights")
    (folder / "inner" / "b.json").write_bytes(b"{}")
    return folder


class User:
    """Another process that uses a staged model until its input is closed."""

    def __init__(self, model: Path, shm: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(model), str(shm)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def place(self) -> Path:
        assert self.process.stdout is not None
        return Path(self.process.stdout.readline().strip())

    def leave(self) -> None:
        self.process.communicate(timeout=WAIT_S)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=WAIT_S)


def silent(_line: str) -> None:
    """Progress that nobody reads."""


def test_two_users_share_one_copy_and_the_last_frees_it(model: Path, tmp_path: Path) -> None:
    told: list[str] = []
    with staged(model, told.append, tmp_path / "shm") as first:
        assert (first / "a.safetensors").read_bytes() == b"weights"
        assert (first / "inner" / "b.json").read_bytes() == b"{}"
        copied = len(told)
        with staged(model, told.append, tmp_path / "shm") as second:
            assert second == first
        assert len(told) == copied, "the second user copies nothing"
        assert (first / "a.safetensors").exists(), "the first still uses it"
    assert not first.exists()


def test_a_killed_user_frees_nothing_that_another_uses(model: Path, tmp_path: Path) -> None:
    killed, other = User(model, tmp_path), User(model, tmp_path)
    place = killed.place()
    assert other.place() == place
    killed.kill()
    assert (place / "a.safetensors").read_bytes() == b"weights"
    other.leave()
    assert not place.exists()


def test_what_a_killed_last_user_left_is_freed_by_the_next(model: Path, tmp_path: Path) -> None:
    user = User(model, tmp_path / "shm")
    left = user.place()
    user.kill()
    assert left.is_dir()
    (model / "a.safetensors").write_bytes(b"other weights")
    with staged(model, silent, tmp_path / "shm") as place:
        assert place != left
        assert not left.exists()
        assert (place / "a.safetensors").read_bytes() == b"other weights"


def test_a_torn_copy_is_never_used(model: Path, tmp_path: Path) -> None:
    place = weight_staging._place(model, tmp_path)
    part = place.with_suffix(".part")
    part.mkdir(parents=True)
    (part / "a.safetensors").write_bytes(b"wei")
    with staged(model, silent, tmp_path) as found:
        assert (found / "a.safetensors").read_bytes() == b"weights"
        assert not part.exists()


def test_a_model_that_does_not_fit_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_staging, "room_left", lambda _: 3)
    with (
        pytest.raises(DflashqError, match="does not fit"),
        staged(model, silent, tmp_path / "shm"),
    ):
        pass
    assert not [p for p in (tmp_path / "shm").rglob("*") if p.suffix != ".lock" and p.is_file()]


def test_the_lock_is_the_count(model: Path, tmp_path: Path) -> None:
    with staged(model, silent, tmp_path) as place:
        handle = os.open(f"{place}.lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)


usage = namedtuple("usage", "total used free")


def test_a_full_place_is_told(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage(100, 79, 21))
    assert disk.full_places(settings) == []
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage(100, 80, 20))
    sentences = disk.full_places(settings)
    assert any("/dev/shm is 80% full" in sentence for sentence in sentences)
    assert any(str(settings.state_dir) in sentence for sentence in sentences)


def test_room_left_ends_at_four_fifths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage(1000, 300, 700))
    assert disk.room_left(tmp_path / "not" / "there") == 500
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage(1000, 900, 100))
    assert disk.room_left(tmp_path) == 0
