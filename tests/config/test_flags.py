"""The command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.config.flags import CommandLine, parse_command_line
from orchestrator.config.options import TrainConfig
from orchestrator.errors import ConfigError


def parse(*arguments: str) -> CommandLine:
    return parse_command_line(list(arguments), prog="train", description="Train.")


def test_without_flags_everything_is_its_default() -> None:
    assert parse() == CommandLine(TrainConfig())


def test_kebab_snake_and_equals() -> None:
    for flags in (["--batch-size", "8"], ["--batch_size", "8"], ["--batch-size=8"]):
        assert parse(*flags).config.batch_size == 8


def test_switches() -> None:
    assert parse("--use-gpu").config.use_gpu
    assert parse("--use_gpu").config.use_gpu
    assert not parse("--no-deterministic").config.deterministic
    assert (parse("--dry-run").dry_run, parse("--print-config").print_config) == (True, True)


def test_spellings_ranges_and_durations() -> None:
    config = parse("--precision", "16-mixed", "--num-workers", "2:4", "--max-time", "30m", "--run-name", "x").config
    assert (config.precision, config.num_workers, config.max_time) == ("fp16", "2:4", 1800.0)
    assert (config.min_workers, config.max_workers) == (2, 4)
    assert parse("--micro-batch-size", "none").config.micro_batch_size is None


def test_files_then_environment_then_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text("lr: 0.1\nseed: 1\nepochs: 1\nuse_gpu: true\n")
    (tmp_path / "b.yaml").write_text("seed: 2\nepochs: 2\n")
    monkeypatch.setenv("ORCHESTRATOR_EPOCHS", "3")
    files = ("--config", str(tmp_path / "a.yaml"), "--config", str(tmp_path / "b.yaml"))
    config = parse(*files).config
    assert (config.lr, config.seed, config.epochs, config.use_gpu) == (0.1, 2, 3, True)
    config = parse(*files, "--epochs", "4", "--lr", "0.003", "--no-use-gpu").config
    assert (config.lr, config.epochs, config.use_gpu) == (0.003, 4, False)


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--accumulation-steps", "0", "must be 1 or more"), ("--accumulation-steps", "-2", "must be 1 or more"),
        ("--accumulation-steps", "2.5", "must be a whole number"), ("--batch-size", "0", "must be 1 or more"),
        ("--batch-size", "-1", "must be 1 or more"), ("--epochs", "0", "must be 1 or more"),
        ("--lr", "0", "must be more than 0"), ("--lr", "-1", "must be more than 0"), ("--lr", "nan", "must be"),
        ("--lr", "inf", "must be a finite number"), ("--lr", "abc", "must be a number"),
        ("--num-workers", "-1", "N .0 or more., or MIN:MAX"), ("--num-workers", "2:1", "1 <= MIN <= MAX"),
        ("--num-workers", "0:3", "1 <= MIN <= MAX"), ("--num-workers", "two", "MIN:MAX"),
        ("--seed", "-1", "must be 0 or more"), ("--seed", "18446744073709551616", "must be less than"),
        ("--momentum", "1.5", "must be less than 1"), ("--max-grad-norm", "-1", "must be 0 or more"),
        ("--precision", "fp8x", "one of 'auto', 'fp32', 'bf16' or 'fp16'"), ("--max-time", "5x", "30m or 1.5h"),
        ("--max-time", "0", "must be more than 0"), ("--dataset", "", "not empty text"),
        ("--keep-checkpoints", "0", "must be 1 or more"), ("--validation-fraction", "1", "must be less than 1"),
        ("--label-smoothing", "1", "must be less than 1"), ("--image-size", "0", "must be 1 or more"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_meant_are_refused_with_flag_value_and_range(flag: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        parse(f"{flag}={value}")
    assert str(raised.value).startswith(f"{flag} is '{value}'")
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("flag", "nearest"),
    [("--bach-size", "--batch-size"), ("--learning-rate", "--lr"), ("--workers", "--num-workers"),
     ("--batch", "--batch-size"), ("--no-batch-size", "--batch-size"), ("--epoch", "--epochs")],
)  # fmt: skip
def test_flags_that_there_are_not_are_refused_with_the_nearest(flag: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"There is no flag {flag}\. Did you mean {nearest}\?"):
        parse(flag, "3")


def test_a_flag_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="--lr is given twice"):
        parse("--lr", "1", "--lr", "2")
    with pytest.raises(ConfigError, match="--no-use-gpu is given twice"):
        parse("--use-gpu", "--no-use-gpu")


@pytest.mark.parametrize("arguments", [("--epochs",), ("stray",), ("--lr", "1", "stray"), ("-x",)])
def test_what_cannot_be_parsed_ends_with_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse(*arguments)
    assert raised.value.code == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--momentum", "0.5"), "--momentum 0.5 does nothing without --optimizer sgd"),
        (("--lr-gamma", "0.5"), "does nothing without --scheduler step"),
        (("--wait-for-resources",), "does nothing without --address"),
        (("--resume", "auto"), "needs --run-name"),
        (("--num-workers", "0", "--address", "auto"), "leave one of them out"),
        (("--num-workers", "0", "--output-dir", "s3://b/runs"), "plain folder"),
        (("--num-workers", "65"), "--num-workers 64 or fewer"),
    ],
)
def test_options_that_contradict_or_do_nothing_are_refused(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(*arguments)


def test_help_shows_every_option_and_its_default_without_loading_torch_or_ray() -> None:
    program = (
        "import sys\nfrom orchestrator.train import main\n"
        "try: main(['--help'])\n"
        "finally: print('LOADED', sorted({'torch', 'ray', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout
    flags = {"--" + name.replace("_", "-") for name in [*TrainConfig.model_fields, "config", "print_config", "dry_run"]}
    shown = {word.strip(",.)") for word in done.stdout.split() if word.startswith("--")}
    without_pairs = {f for f in shown if not f.startswith("--no-")} - {"--help"}
    assert without_pairs == flags
    assert "(default: 64)" in done.stdout
