from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orchestrator.errors import CheckpointError, ConfigError
from orchestrator.reporting.run_folder import RunFolder
from orchestrator.reporting.storage import join_uri


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("uri", "joined"),
    [
        ("s3://bucket/runs", "s3://bucket/runs/r"),
        ("s3://bucket/runs/", "s3://bucket/runs/r"),
        ("s3://bucket/runs?region=x&scheme=http", "s3://bucket/runs/r?region=x&scheme=http"),
    ],
)
def test_join_uri(uri: str, joined: str) -> None:
    assert join_uri(uri, "r") == joined


def test_files_are_staged_and_copied(tmp_path: Path) -> None:
    uri, there = f"file://{tmp_path}/remote", tmp_path / "remote" / "r"
    with RunFolder.create(uri, "r", resume=False) as folder:
        assert folder.location == f"{uri}/r"
        assert folder.checkpoints == f"{uri}/r/checkpoints"
        assert folder.path.is_relative_to(tmp_path / "xdg-cache" / "orchestrator" / "runs")
        assert files(there) == {"status.json"}
        (folder.path / "tensorboard").mkdir()
        (folder.path / "tensorboard" / "events.1").write_text("x")
        (folder.path / "checkpoints").mkdir()
        (folder.path / "checkpoints" / "large").write_text("x")
        folder.append_metrics({"step": 1})
        folder.sync()
        assert files(there) == {"status.json", "metrics.jsonl", "tensorboard/events.1"}
        (there / "tensorboard" / "events.1").unlink()
        folder.append_metrics({"step": 2})
        folder.sync()
    assert (there / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'
    assert not (there / "tensorboard" / "events.1").exists(), "what has not changed is not copied again"


def test_a_name_in_use_there_is_refused(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/remote"
    with RunFolder.create(uri, "r", resume=False) as folder:
        folder.append_metrics({"step": 1})
        folder.sync()
    shutil.rmtree(tmp_path / "xdg-cache")
    with pytest.raises(ConfigError, match=r"remote/r\. Add --resume auto"):
        RunFolder.create(uri, "r", resume=False)


def test_resume_on_another_machine_goes_on_with_the_metrics(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/remote"
    with RunFolder.create(uri, "r", resume=False) as folder:
        folder.append_metrics({"step": 1})
        folder.sync()
    shutil.rmtree(tmp_path / "xdg-cache")
    with RunFolder.create(uri, "r", resume=True) as folder:
        folder.append_metrics({"step": 2})
        folder.sync()
    lines = (tmp_path / "remote" / "r" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_what_an_earlier_run_staged_is_not_in_a_new_one(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/remote"
    with RunFolder.create(uri, "r", resume=False) as folder:
        folder.append_metrics({"step": 1})
    shutil.rmtree(tmp_path / "remote")
    with RunFolder.create(uri, "r", resume=False) as folder:
        assert list(folder.metrics()) == []


@pytest.mark.parametrize("name", ["a b", "a#b", "a%20b", "ü", ".hidden"])
def test_a_name_that_a_uri_would_change_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be part of the URI"):
        RunFolder.create(f"file://{tmp_path}", name, resume=False)


@pytest.mark.parametrize("uri", ["ftp://host/runs", "s4://bucket/runs", "file://relative/runs"])
def test_a_uri_that_cannot_be_opened(uri: str) -> None:
    with pytest.raises(ConfigError, match=f"--output-dir {uri} cannot be opened"):
        RunFolder.create(uri, "r", resume=False)


def test_storage_that_fails_later(tmp_path: Path) -> None:
    with RunFolder.create(f"file://{tmp_path}/remote", "r", resume=False) as folder:
        shutil.rmtree(tmp_path / "remote")
        (tmp_path / "remote").write_text("in the way")
        folder.append_metrics({"step": 1})
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl of the run at file://.*cannot be written"):
            folder.sync()
