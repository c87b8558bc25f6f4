from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import CheckpointError, ConfigError
from orchestrator.reporting.names import check_name_is_free
from orchestrator.reporting.run_folder import RunFolder

PLAIN_NAMES = ["my run", "läufe-日本", "a#b", "a%20b", "x:y", "[bold]", "-x"]


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_a_name_is_a_plain_folder_name(tmp_path: Path, name: str) -> None:
    with RunFolder.create(str(tmp_path), name, resume=False) as folder:
        assert folder.path == tmp_path / name
        assert folder.checkpoints == str(tmp_path / name / "checkpoints")
        assert read(folder.path / "status.json")["run_name"] == name


@pytest.mark.parametrize("output_dir", ["with space", "ü", "a#b", "a%20b", "slash/"])
def test_output_dir_is_a_plain_path(tmp_path: Path, output_dir: str) -> None:
    with RunFolder.create(f"{tmp_path}/{output_dir}", "r", resume=False) as folder:
        assert folder.path == tmp_path / output_dir.rstrip("/") / "r"


def test_output_dir_relative_home_and_symlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for output_dir, expected in (("runs", "runs"), ("~/runs", "home/runs"), ("link", "link")):
        with RunFolder.create(output_dir, "r", resume=False) as folder:
            assert folder.path == tmp_path / expected / "r"
    assert (tmp_path / "real" / "r" / "status.json").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\nb", "x" * 201, "\udcff"])
def test_a_name_that_is_no_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="--run-name"):
        RunFolder.create(str(tmp_path), name, resume=False)
    assert list(tmp_path.iterdir()) == []


def test_a_name_in_use_is_refused_with_what_to_type(tmp_path: Path) -> None:
    with RunFolder.create(str(tmp_path), "r", resume=False) as folder:
        folder.append_metrics({"step": 1})
    (tmp_path / "r-2").mkdir()
    before = (tmp_path / "r" / "status.json").read_bytes()
    with pytest.raises(ConfigError, match=r"--resume auto.*--run-name r-3\.") as raised:
        RunFolder.create(str(tmp_path), "r", resume=False)
    assert raised.value.exit_code == 2
    assert (tmp_path / "r" / "status.json").read_bytes() == before


def test_the_name_of_a_run_that_failed_before_its_first_step_may_be_used_again(tmp_path: Path) -> None:
    with RunFolder.create(str(tmp_path), "r", resume=False) as folder:
        folder.write_config("lr: 1")
        folder.update_status(state="failed", exit_code=3)
    with RunFolder.create(str(tmp_path), "r", resume=False) as folder:
        status = read(folder.path / "status.json")
    assert (status["state"], status["exit_code"]) == ("starting", None)


def test_a_used_name_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    check_name_is_free(str(tmp_path), "r", resume=False)
    assert list(tmp_path.iterdir()) == []
    with RunFolder.create(str(tmp_path), "r", resume=False) as folder:
        folder.append_metrics({"step": 1})
    with pytest.raises(ConfigError, match="--resume auto"):
        check_name_is_free(str(tmp_path), "r", resume=False)
    check_name_is_free(str(tmp_path), "r", resume=True)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    with RunFolder.create(str(tmp_path), "r", resume=False) as folder:
        assert read(folder.path / "status.json")["state"] == "starting"


def test_resume_opens_a_run_or_begins_it_and_changes_nothing(tmp_path: Path) -> None:
    with RunFolder.create(str(tmp_path), "r", resume=True) as folder:
        folder.update_status(state="stopped", step=7)
    with RunFolder.create(str(tmp_path), "r", resume=True) as folder:
        assert read(folder.path / "status.json")["step"] == 7


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.c").write_text("int main;")
    with pytest.raises(ConfigError, match="something else than a run"):
        RunFolder.create(str(tmp_path), "src", resume=resume)


@pytest.mark.parametrize("resume", [False, True])
def test_a_running_run_is_refused_naming_its_process(tmp_path: Path, resume: bool) -> None:
    running = RunFolder.create(str(tmp_path), "r", resume=False)
    with pytest.raises(ConfigError, match=rf"process {os.getpid()} on .*\. Wait for it"):
        RunFolder.create(str(tmp_path), "r", resume=resume)
    running.close()
    RunFolder.create(str(tmp_path), "r", resume=True).close()


