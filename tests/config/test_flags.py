"""The command line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest

from orchestrator.config.flags import CommandLine, parse_command_line
from orchestrator.config.options import TrainConfig
from orchestrator.errors import ConfigError


def parse(*arguments: str) -> CommandLine:
    return parse_command_line(list(arguments), prog="train", description="Train.")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


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


def test_none_is_a_choice_where_it_is_one_of_them() -> None:
    """It means null only for an option that can be without a value."""
    config = parse("--augment", "none", "--report-to", "none", "--max-steps", "None").config
    assert (config.augment, config.report_to, config.max_steps) == ("none", "none", None)
    with pytest.raises(ConfigError, match="^--batch-size is 'none', but it must be a whole number"):
        parse("--batch-size", "none")


CHOICES = {
    n: get_args(i.annotation) for n, i in TrainConfig.model_fields.items() if get_origin(i.annotation) is Literal
}


@pytest.mark.parametrize("number", range(max(map(len, CHOICES.values()))))
def test_every_choice_that_help_shows_is_accepted(number: int) -> None:
    chosen = {name: choices[number % len(choices)] for name, choices in CHOICES.items()}
    config = parse(*(f"{_flag(name)}={choice}" for name, choice in chosen.items())).config
    assert config.model_dump(include=set(chosen)) == chosen


def test_the_introduction_of_help_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """tyro wraps the options to the terminal, but not what stands before them."""
    with pytest.raises(SystemExit):
        parse("--help")
    introduction = capsys.readouterr().out.partition("╭")[0]
    assert "examples:" in introduction
    assert max(len(line) for line in introduction.splitlines()) <= 80


def test_files_then_environment_then_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text("lr: 0.1\nseed: 1\nepochs: 1\nuse_gpu: true\n")
    (tmp_path / "b.yaml").write_text("seed: 2\nepochs: 2\n")
    monkeypatch.setenv("ORCHESTRATOR_EPOCHS", "3")
    files = ("--config", str(tmp_path / "a.yaml"), "--config", str(tmp_path / "b.yaml"))
    config = parse(*files).config
    assert (config.lr, config.seed, config.epochs, config.use_gpu) == (0.1, 2, 3, True)
    config = parse(*files, "--epochs", "4", "--lr", "0.003", "--no-use-gpu").config
    assert (config.lr, config.epochs, config.use_gpu) == (0.003, 4, False)


MUST = "it must be "
WORKERS = "the number of workers is N (0 or more), or MIN:MAX with 1 <= MIN <= MAX"
PRECISIONS = MUST + "one of 'auto', 'fp32', 'bf16' or 'fp16'"
BAD = (
    ("--accumulation-steps", "0", MUST + "1 or more"), ("--accumulation-steps", "-2", MUST + "1 or more"),
    ("--accumulation-steps", "2.5", MUST + "a whole number"), ("--batch-size", "0", MUST + "1 or more"),
    ("--batch-size", "-1", MUST + "1 or more"), ("--batch-size", "abc", MUST + "a whole number"),
    ("--epochs", "0", MUST + "1 or more"), ("--epochs", "-1", MUST + "1 or more"),
    ("--lr", "0", MUST + "more than 0"), ("--lr", "-1", MUST + "more than 0"), ("--lr", "nan", MUST + "more than 0"),
    ("--lr", "inf", MUST + "a finite number"), ("--lr", "-1e-3", MUST + "more than 0"), ("--lr", "", MUST + "a number"),
    ("--num-workers", "-1", WORKERS), ("--num-workers", "2:1", "MIN:MAX needs 1 <= MIN <= MAX, not 2:1"),
    ("--num-workers", "0:3", "MIN:MAX needs 1 <= MIN <= MAX, not 0:3"), ("--num-workers", "two", WORKERS),
    ("--seed", "-1", MUST + "0 or more"), ("--seed", "18446744073709551616", MUST + "less than 9223372036854775808"),
    ("--seed", "9" * 5000, MUST + "a whole number of at most 64 bits"),
    ("--momentum", "1.5", MUST + "less than 1"), ("--momentum", "-0.1", MUST + "0 or more"),
    ("--max-grad-norm", "-1", MUST + "0 or more"), ("--weight-decay", "-1", MUST + "0 or more"),
    ("--precision", "fp8x", PRECISIONS), ("--max-time", "0", MUST + "more than 0"),
    ("--max-time", "5x", "a duration is a number with s, m, h or d behind it, such as 90s, 30m or 1.5h"),
    ("--dataset", "", MUST + "not empty text"), ("--keep-checkpoints", "0", MUST + "1 or more"),
    ("--validation-fraction", "1", MUST + "less than 1"), ("--label-smoothing", "1", MUST + "less than 1"),
    ("--image-size", "0", MUST + "1 or more"), ("--cpus-per-worker", "0", MUST + "1 or more"),
    ("--log-every", "0", MUST + "1 or more"), ("--micro-batch-size", "0", MUST + "1 or more"),
    ("--optimizer", "lion", MUST + "one of 'adam', 'adamw' or 'sgd'"),
)  # fmt: skip


def _rounds() -> list[list[tuple[str, str, str]]]:
    """BAD in as few command lines as name no flag twice: parsing one takes a good part of a second."""
    rounds: list[list[tuple[str, str, str]]] = []
    for case in BAD:
        free = next((r for r in rounds if case[0] not in [flag for flag, _, _ in r]), None)
        if free is None:
            rounds.append([case])
        else:
            free.append(case)
    return rounds


@pytest.mark.parametrize("cases", _rounds())
def test_values_that_cannot_be_meant_are_all_refused_with_flag_value_and_range(
    cases: list[tuple[str, str, str]],
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(*(f"{flag}={value}" for flag, value, _ in cases))
    assert sorted(str(raised.value).splitlines()) == sorted(f"{f} is '{v}', but {said}." for f, v, said in cases)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("number", ["-1", "-1e-3", "-.5", "-inf"])
def test_a_negative_number_is_a_value_and_no_flag(number: str) -> None:
    with pytest.raises(ConfigError, match=f"^--lr is '{number}', but it must be more than 0"):
        parse("--lr", number)


def test_a_value_may_begin_with_a_minus_after_an_equals_sign() -> None:
    assert parse("--run-name=--lr", "--output-dir=-x").config.model_dump(include={"run_name", "output_dir"}) == {
        "run_name": "--lr",
        "output_dir": "-x",
    }


@pytest.mark.parametrize(
    ("flag", "nearest"),
    [("--bach-size", "--batch-size"), ("--learning-rate", "--lr"), ("--workers", "--num-workers"),
     ("--batch", "--batch-size"), ("--no-batch-size", "--batch-size"), ("--epoch", "--epochs"),
     ("--batch-siz", "--batch-size"), ("--BATCH-SIZE", "--batch-size"), ("--no-dry-run", "--dry-run")],
)  # fmt: skip
def test_flags_that_there_are_not_are_refused_with_the_nearest(flag: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"There is no flag {flag}\. Did you mean {nearest}\?"):
        parse(flag, "3")


@pytest.mark.parametrize("flag", ["--ep", "--opt", "--h", "--zzzzzz"])
def test_abbreviations_are_no_flags(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"There is no flag {flag}\\."):
        parse(flag, "3")


def test_a_flag_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="--batch_size is given twice"):
        parse("--batch-size", "8", "--batch_size=8")
    with pytest.raises(ConfigError, match="--lr is given twice"):
        parse("--lr", "1", "--lr", "2")
    with pytest.raises(ConfigError, match="--no-use-gpu is given twice"):
        parse("--use-gpu", "--no-use-gpu")


@pytest.mark.parametrize(
    "arguments", [("--epochs",), ("--run-name", "--lr"), ("--lr", "1", "stray"), ("-x",), ("--use-gpu=true",)]
)
def test_what_cannot_be_parsed_ends_with_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse(*arguments)
    assert raised.value.code == 2
    assert capsys.readouterr().err


def test_what_one_option_says_about_another_is_checked() -> None:
    with pytest.raises(ConfigError, match="--num-workers 64"):
        parse("--num-workers", "65")


def test_an_environment_typo_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_BACH_SIZE", "8")
    with pytest.raises(ConfigError, match="Did you mean ORCHESTRATOR_BATCH_SIZE"):
        parse()


def test_help_shows_every_option_and_its_default_without_loading_torch_or_ray() -> None:
    program = (
        "import sys\nfrom orchestrator.train import main\n"
        "try: main(['--help'])\n"
        "finally: print('LOADED', sorted({'torch', 'ray', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout
    options = {_flag(name): info for name, info in TrainConfig.model_fields.items()}
    shown = {word.strip("|,.)│") for word in done.stdout.split() if word.startswith("--")}
    switches = {"--no-" + flag[2:] for flag, info in options.items() if info.annotation is bool}
    # Nothing else: no flag creeps in beside the options.
    assert shown - {"--help"} == {*options, *switches, "--config", "--print-config", "--dry-run"}
    entries = done.stdout.split("\n│ --")[1:]
    told = {re.split(r"[ ,]", entry)[0]: " ".join(entry.replace("│", " ").split()) for entry in entries}
    for flag, info in options.items():
        assert f"(default: {info.default})" in told[flag[2:]], flag
