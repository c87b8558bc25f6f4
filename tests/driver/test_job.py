"""The whole command in this process (`--num-workers 0`): its files, its exit codes, its resumptions."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from orchestrator.config.options import TrainConfig
from orchestrator.driver.job import default_run_name, run_command
from orchestrator.models.build import build_model
from orchestrator.training.weights import weights_sha256
from tests.toy import write_idx_folder

pytestmark = pytest.mark.usefixtures("_torch_state")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_idx_folder(tmp_path / "data", num_train=64, num_validation=30, size=8)


DEFAULTS = {"--num-workers": "0", "--epochs": "2", "--batch-size": "16", "--precision": "fp32"}


def train(data: Path | str, *flags: str, output: Path | str | None = None, name: str = "run") -> int:
    arguments = [part for flag, value in DEFAULTS.items() if flag not in flags for part in (flag, value)]
    where = output if output is not None else Path(data).parent / "runs"
    arguments += ["--dataset", str(data), "--output-dir", str(where), "--run-name", name, *flags]
    return run_command(arguments, prog="python -m orchestrator.train", description="")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_run_leaves_its_files_and_they_agree(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(data, "--log-every", "2") == 0
    folder = tmp_path / "runs" / "run"
    summary, status = read(folder / "summary.json"), read(folder / "status.json")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["event"] == "epoch"]
    assert (summary["state"], summary["steps"], summary["samples_seen"], summary["epochs"]) == ("finished", 8, 128, 2)
    assert (status["state"], status["exit_code"], status["progress"]) == ("finished", 0, 1.0)
    assert summary["validation_accuracy"] == epochs[-1]["validation/accuracy"]
    assert summary["best_validation_accuracy"] == max(e["validation/accuracy"] for e in epochs)
    assert (summary["batch_size"], summary["micro_batch_size"], summary["micro_batches_per_step"]) == (16, 16, 1)
    assert weights_sha256(load_file(folder / "model.safetensors")) == summary["weights_sha256"]
    model = build_model(TrainConfig(), channels=1, height=8, width=8, num_classes=10)
    model.load_state_dict(load_file(folder / "best.safetensors"))
    assert list((folder / "tensorboard").iterdir())
    said = capsys.readouterr().out
    assert f"{summary['best_validation_accuracy']:.2%}" in said
    assert str(folder) in said


def test_its_config_repeats_the_run(data: Path, tmp_path: Path) -> None:
    assert train(data, "--seed", "3", "--augment", "strong") == 0
    config = tmp_path / "runs" / "run" / "config.yaml"
    again = ["--config", str(config), "--run-name", "again"]
    assert run_command(again, prog="", description="") == 0
    first, second = (read(tmp_path / "runs" / name / "summary.json") for name in ("run", "again"))
    assert second["weights_sha256"] == first["weights_sha256"]


def test_a_name_in_use_is_refused_and_nothing_is_changed(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(data)
    before = (tmp_path / "runs" / "run" / "summary.json").read_bytes()
    assert train(data, "--lr", "0.5") == 2
    assert "--resume auto" in capsys.readouterr().err
    assert (tmp_path / "runs" / "run" / "summary.json").read_bytes() == before


def test_a_finished_run_has_nothing_left_to_resume(data: Path, tmp_path: Path) -> None:
    train(data)
    before = (tmp_path / "runs" / "run" / "summary.json").read_bytes()
    assert train(data, "--resume", "auto") == 0
    assert (tmp_path / "runs" / "run" / "summary.json").read_bytes() == before


def test_time_limit_stops_with_75_and_the_same_command_goes_on_exactly(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--epochs", "40", "--log-every", "3"]
    assert train(data, *flags, "--max-time", "0.001") == 75
    assert "--resume auto --run-name run" in capsys.readouterr().out
    assert read(tmp_path / "runs" / "run" / "status.json")["state"] == "stopped"
    assert train(data, *flags, "--resume", "auto") == 0
    assert train(data, *flags, name="whole") == 0
    resumed, whole = (read(tmp_path / "runs" / n / "summary.json") for n in ("run", "whole"))
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert resumed["samples_seen"] == whole["samples_seen"] == 40 * 64
    steps = [json.loads(line) for line in (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [s["epoch"] for s in steps if s["event"] == "epoch"] == list(range(1, 41))


def test_resuming_another_training_is_refused_field_by_field(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(data, "--max-time", "0.001", "--epochs", "9", "--log-every", "1")
    assert train(data, "--resume", "auto", "--epochs", "9", "--lr", "0.5", "--seed", "1") == 2
    said = capsys.readouterr().err
    assert "lr: 0.003 before, 0.5 now" in said
    assert "seed: 0 before, 1 now" in said
    assert "epochs" not in said.split("asked for:")[1]


def test_a_new_run_begins_with_the_checkpoint_of_another(data: Path, tmp_path: Path) -> None:
    train(data, "--epochs", "3")
    checkpoint = tmp_path / "runs" / "run" / "checkpoints" / "epoch_0003"
    assert train(data, "--epochs", "3", "--resume", str(checkpoint), name="other") == 0
    first, second = (read(tmp_path / "runs" / n / "summary.json") for n in ("run", "other"))
    assert second["weights_sha256"] == first["weights_sha256"]
    assert train(data, "--resume", str(tmp_path / "data"), name="none") == 9


@pytest.mark.parametrize("damage", ["cut", "empty", "foreign"])
def test_a_damaged_checkpoint_is_refused_by_name(
    data: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train(data, "--max-time", "0.001", "--epochs", "9", "--log-every", "1")
    (checkpoint,) = (tmp_path / "runs" / "run" / "checkpoints").iterdir()
    file = checkpoint / "trainer.pt"
    content = file.read_bytes()
    file.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "foreign": b"not a checkpoint"}[damage])
    assert train(data, "--resume", "auto", "--epochs", "9", "--log-every", "1") == 9
    said = capsys.readouterr().err
    assert str(checkpoint) in said
    assert "Traceback" not in said


def test_weights_of_a_run_are_a_beginning_for_the_next(data: Path, tmp_path: Path) -> None:
    train(data)
    weights = tmp_path / "runs" / "run" / "model.safetensors"
    assert train(data, "--pretrained", str(weights), "--lr", "1e-30", name="next") == 0
    first, second = (read(tmp_path / "runs" / n / "summary.json") for n in ("run", "next"))
    assert second["validation_accuracy"] == first["validation_accuracy"]


REFUSED = [
    (
        "a batch larger than the data",
        2,
        ["--batch-size", "100"],
        "--batch-size 100 is more than the 64 training samples",
    ),
    ("a flag that is none", 2, ["--bach-size", "3"], "Did you mean --batch-size?"),
    ("a network that is none", 2, ["--model", "torchvision/resnet19"], "resnet18"),
    ("no GPU", 3, ["--use-gpu"], "--use-gpu"),
    ("a warm-up longer than the run", 2, ["--warmup-steps", "8"], "--warmup-steps 8"),
    ("weights that are not there", 2, ["--pretrained", "/no/such/file.pt"], "/no/such/file.pt"),
    ("a URI without Ray", 2, ["--output-dir", "file:///tmp/x"], "--num-workers 0"),
    ("a configuration that is not there", 2, ["--config", "/no/such.yaml"], "/no/such.yaml"),
]


@pytest.mark.parametrize(("code", "flags", "said"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_cannot_be_meant_is_refused_before_a_folder_is_made(
    data: Path, tmp_path: Path, code: int, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--use-gpu" in flags and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    base = {"--dataset": str(data), "--output-dir": str(tmp_path / "runs"), **DEFAULTS}
    arguments = [part for flag, value in base.items() if flag not in flags for part in (flag, value)]
    assert run_command([*arguments, *flags], prog="", description="") == code
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_damaged_data_is_exit_code_4_with_file_and_numbers(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = data / "train-labels-idx1-ubyte.gz"
    shutil.copy(data / "t10k-labels-idx1-ubyte.gz", labels)
    assert train(data) == 4
    err = capsys.readouterr().err
    assert f"has 64 images and {labels} has 30 labels" in err
    assert not (tmp_path / "runs").exists()


def test_a_loss_that_is_not_finite_is_exit_code_6(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(data, "--lr", "1e30", "--log-every", "1") == 6
    error = read(tmp_path / "runs" / "run" / "status.json")["error"]
    assert error["class"] == "NonFiniteError"
    assert error["message"] in capsys.readouterr().err
    assert "NonFiniteError" in (tmp_path / "runs" / "run" / "traceback.txt").read_text()


def test_a_dry_run_tells_everything_and_writes_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert train(data, "--dry-run", "--micro-batch-size", "4") == 0
    said = capsys.readouterr().out
    assert "global batch 16 = 4 micro-batches of 4" in said
    assert "8 optimizer steps: 2 epochs of 4" in said
    assert "64 training and 30 validation samples, 10 classes" in said
    assert str(tmp_path / "runs" / "run") in said
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", ["with space", "umläut-日本", "a#b", "p%20q", "link"])
def test_paths_are_taken_as_they_are(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / place
    if place == "link":
        (tmp_path / "target").mkdir()
        root.symlink_to(tmp_path / "target")
    data = write_idx_folder(root / "data", size=8)
    monkeypatch.chdir(tmp_path)
    assert train(f"./{place}/data", "--cache-dir", f"{place}/cache", output=f"{place}/runs/") == 0
    assert (root / "runs" / "run" / "model.safetensors").exists()
    assert (root / "cache").is_dir()
    assert {p.name for p in tmp_path.iterdir()} <= {place, "target", "xdg-cache"}
    assert data.exists()


def test_default_names_are_plain_and_say_what_was_trained() -> None:
    name = default_run_name(TrainConfig(dataset="/a b/my images", model="torchvision/resnet18"))
    assert name.startswith("my-images-resnet18-2")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")


@pytest.mark.parametrize("change", ["labels", "fewer"])
def test_going_on_with_other_data_is_refused(
    data: Path, tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--epochs", "9", "--log-every", "1"]
    assert train(data, *flags, "--max-time", "0.001") == 75
    if change == "labels":
        labels = data / "train-labels-idx1-ubyte.gz"
        plain = gzip.decompress(labels.read_bytes())
        labels.write_bytes(gzip.compress(plain[:8] + plain[8:][::-1]))
    else:
        write_idx_folder(data, num_train=32, num_validation=30, size=8)
    assert train(data, *flags, "--resume", "auto") == 2
    said = capsys.readouterr().err
    assert "is of another training" in said
    assert "data: " in said