def test_the_lock_ends_with_a_killed_driver(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from orchestrator.reporting.run_folder import RunFolder\n"
        "folder = RunFolder.create(sys.argv[1], 'r', resume=False); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -9
    with RunFolder.create(str(tmp_path), "r", resume=True) as folder:
        assert f"process {os.getpid()} " in (folder.path / ".lock").read_text()


def test_of_drivers_that_start_together_one_wins(tmp_path: Path) -> None:
    code = (
        "import sys; from orchestrator.errors import ConfigError\n"
        "from orchestrator.reporting.run_folder import RunFolder\n"
        "sys.stdin.readline()\n"
        "try: folder = RunFolder.create(sys.argv[1], 'r', resume=False)\n"
        "except ConfigError: print('refused', flush=True)\n"
        "else: print('mine', flush=True)\n"
        "sys.stdin.readline()"
    )
    drivers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.write("go\n")
        driver.stdin.flush()
    answers = [driver.stdout.readline().strip() for driver in drivers if driver.stdout is not None]
    for driver in drivers:
        driver.communicate("end\n")
    assert sorted(answers) == ["mine", "refused", "refused", "refused"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        CheckpointError, match=r"file/runs/r cannot be written: Not a directory.*--output-dir"
    ) as raised:
        RunFolder.create(str(tmp_path / "file" / "runs"), "r", resume=False)
    assert raised.value.exit_code == 9


def test_files(tmp_path: Path) -> None:
    with RunFolder.create(str(tmp_path), "r", resume=False) as folder:
        folder.write_config("epochs: 2\n")
        folder.write_env({"python": "3.11", "workers": None})
        folder.write_env({"workers": [{"rank": 0, "host": "ü"}]})
        folder.write_summary({"train_loss": float("nan"), "nested": [{"x": float("-inf")}, 1]})
        folder.write_traceback("Traceback")
        assert (folder.path / "traceback.txt").read_text() == "Traceback"
        assert (folder.path / "config.yaml").read_text() == "epochs: 2\n"
        assert read(folder.path / "env.json") == {"python": "3.11", "workers": [{"rank": 0, "host": "ü"}]}
        assert read(folder.path / "summary.json") == {"train_loss": None, "nested": [{"x": None}, 1]}
        folder.clear_failure()
    left = {p.name for p in folder.path.iterdir()}
    assert left == {".lock", "config.yaml", "env.json", "status.json"}


def test_status_has_all_fields_from_the_beginning(tmp_path: Path) -> None:
    with RunFolder.create(str(tmp_path), "r", resume=False) as folder:
        first = read(folder.path / "status.json")
        folder.update_status(state="running", epoch=1, eta_s=float("inf"))
        second = read(folder.path / "status.json")
        with pytest.raises(KeyError, match="has no field epcoh"):
            folder.update_status(epcoh=2)
    names = "state run_name epoch epochs step total_steps progress eta_s started_at updated_at pid host exit_code error"
    assert list(first) == names.split()
    assert (first["state"], first["pid"], first["exit_code"], first["error"]) == ("starting", os.getpid(), None, None)
    assert first["started_at"].endswith("+00:00")
    assert second == first | {"state": "running", "epoch": 1, "updated_at": second["updated_at"]}


def test_metrics_are_lines_that_are_there_at_once(tmp_path: Path) -> None:
    with RunFolder.create(str(tmp_path), "r", resume=False) as folder:
        for step in (1, 2):
            folder.append_metrics({"step": step, "train/loss": 0.1 * step, "train/grad_norm": float("inf")})
            lines = (folder.path / "metrics.jsonl").read_text().splitlines()
            assert json.loads(lines[-1]) == {"step": step, "train/loss": 0.1 * step, "train/grad_norm": None}
        assert len(lines) == 2


def test_truncate_keeps_each_step_once(tmp_path: Path) -> None:
    with RunFolder.create(str(tmp_path), "r", resume=False) as folder:
        folder.truncate_metrics(0)
        for step in (2, 4, 6):
            folder.append_metrics({"step": step, "value": 0.1})
        with open(folder.path / "metrics.jsonl", "a") as file:
            file.write('{"step": 4, "val')
        folder.truncate_metrics(4)
        folder.append_metrics({"step": 6, "value": 0.2})
        assert [(line["step"], line["value"]) for line in folder.metrics()] == [(2, 0.1), (4, 0.1), (6, 0.2)]
        assert len((folder.path / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with RunFolder.create(str(tmp_path), "r", resume=False) as folder:
        (folder.path / "metrics.jsonl").symlink_to("/dev/full")
        with pytest.raises(CheckpointError, match=r"r/metrics\.jsonl cannot be written: No space left"):
            folder.append_metrics({"step": 1})


def test_a_folder_that_went_away_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with RunFolder.create(str(tmp_path), "r", resume=False) as folder:
        folder.path.rename(tmp_path / "elsewhere")
        with pytest.raises(CheckpointError, match=r"r/status\.json cannot be written: No such file"):
            folder.update_status(state="running")
        folder.write_traceback("does not hide what happened")
