"""Whole runs on real Ray workers, on one standing cluster that all of these tests share."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from orchestrator.driver.job import run_command
from orchestrator.training.weights import weights_sha256
from tests.toy import write_idx_folder

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Ray cluster of 4 logical CPUs, a child of this process."""
    port = free_port()
    command = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        "--block",
        f"--port={port}",
        "--num-cpus=4",
    ]
    command += ["--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=128000000"]
    log = tmp_path_factory.mktemp("cluster") / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "Ray runtime started" in log.read_text(), 120, log.read_text)
        yield f"127.0.0.1:{port}"
    finally:
        for part in [*psutil.Process(process.pid).children(recursive=True), process]:
            part.kill()
        process.wait(60)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(condition: Callable[[], object], timeout_s: float, explain: Callable[[], object]) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_idx_folder(tmp_path / "data", num_train=100, num_validation=53, size=8)


def run(folder: Path, data: Path, *flags: str) -> tuple[int, Path, dict[str, Any]]:
    """Exit code, run folder and summary of a run with these flags."""
    arguments = [
        "--dataset", str(data), "--output-dir", str(folder), "--run-name", "run", "--epochs", "2", "--batch-size", "24",
        "--precision", "fp32", "--quiet",
    ]  # fmt: skip
    for name, value in zip(flags[::2], flags[1::2], strict=True):
        if name in arguments:
            arguments[arguments.index(name) + 1] = value
        else:
            arguments += [name, value]
    code = run_command(arguments, prog="train", description="")
    summary = folder / "run" / "summary.json"
    return code, folder / "run", json.loads(summary.read_text()) if summary.exists() else {}


def test_one_ray_worker_equals_this_process(cluster: str, data: Path, tmp_path: Path) -> None:
    here = run(tmp_path / "here", data, "--num-workers", "0")
    there = run(tmp_path / "there", data, "--num-workers", "1", "--address", cluster)
    assert here[0] == there[0] == 0
    assert there[2]["weights_sha256"] == here[2]["weights_sha256"]
    assert there[2]["validation_loss"] == here[2]["validation_loss"]


def test_three_workers_leave_the_files_of_a_run_and_the_weights_of_one(
    cluster: str, data: Path, tmp_path: Path
) -> None:
    flags = ("--log-every", "2", "--micro-batch-size", "5")
    code, folder, summary = run(tmp_path, data, "--num-workers", "3", "--address", cluster, *flags)
    assert code == 0
    assert summary["weights_sha256"] == run(tmp_path / "here", data, "--num-workers", "0", *flags)[2]["weights_sha256"]
    assert (summary["steps"], summary["samples_seen"], summary["num_workers"]) == (10, 200, 3)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["event"] == "epoch"] == [1, 2]
    assert {line["validation/samples"] for line in lines if line["event"] == "epoch"} == {53}
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["progress"], status["exit_code"]) == ("finished", 1.0, 0)
    workers = json.loads((folder / "env.json").read_text())["workers"]
    assert [w["rank"] for w in workers] == [0, 1, 2]
    assert len({w["pid"] for w in workers}) == 3
    assert {w["threads"] for w in workers} == {1}
    assert (folder / "model.safetensors").stat().st_size > 0
    assert (folder / "checkpoints" / "epoch_0002" / "meta.json").exists()


def test_a_loss_that_is_not_finite_is_exit_code_6_with_its_place(
    cluster: str, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, folder, _ = run(
        tmp_path, data, "--num-workers", "2", "--address", cluster, "--lr", "1e30", "--log-every", "1"
    )
    said = capfd.readouterr()
    assert code == 6
    error = json.loads((folder / "status.json").read_text())["error"]
    assert error["class"] == "NonFiniteError"
    assert "in epoch 1, step" in said.err
    assert "Traceback" not in said.err + said.out
    assert not list((folder / "checkpoints").glob("epoch_*"))


def test_a_run_may_live_behind_a_uri(cluster: str, data: Path, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/remote"
    code, _, _ = run(tmp_path, data, "--num-workers", "2", "--address", cluster, "--output-dir", uri)
    folder = tmp_path / "remote" / "run"
    assert code == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["state"] == "finished"
    assert weights_sha256(load_file(folder / "model.safetensors")) == summary["weights_sha256"]
    assert (folder / "checkpoints" / "epoch_0002" / "meta.json").exists()


def test_more_workers_than_the_cluster_has_are_refused(
    cluster: str, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, folder, _ = run(tmp_path, data, "--num-workers", "9", "--address", cluster, "--batch-size", "90")
    assert code == 3
    assert "needs 9 CPUs" in capfd.readouterr().err
    assert json.loads((folder / "status.json").read_text())["state"] == "failed"


def children_left(pid_before: set[int]) -> list[str]:
    names = ("ray::", "raylet", "gcs_server")
    return [
        " ".join(p.info["cmdline"] or [])
        for p in psutil.process_iter(["cmdline"])
        if p.pid not in pid_before and any(n in " ".join(p.info["cmdline"] or []) for n in names)
    ]


def test_sigterm_saves_ends_with_75_leaves_nothing_running_and_is_resumed_exactly(data: Path, tmp_path: Path) -> None:
    before = {p.pid for p in psutil.process_iter()}
    flags = ["--num-workers", "1", "--epochs", "60", "--log-every", "5"]
    command = [
        sys.executable,
        "-m",
        "orchestrator.train",
        "--dataset",
        str(data),
        "--batch-size",
        "24",
        "--precision",
        "fp32",
    ]
    command += ["--output-dir", str(tmp_path), "--run-name", "stopped", *flags]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    status = tmp_path / "stopped" / "status.json"
    wait_until(lambda: status.exists() and json.loads(status.read_text())["step"] > 0, 120, lambda: "no step")
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert "--resume auto --run-name stopped" in said
    assert 0 < json.loads(status.read_text())["step"] < 300
    wait_until(lambda: not children_left(before), 30, lambda: children_left(before))
    whole = run(tmp_path / "whole", data, "--num-workers", "0", "--epochs", "60")[2]
    resumed = subprocess.run([*command, "--resume", "auto"], env=environment, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    summary = json.loads((tmp_path / "stopped" / "summary.json").read_text())
    assert summary["weights_sha256"] == whole["weights_sha256"]
    steps = [json.loads(line) for line in (tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines()]
    epochs = [line["epoch"] for line in steps if line["event"] == "epoch"]
    assert epochs == list(range(1, 61))
