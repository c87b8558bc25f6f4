"""What of a configuration decides the result: two runs that agree on it are the same training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.config.batch import BatchPlan
from orchestrator.config.options import TrainConfig

RESULT_NEUTRAL = frozenset(
    {
        "num_workers", "address", "wait_for_resources",
        "data_dir", "cache_dir",
        "accumulation_steps",  # only a way to say micro_batch_size
        "max_time", "output_dir", "run_name", "resume", "keep_checkpoints",
        "report_to", "log_every", "log_format", "quiet",
    }
)  # fmt: skip
"""Fields that may differ between a run and its resumption."""


def resolve(config: TrainConfig, plan: BatchPlan) -> TrainConfig:
    """The config with the micro-batch that was derived from the workers written down, so that they may change."""
    return config.model_copy(update={"micro_batch_size": plan.micro_batch_size, "accumulation_steps": None})


def contract_of(config: TrainConfig) -> dict[str, Any]:
    """The fields of a resolved config that the weights are a function of; plain values."""
    return {k: v for k, v in config.model_dump(mode="json").items() if k not in RESULT_NEUTRAL}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line a field in which two contracts differ: `lr: 0.001 before, 0.01 now`."""
    return [
        f"{name}: {before.get(name)} before, {now.get(name)} now"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
