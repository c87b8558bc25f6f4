"""Switches that decide whether the same inputs give the same bits, and what a worker's kernels depend on."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from orchestrator.config.options import TrainConfig
from orchestrator.training.precision import set_tf32

CUBLAS_WORKSPACE = ":4096:8"
"""Two of the sizes that cuBLAS documents as reproducible; has to be in the environment before its first handle."""


def configure_torch(config: TrainConfig) -> None:
    """Set threads, kernels and number formats of this process as the config asks."""
    torch.set_num_threads(config.cpus_per_worker)
    torch.use_deterministic_algorithms(config.deterministic)
    # On by default with deterministic algorithms, it fills each new tensor: 200 x empty(4 MB) took 2.9 s, not 0.2 ms.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = config.deterministic
    torch.backends.cudnn.benchmark = not config.deterministic
    set_tf32(config.tf32)


def worker_environment(deterministic: bool) -> dict[str, str]:
    """Environment variables that a worker process needs before it starts CUDA."""
    return {"CUBLAS_WORKSPACE_CONFIG": CUBLAS_WORKSPACE} if deterministic else {}


def kernel_environment(rank: int, device: torch.device) -> dict[str, Any]:
    """What decides the bits of this worker's kernels, with where it runs; plain values for env.json."""
    environment: dict[str, Any] = {
        "rank": rank,
        "host": platform.node(),
        "pid": os.getpid(),
        "device": str(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA"),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        environment |= {
            "gpu": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        }
    return environment
