"""Everything that can be found wrong with a run before a worker is started, and what a dry run tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.config.batch import BatchPlan, ceil_div, imbalance, plan_batches
from orchestrator.config.contract import resolve
from orchestrator.config.options import TrainConfig
from orchestrator.data.dataset import DatasetInfo, count_samples, prepare_dataset
from orchestrator.driver.cluster import Resources, cluster_address, local_cpus, local_gpus, requested
from orchestrator.errors import ConfigError


@dataclass(frozen=True)
class CheckedRun:
    """A run that can begin. `config` is resolved: its micro-batch is the plan's, its paths are absolute."""

    config: TrainConfig
    plan: BatchPlan
    info: DatasetInfo
    notes: tuple[str, ...]


def check_run(config: TrainConfig, on_progress: Callable[[int, int], None] | None = None) -> CheckedRun:
    """Check the batch, the data, the schedule and the model; decodes the dataset if it is not in the cache.

    Raises ConfigError, DataError, CheckpointError or EnvironmentMismatchError.
    """
    plan = plan_batches(config)
    info = prepare_dataset(config, on_progress)
    check_length(config, plan, info.num_train)
    _check_model(config, info)
    unbalanced = imbalance(plan, config.max_workers)
    notes = (*info.notes, *([unbalanced] if unbalanced else []), *_sharing(config))
    return CheckedRun(resolve(config, plan), plan, info, notes)


def check_length(config: TrainConfig, plan: BatchPlan, num_train: int) -> int:
    """Optimizer steps of the whole run.

    Raises ConfigError for a batch larger than the data or a schedule that does not fit.
    """
    from orchestrator.training.run import total_steps_of
    from orchestrator.training.schedule import check_schedule

    used = min(num_train, config.limit_train_samples or num_train)
    if plan.batch_size > used:
        raise ConfigError(
            f"--batch-size {plan.batch_size} is more than the {used} training samples. Use --batch-size {used} or less."
        )
    total = total_steps_of(config, ceil_div(used, plan.batch_size))
    check_schedule(config, total)
    return total


def _check_model(config: TrainConfig, info: DatasetInfo) -> None:
    from orchestrator.models.build import build_model, check_model
    from orchestrator.models.pretrained import load_pretrained

    classes = len(info.class_names)
    model = build_model(config, channels=info.channels, height=info.height, width=info.width, num_classes=classes)
    check_model(
        model, channels=info.channels, height=info.height, width=info.width, num_classes=classes, name=config.model
    )
    if config.pretrained is not None:
        load_pretrained(model, config.pretrained)


def _sharing(config: TrainConfig) -> list[str]:
    """A note when several CPU workers share a core."""
    wanted = config.max_workers * config.cpus_per_worker
    if cluster_address(config) or config.use_gpu or wanted <= local_cpus():
        return []
    return [f"{config.max_workers} workers want {wanted} CPUs and share the {local_cpus()} of this machine"]


def describe_dry_run(config: TrainConfig, run_folder: str) -> list[tuple[str, str]]:
    """What the run would do, as pairs of a heading and a text. Starts, decodes and writes nothing.

    Raises the errors that can be found without decoding the data.
    """
    plan = plan_batches(config)
    num_train, num_validation, num_classes = count_samples(config)
    total = check_length(config, plan, num_train)
    train = min(num_train, config.limit_train_samples or num_train)
    validation = min(num_validation, config.limit_validation_samples or num_validation)
    rows = [
        ("data", f"{config.dataset}: {train:,} training and {validation:,} validation samples, {num_classes} classes"),
        ("batch", plan.describe(config.max_workers)),
        ("steps", _describe_steps(config, total, plan.steps_per_epoch(train))),
        ("asked for", str(requested(config)) + (" (logical CPUs)" if not cluster_address(config) else "")),
        ("available", _available(config)),
        ("writes", run_folder),
    ]
    unbalanced = imbalance(plan, config.max_workers)
    return [*rows, *([("note", unbalanced)] if unbalanced else []), *(("note", text) for text in _sharing(config))]


def _describe_steps(config: TrainConfig, total: int, per_epoch: int) -> str:
    epochs = f"{config.epochs} epoch{'s' * (config.epochs != 1)} of {per_epoch:,}"
    cut = f", cut short by --max-steps {config.max_steps}" if total < config.epochs * per_epoch else ""
    return f"{total:,} optimizer steps: {epochs}{cut}"


def _available(config: TrainConfig) -> str:
    address = cluster_address(config)
    if address:
        return f"what the cluster at {address} has: a dry run does not connect to it"
    gpus = local_gpus() if config.use_gpu else 0
    return (
        f"{Resources(local_cpus(), gpus)} on this machine" if config.use_gpu else f"{local_cpus()} CPUs on this machine"
    )
