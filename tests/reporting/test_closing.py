from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from orchestrator.reporting import closing
from orchestrator.reporting.closing import failure_place, next_commands, print_ending, print_failure, resume_command
from tests.reporting.fake import console, ending


def test_the_closing_table_of_a_run_in_a_folder_with_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "which", lambda name: f"/bin/{name}")
    path = tmp_path / "my [red]run"
    (path / "tensorboard").mkdir(parents=True)
    for name in ("model.safetensors", "best.safetensors"):
        (path / name).write_bytes(b"")
    out, shown = console(width=40)
    print_ending(ending(path), out, out)
    assert shown.getvalue().splitlines() == [
        "",
        "finished   2 epochs, 8 steps in 1:01:11, the first step after 4.1 s",
        "best       validation accuracy 97.21% in epoch 2",
        "final      validation accuracy 96.00%, loss 0.1100; train loss 0.0700",
        "speed      12,346 images/s, 2 workers, bf16, at most 512 MiB in a worker",
        f"folder     {path}",
        f"weights    {path}/model.safetensors",
        f"           {path}/best.safetensors",
        f"look       tensorboard --logdir '{path}/tensorboard'",
        f"repeat     python -m orchestrator.train --config '{path}/config.yaml' --run-name 'my [red]run-again'",
    ]


def test_a_command_that_is_not_there_is_not_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "which", lambda _: None)
    (tmp_path / "tensorboard").mkdir()
    assert "look" not in dict(next_commands(ending(tmp_path)))


def test_the_command_is_the_one_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.orig_argv", [".venv/bin/python", "-m", "orchestrator.train", "--lr", "1"])
    assert resume_command(["--lr", "1"], "r").startswith(".venv/bin/python -m orchestrator.train --lr 1 ")


def test_workers_that_changed(tmp_path: Path) -> None:
    out, shown = console()
    print_ending(ending(tmp_path, summary={"images_per_second": 5.0, "num_workers": [2, 1]}), out, out)
    assert "speed      5 images/s, 2 then 1 workers\n" in shown.getvalue()


@pytest.mark.parametrize(
    ("state", "error", "heading"),
    [("stopped", None, "go on"), ("failed", {"retryable": True}, "go on"), ("failed", {"retryable": False}, None)],
)
def test_what_to_type_after_another_end(
    tmp_path: Path, state: str, error: dict[str, object] | None, heading: str
) -> None:
    commands = dict(next_commands(ending(tmp_path / "r", state=state, error=error, arguments=["--lr", "0.1"])))
    expected = "python -m orchestrator.train --lr 0.1 --resume auto --run-name r"
    assert commands == ({heading: expected} if heading else {})


def test_the_command_that_goes_on_has_each_flag_once() -> None:
    arguments = [
        "--resume",
        "never",
        "--run_name=x",
        "--dataset",
        "my images",
        "--run-name",
        "y",
        "--resume=auto",
        "--quiet",
    ]
    command = resume_command(arguments, "the run")
    assert shlex.split(command)[3:] == [
        "--dataset",
        "my images",
        "--quiet",
        "--resume",
        "auto",
        "--run-name",
        "the run",
    ]


def test_a_failure_is_one_paragraph() -> None:
    err, shown = console(width=30)
    error = {
        "class": "NonFiniteError",
        "message": "The loss is nan for ['a [1].png'].",
        "rank": 1,
        "node": "node-b",
        "epoch": 3,
        "step": 71,
        "advice": "Use a smaller --lr.",
        "retryable": False,
    }
    print_failure(error, err)
    assert shown.getvalue() == (
        "error: The loss is nan for ['a [1].png']. (NonFiniteError, rank 1 on node-b, epoch 3, after step 71) "
        "Use a smaller --lr.\n"
    )


def test_a_failure_keeps_words_whole_on_a_terminal() -> None:
    err, shown = console(terminal=True, width=30)
    print_failure({"class": "DataError", "message": "a file that is damaged is named here"}, err)
    assert [line.rstrip() for line in shown.getvalue().splitlines()] == [
        "error: a file that is damaged", "is named here (DataError)",
    ]  # fmt: skip


def test_the_place_is_what_is_known() -> None:
    assert failure_place({}) == ""
    assert failure_place({"rank": 0, "step": None}) == "rank 0"
    assert failure_place({"node": "b", "epoch": 2}) == "on b, epoch 2"
