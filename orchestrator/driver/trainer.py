"""The TorchTrainer of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from orchestrator.config.batch import BatchPlan
from orchestrator.config.options import TrainConfig
from orchestrator.data.dataset import DatasetInfo
from orchestrator.driver.cluster import cluster_address
from orchestrator.training.reproducibility import worker_environment
from orchestrator.worker import train_worker

_START_ATTEMPTS = 5
"""Of 60 s each, after which missing resources end the run; Ray's default is to wait for ever."""


class QuietTrainer(TorchTrainer):  # type: ignore[misc]
    """TorchTrainer without the cleaner of placement groups, for a Ray that ends with the run.

    The cleaner needs the dashboard's State API and warns once a second where there is none; the placement groups of a
    Ray that was started for this run end with it.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [c for c in callbacks if type(c).__name__ != "PlacementGroupCleanerCallback"]


def build_trainer(
    config: TrainConfig,
    info: DatasetInfo,
    plan: BatchPlan,
    channel: Any,
    *,
    storage_path: str,
    resume_from: str | None,
) -> TorchTrainer:
    """A trainer whose workers run `orchestrator.worker.train_worker`; checkpoints go to `storage_path`/checkpoints."""
    workers = (
        config.max_workers if config.min_workers == config.max_workers else (config.min_workers, config.max_workers)
    )
    trainer_class = TorchTrainer if cluster_address(config) else QuietTrainer
    return trainer_class(
        train_worker,
        train_loop_config={
            "config": config.model_dump(),
            "info": info.to_dict(),
            "plan": asdict(plan),
            "channel": channel,
            "resume_from": resume_from,
        },
        torch_config=TorchConfig(backend="nccl" if config.use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=workers,
            use_gpu=config.use_gpu,
            resources_per_worker={"CPU": config.cpus_per_worker, **({"GPU": 1} if config.use_gpu else {})},
        ),
        run_config=RunConfig(
            name="checkpoints",
            storage_path=storage_path,
            checkpoint_config=CheckpointConfig(
                num_to_keep=config.keep_checkpoints,
                checkpoint_score_attribute="score",
                checkpoint_score_order="max",
            ),
            failure_config=FailureConfig(
                max_failures=0, controller_failure_limit=-1 if config.wait_for_resources else _START_ATTEMPTS
            ),
            worker_runtime_env={"env_vars": worker_environment(config.deterministic)},
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
