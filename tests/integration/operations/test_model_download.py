"""Fetching a model: whole or not at all, resumed, every file proven by its sha256."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from dflashq.blobs.s3 import make_client
from dflashq.config import Settings
from dflashq.core.errors import BlobError, DflashqError, UsageError
from dflashq.embedded.cpu_engine import MODEL_RECORD
from dflashq.operations.hosts.model_download import Body, LocalSource, check_record, fetch
from dflashq.operations.hosts.model_sources import S3Folder, download

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "a.safetensors": b"weights" * 1000,
    "inner/b.safetensors": b"more",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for name, body in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref")
    return folder


class Counting(LocalSource):
    """A folder that counts what is read, and breaks off where it is told to."""

    def __init__(self, folder: Path, breaks_at: str = "") -> None:
        super().__init__(folder)
        self.opened: list[str] = []
        self.breaks_at = breaks_at

    def open(self, path: str) -> Body:
        self.opened.append(path)
        if path == self.breaks_at:
            raise BlobError("the line broke")
        return super().open(path)


def silent(_line: str) -> None:
    """Progress that nobody reads."""


def test_a_folder_is_copied_recorded_and_checked_again(model: Path, tmp_path: Path) -> None:
    there = tmp_path / "cache" / "m"
    said = fetch(LocalSource(model), there, "abc", silent)
    assert "weight file" in said
    assert str(there) in said
    for name, body in FILES.items():
        assert (there / name).read_bytes() == body
    assert not (there / ".git").exists()
    record = json.loads((there / MODEL_RECORD).read_bytes())
    assert record["revision"] == "abc"
    assert record["sha256"] == {n: hashlib.sha256(b).hexdigest() for n, b in FILES.items()}
    assert "4 files as recorded" in fetch(LocalSource(model), there, "abc", silent)


def test_an_interrupted_fetch_goes_on_where_it_was(model: Path, tmp_path: Path) -> None:
    there = tmp_path / "m"
    broken = Counting(model, breaks_at="inner/b.safetensors")
    with pytest.raises(BlobError, match="broke"):
        fetch(broken, there, "", silent)
    assert not there.exists()
    again = Counting(model)
    fetch(again, there, "", silent)
    assert again.opened == ["inner/b.safetensors", "tokenizer.json"]


def test_a_file_that_rotted_between_two_tries_is_fetched_again(model: Path, tmp_path: Path) -> None:
    there = tmp_path / "m"
    with pytest.raises(BlobError):
        fetch(Counting(model, breaks_at="tokenizer.json"), there, "", silent)
    rotten = tmp_path / "m.part" / "a.safetensors"
    rotten.write_bytes(b"x" * rotten.stat().st_size)
    with pytest.raises(DflashqError, match=r"a\.safetensors changed on disk"):
        fetch(LocalSource(model), there, "", silent)
    fetch(LocalSource(model), there, "", silent)
    assert (there / "a.safetensors").read_bytes() == FILES["a.safetensors"]


def test_a_changed_or_lost_file_is_found(model: Path, tmp_path: Path) -> None:
    there = tmp_path / "m"
    fetch(LocalSource(model), there, "", silent)
    (there / "a.safetensors").write_bytes(b"weighty" * 1000)
    (there / "tokenizer.json").unlink()
    with pytest.raises(DflashqError, match=r"a\.safetensors, tokenizer\.json"):
        check_record(there, silent)


def test_a_folder_of_somebody_else_is_left_alone(model: Path, tmp_path: Path) -> None:
    there = tmp_path / "m"
    there.mkdir()
    (there / "mine").touch()
    with pytest.raises(DflashqError, match="not fetched by this command"):
        fetch(LocalSource(model), there, "", silent)
    assert (there / "mine").exists()


def test_an_incomplete_model_never_gets_its_name(model: Path, tmp_path: Path) -> None:
    index = {"weight_map": {"x": "a.safetensors", "y": "lost.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DflashqError, match=r"lost\.safetensors"):
        fetch(LocalSource(model), tmp_path / "m", "", silent)
    assert not (tmp_path / "m").exists()


def test_a_model_comes_from_s3(settings: Settings, model: Path, tmp_path: Path) -> None:
    client = make_client(settings)
    prefix = f"{settings.s3_prefix}models/m"
    for name, body in FILES.items():
        client.put_object(Bucket=settings.s3_bucket, Key=f"{prefix}/{name}", Body=body)
    there = tmp_path / "m"
    fetch(S3Folder(settings, f"s3://{settings.s3_bucket}/{prefix}"), there, "", silent)
    assert (there / "inner" / "b.safetensors").read_bytes() == b"more"
    assert "4 files as recorded" in check_record(there, silent)


def test_an_empty_prefix_and_a_wrong_bucket_are_told(settings: Settings, tmp_path: Path) -> None:
    empty = S3Folder(settings, f"s3://{settings.s3_bucket}/no/such")
    with pytest.raises(DflashqError, match="holds no files"):
        fetch(empty, tmp_path / "m", "", silent)
    with pytest.raises(BlobError, match="cannot be read"):
        fetch(S3Folder(settings, "s3://no-such-bucket/m"), tmp_path / "m", "", silent)
    with pytest.raises(UsageError, match="no s3://"):
        S3Folder(settings, "s3://")


def test_the_hub_is_asked_for_a_pinned_revision_only(tmp_path: Path) -> None:
    part, log = tmp_path / "part", tmp_path / "log"
    with pytest.raises(UsageError, match="no pinned revision"):
        download(Path("python"), "org/model", "", part, log, silent)
    said = tmp_path / "said"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\necho "$@" > {said}\necho "$HF_HUB_OFFLINE" >> {said}\n')
    python.chmod(0o755)
    download(python, "org/model", "c0ffee", part, log, silent)
    assert said.read_text().split() == ["org/model", "c0ffee", str(part), "0"]
