"""The device that a worker computes on."""

from __future__ import annotations

import platform
import resource
import sys

import torch

from orchestrator.errors import EnvironmentMismatchError


def choose_device(use_gpu: bool) -> torch.device:
    """The first CUDA device, or the CPU.

    Raises `EnvironmentMismatchError` if a GPU is asked for and there is none that PyTorch can use.
    """
    if not use_gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        reason = "PyTorch sees no GPU" if built else "this PyTorch is built for the CPU only"
        raise EnvironmentMismatchError(
            f"--use-gpu: {reason} on {platform.node()} (torch {torch.__version__}); leave it out to train on the CPU"
        )
    return torch.device("cuda", 0)


def describe_device(device: torch.device) -> str:
    """One line for the user: the GPU with its memory and compute capability, or the CPU with its kernels."""
    if device.type != "cuda":
        capability = torch.backends.cpu.get_cpu_capability()
        return f"{device.type} ({platform.machine()}, {capability}, {torch.get_num_threads()} threads)"
    properties = torch.cuda.get_device_properties(device)
    memory_gib = properties.total_memory / 2**30
    return f"{device} ({properties.name}, {memory_gib:.0f} GiB, compute {properties.major}.{properties.minor})"


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given; nothing on the CPU, which does it at once."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_mib(device: torch.device) -> float:
    """Most memory in use so far, in MiB: PyTorch's allocations on a GPU, else the resident memory of the process."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bytes_per_unit = 1 if sys.platform == "darwin" else 1024
    return peak * bytes_per_unit / 2**20
