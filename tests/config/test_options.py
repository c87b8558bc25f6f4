"""What each option may hold."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.config.options import GROUPS, TrainConfig

OPTIONS = [
    "accumulation_steps",
    "address",
    "augment",
    "batch_size",
    "cache_dir",
    "channels_last",
    "cpus_per_worker",
    "data_dir",
    "dataset",
    "deterministic",
    "early_stopping_patience",
    "epochs",
    "evaluation_batch_size",
    "image_size",
    "keep_checkpoints",
    "label_smoothing",
    "limit_train_samples",
    "limit_validation_samples",
    "log_every",
    "log_format",
    "lr",
    "lr_gamma",
    "lr_step_epochs",
    "max_grad_norm",
    "max_steps",
    "max_time",
    "micro_batch_size",
    "model",
    "momentum",
    "num_classes",
    "num_workers",
    "on_bad_sample",
    "optimizer",
    "output_dir",
    "precision",
    "pretrained",
    "quiet",
    "report_to",
    "resume",
    "run_name",
    "scheduler",
    "seed",
    "tf32",
    "use_gpu",
    "validation_fraction",
    "wait_for_resources",
    "warmup_steps",
    "weight_decay",
]


def test_the_options_are_these_and_no_others() -> None:
    """Whoever adds an option adds it here, and thinks once more whether it is needed."""
    assert sorted(TrainConfig.model_fields) == OPTIONS


def test_every_option_is_in_one_group_and_described() -> None:
    grouped = [name for group in GROUPS for name in group.model_fields]
    assert sorted(grouped) == OPTIONS
    assert all((info.description or "").endswith(".") for info in TrainConfig.model_fields.values())


def test_the_defaults_are_valid() -> None:
    assert TrainConfig(**TrainConfig().model_dump()) == TrainConfig()


def test_a_config_is_frozen_and_knows_no_other_key() -> None:
    with pytest.raises(ValidationError):
        TrainConfig().lr = 1.0
    with pytest.raises(ValidationError):
        TrainConfig(learning_rate=1.0)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0), ("2d", 172800.0), (" 5s ", 5.0), (7, 7.0)],
)
def test_durations(given: Any, seconds: float) -> None:
    assert TrainConfig(max_time=given).max_time == seconds


@pytest.mark.parametrize("given", ["", "s", "5 m", "-5s", "1e3", "5x", "1:30", "0s", "9" * 400, 0, -1, True, [1]])
def test_what_is_no_duration(given: Any) -> None:
    with pytest.raises(ValidationError):
        TrainConfig(max_time=given)


@pytest.mark.parametrize(
    ("given", "stored", "least", "most"),
    [(0, 0, 0, 0), ("4", 4, 4, 4), ("2:4", "2:4", 2, 4), ("3:3", "3:3", 3, 3), (" 02:8 ", "2:8", 2, 8)],
)
def test_workers(given: Any, stored: Any, least: int, most: int) -> None:
    config = TrainConfig(num_workers=given)
    assert (config.num_workers, config.min_workers, config.max_workers) == (stored, least, most)
    assert isinstance(config.num_workers, type(stored))


@pytest.mark.parametrize("given", [-1, "0:2", "4:2", "1:2:3", ":4", "4:", "", "auto", 1.5, True, None, [1], "9" * 5000])
def test_what_is_no_number_of_workers(given: Any) -> None:
    with pytest.raises(ValidationError):
        TrainConfig(num_workers=given)


@pytest.mark.parametrize(
    ("given", "stored"),
    [(32, "fp32"), ("32-true", "fp32"), (16, "fp16"), ("16-mixed", "fp16"), ("bf16-mixed", "bf16"), ("auto", "auto")],
)
def test_spellings_of_a_precision(given: Any, stored: str) -> None:
    assert TrainConfig(precision=given).precision == stored


@pytest.mark.parametrize("given", ["fp8x", "FP32", "64", 64, True, False, None, ""])
def test_what_is_no_precision(given: Any) -> None:
    with pytest.raises(ValidationError):
        TrainConfig(precision=given)


NUMBERS = [
    name for name, info in TrainConfig.model_fields.items() if isinstance(info.default, float) or "int" in str(info.annotation)
]  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("given", [True, False, float("nan"), float("inf"), float("-inf"), "1,5", [1], {}])
def test_what_is_no_number(name: str, given: Any) -> None:
    with pytest.raises(ValidationError):
        TrainConfig(**{name: given})


@pytest.mark.parametrize("name", [n for n, info in TrainConfig.model_fields.items() if info.annotation is bool])
@pytest.mark.parametrize("given", [2, "maybe", None, 0.5])
def test_what_is_no_switch(name: str, given: Any) -> None:
    with pytest.raises(ValidationError):
        TrainConfig(**{name: given})


@pytest.mark.parametrize(
    ("name", "lowest", "below"),
    [
        ("batch_size", 1, 0), ("micro_batch_size", 1, 0), ("accumulation_steps", 1, 0), ("epochs", 1, 0), ("max_steps", 1, 0),
        ("early_stopping_patience", 0, -1), ("seed", 0, -1), ("keep_checkpoints", 1, 0), ("warmup_steps", 0, -1),
        ("image_size", 1, 0), ("num_classes", 2, 1), ("log_every", 1, 0), ("evaluation_batch_size", 1, 0),
        ("max_grad_norm", 0.0, -1e-9), ("momentum", 0.0, -1e-9), ("weight_decay", 0.0, -1e-9), ("lr", 1e-300, 0.0),
        ("limit_train_samples", 1, 0), ("limit_validation_samples", 1, 0), ("lr_step_epochs", 1, 0),
    ],
)  # fmt: skip
def test_the_lowest_value_is_accepted_and_none_below(name: str, lowest: float, below: float) -> None:
    assert getattr(TrainConfig(**{name: lowest}), name) == lowest
    with pytest.raises(ValidationError):
        TrainConfig(**{name: below})


@pytest.mark.parametrize(
    ("name", "highest", "above"),
    [("seed", 2**63 - 1, 2**63), ("image_size", 4096, 4097), ("lr_gamma", 1.0, 1.1), ("momentum", 0.999, 1.0),
     ("label_smoothing", 0.999, 1.0), ("validation_fraction", 0.999, 1.0)],
)  # fmt: skip
def test_the_highest_value_is_accepted_and_none_above(name: str, highest: float, above: float) -> None:
    assert getattr(TrainConfig(**{name: highest}), name) == highest
    with pytest.raises(ValidationError):
        TrainConfig(**{name: above})
