"""What one option says about another."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config.checks import check_config
from orchestrator.config.options import TrainConfig
from orchestrator.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"momentum": 0.5}, "--momentum 0.5 does nothing without --optimizer sgd."),
        ({"lr_gamma": 0.5}, "--lr-gamma 0.5 does nothing without --scheduler step."),
        ({"lr_step_epochs": 2}, "--lr-step-epochs 2 does nothing without --scheduler step."),
        ({"wait_for_resources": True}, "--wait-for-resources True does nothing without --address."),
        ({"resume": "auto"}, "--resume auto needs --run-name NAME"),
        (
            {"num_workers": 0, "address": "auto"},
            "--num-workers 0 trains in this process and --address auto on a cluster",
        ),
        ({"num_workers": 0, "output_dir": "s3://b/runs"}, "plain folder, not at s3://b/runs"),
        ({"num_workers": 65}, "--batch-size 64 is less than one sample for each of 65 workers"),
        ({"micro_batch_size": 65}, "--micro-batch-size 65 is more than --batch-size 64"),
    ],
)
def test_contradictions_and_idle_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_config(TrainConfig(**options))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.5, "optimizer": "sgd"},
        {"momentum": 0.9},
        {"lr_gamma": 0.5, "lr_step_epochs": 2, "scheduler": "step"},
        {"wait_for_resources": True, "address": "auto"},
        {"resume": "auto", "run_name": "x"},
        {"resume": "runs/x/checkpoint"},
        {"num_workers": 0, "output_dir": "runs#1"},
        {"num_workers": 2, "output_dir": "s3://b/runs"},
        {"num_workers": "1:64"},
    ],
)
def test_what_can_be_meant_passes(options: dict[str, Any]) -> None:
    check_config(TrainConfig(**options))


def test_a_cluster_named_by_ray_s_own_variable_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    check_config(TrainConfig(wait_for_resources=True))
