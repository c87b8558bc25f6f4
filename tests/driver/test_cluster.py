"""Whether a run fits, decided before it starts."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from orchestrator.config.options import TrainConfig
from orchestrator.driver import cluster
from orchestrator.driver.cluster import Resources, check_cluster_fit, check_local_fit, cluster_address, requested
from orchestrator.errors import EnvironmentMismatchError


def test_requested_resources_are_those_of_the_smallest_run() -> None:
    assert requested(TrainConfig(num_workers="2:8", cpus_per_worker=3)) == Resources(cpus=6, gpus=0)
    assert requested(TrainConfig(num_workers=4, use_gpu=True)) == Resources(cpus=4, gpus=4)


def test_a_cluster_that_is_too_small_is_refused_with_the_numbers() -> None:
    config = TrainConfig(num_workers=8, cpus_per_worker=2, address="auto")
    with pytest.raises(
        EnvironmentMismatchError, match=r"needs 16 CPUs, and the cluster at auto has 5\. Use --num-workers 2"
    ):
        check_cluster_fit(config, Resources(cpus=5, gpus=0), "auto")
    with pytest.raises(
        EnvironmentMismatchError, match=r"8 workers needs 8 GPUs, and the cluster at auto has 3\. Use --num-workers 3"
    ):
        check_cluster_fit(config.model_copy(update={"use_gpu": True}), Resources(cpus=64, gpus=3), "auto")
    check_cluster_fit(config, Resources(cpus=16, gpus=0), "auto")


def test_a_gpu_that_is_not_there_is_refused_and_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "local_gpus", lambda: 0)
    with pytest.raises(
        EnvironmentMismatchError, match="1 worker needs 1 GPUs, and this machine has 0. Leave out --use-gpu"
    ):
        check_local_fit(TrainConfig(use_gpu=True))


def test_workers_that_cannot_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 3 * 1024**3})())
    check_local_fit(TrainConfig(num_workers=6))
    with pytest.raises(EnvironmentMismatchError, match=r"about 500\.0 GiB .* 3\.0 GiB are free\. Use --num-workers 6"):
        check_local_fit(TrainConfig(num_workers=1000))


def test_the_address_of_a_submitted_job_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster_address(TrainConfig()) is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert cluster_address(TrainConfig()) == "10.0.0.1:6379"
    assert cluster_address(TrainConfig(address="auto")) == "auto"


def test_a_cluster_that_does_not_answer_is_an_environment_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(**_options: Any) -> None:
        raise ConnectionError("no gcs at 127.0.0.1:1\nmore lines")

    monkeypatch.setattr(ray, "init", refuse)
    with (
        pytest.raises(
            EnvironmentMismatchError,
            match=r"Cannot reach the Ray cluster at 127\.0\.0\.1:1: ConnectionError: no gcs at",
        ),
        cluster.ray_cluster(TrainConfig(address="127.0.0.1:1")),
    ):
        pytest.fail("the block must not run")
