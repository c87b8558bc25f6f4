"""Ray for the time of a run: connecting or starting it, quietly, and seeing that the run fits before it begins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from orchestrator.config.options import TrainConfig
from orchestrator.errors import EnvironmentMismatchError

WORKER_MEMORY_GIB = 0.5
"""Resident memory of a worker that has imported torch and Ray, before any model: 0.4 GiB measured, rounded up."""

_OBJECT_STORE_BYTES = 128 * 1024**2
"""Nothing large goes through Ray's object store, and its default would claim a third of memory from /dev/shm."""

_ENVIRONMENT = {
    # The controller answers one report a poll: at the default of 2 s each checkpoint would wait that long.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # With a wrapped stdout Ray prints each line of a worker twice.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    # Relative paths in a user's model or dataset code mean the directory that the command was typed in.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

_LOCAL_ENVIRONMENT = {
    # Watches for nodes that a cloud takes back; on a cluster of one machine it is one more process.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # Ray's workers run at nice +15 by default and starve on a machine that does anything else.
    "RAY_worker_niceness": "0",
    # A token is made and used by itself; said explicitly, it is not warned about.
    "RAY_AUTH_MODE": "token",
}


@dataclass(frozen=True)
class Resources:
    """CPUs and GPUs, of a cluster or of a request."""

    cpus: float
    gpus: float

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"


def cluster_address(config: TrainConfig) -> str | None:
    """The cluster to connect to: the flag, else what `ray job submit` put into the environment; None for this machine."""
    return config.address or os.environ.get("RAY_ADDRESS")


def requested(config: TrainConfig) -> Resources:
    """What the smallest acceptable number of workers takes."""
    workers = config.min_workers
    return Resources(cpus=float(workers * config.cpus_per_worker), gpus=float(workers if config.use_gpu else 0))


def check_local_fit(config: TrainConfig) -> None:
    """Refuse what this machine cannot hold, before Ray is started. CPUs may be shared by several workers, GPUs not.

    Raises EnvironmentMismatchError.
    """
    if config.use_gpu:
        _check_gpus(max(config.min_workers, 1), local_gpus(), "this machine")
    need_gib = config.max_workers * WORKER_MEMORY_GIB
    free_gib = psutil.virtual_memory().available / 1024**3
    if need_gib > free_gib:
        raise EnvironmentMismatchError(
            f"--num-workers {config.num_workers} needs about {need_gib:.1f} GiB of memory for its processes alone, and "
            f"{free_gib:.1f} GiB are free. Use --num-workers {int(free_gib / WORKER_MEMORY_GIB)} or fewer."
        )


def local_cpus() -> int:
    return len(os.sched_getaffinity(0))


def local_gpus() -> int:
    """CUDA devices that this process may use."""
    import torch

    return torch.cuda.device_count()


def _check_gpus(needed: int, there: float, where: str) -> None:
    if needed > there:
        advice = f"Use --num-workers {there:g}" if there else "Leave out --use-gpu to train on CPUs"
        raise EnvironmentMismatchError(
            f"--use-gpu with {needed} worker{'s' * (needed > 1)} needs {needed} GPUs, and {where} has {there:g}. {advice}, "
            "or --wait-for-resources on a cluster that grows."
        )


@contextmanager
def ray_cluster(config: TrainConfig) -> Iterator[None]:
    """Ray, connected or started, until the block ends. A cluster that was there before is left as it was.

    Raises EnvironmentMismatchError if it cannot be reached or started, or is too small for the run.
    """
    address = cluster_address(config)
    # Read by Ray while it is imported and inherited by the processes that it starts, so they go first.
    for name, value in (_ENVIRONMENT if address else {**_ENVIRONMENT, **_LOCAL_ENVIRONMENT}).items():
        os.environ.setdefault(name, value)
    import ray

    try:
        _connect(config, address)
    except Exception as error:
        where = f"the Ray cluster at {address}" if address else "Ray on this machine"
        verb = "reach" if address else "start"
        raise EnvironmentMismatchError(
            f"Cannot {verb} {where}: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
        ) from error
    try:
        if address and not config.wait_for_resources:
            check_cluster_fit(config, available_resources(), address)
        yield
    finally:
        ray.shutdown()


def _connect(config: TrainConfig, address: str | None) -> None:
    import ray

    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address:
        ray.init(address=address, **quiet)
        return
    ray.init(
        address="local",
        # Logical CPUs: more workers than cores share them.
        num_cpus=max(local_cpus(), config.max_workers * config.cpus_per_worker),
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        **quiet,
    )


def available_resources() -> Resources:
    """CPUs and GPUs of the connected cluster, in use or not."""
    import ray

    total = ray.cluster_resources()
    return Resources(cpus=total.get("CPU", 0.0), gpus=total.get("GPU", 0.0))


def check_cluster_fit(config: TrainConfig, there: Resources, address: str) -> None:
    """Raises EnvironmentMismatchError if the cluster is too small, whoever uses it now."""
    need = requested(config)
    where = f"the cluster at {address}"
    if config.use_gpu:
        _check_gpus(config.min_workers, there.gpus, where)
    if need.cpus > there.cpus:
        raise EnvironmentMismatchError(
            f"--num-workers {config.num_workers} with --cpus-per-worker {config.cpus_per_worker} needs {need.cpus:g} CPUs, "
            f"and {where} has {there.cpus:g}. Use --num-workers {int(there.cpus // config.cpus_per_worker)} or fewer, "
            "or --wait-for-resources on a cluster that grows."
        )
