"""What one option says about another: combinations that cannot be meant, and options that would do nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

from orchestrator.config.batch import plan_batches
from orchestrator.config.options import TrainConfig
from orchestrator.config.paths import is_uri
from orchestrator.errors import ConfigError

# An option, its condition, and what has to be said for it to do anything.
_NEEDS: tuple[tuple[str, Callable[[TrainConfig], object], str], ...] = (
    ("momentum", lambda c: c.optimizer == "sgd", "--optimizer sgd"),
    ("lr_step_epochs", lambda c: c.scheduler == "step", "--scheduler step"),
    ("lr_gamma", lambda c: c.scheduler == "step", "--scheduler step"),
    ("wait_for_resources", lambda c: c.address or os.environ.get("RAY_ADDRESS"), "--address"),
)


def check_config(config: TrainConfig) -> None:
    """Raises ConfigError for a contradiction, or for an option that would silently do nothing."""
    for name, effective, needed in _NEEDS:
        if getattr(config, name) != TrainConfig.model_fields[name].default and not effective(config):
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(config, name)} does nothing without {needed}.")
    if config.max_workers == 0 and config.address:
        raise ConfigError(
            f"--num-workers 0 trains in this process and --address {config.address} on a cluster; leave one of them out."
        )
    if config.max_workers == 0 and is_uri(config.output_dir):
        raise ConfigError(
            f"--num-workers 0 keeps its checkpoints in a plain folder, not at {config.output_dir}. "
            "Name a folder with --output-dir, or use one worker or more."
        )
    if config.resume == "auto" and config.run_name is None:
        raise ConfigError("--resume auto needs --run-name NAME: the name of the run to go on with, or to start.")
    plan_batches(config)
