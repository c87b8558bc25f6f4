"""The device of a worker: chosen or refused, described, measured."""

from __future__ import annotations

import psutil
import pytest
import torch

from orchestrator.errors import EnvironmentMismatchError
from orchestrator.training.device import choose_device, describe_device, peak_memory_mib, synchronize

CPU = torch.device("cpu")


def test_cpu_unless_a_gpu_is_asked_for() -> None:
    assert choose_device(use_gpu=False) == CPU


def test_missing_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EnvironmentMismatchError, match=r"--use-gpu: .* on .*; leave it out to train on the CPU"):
        choose_device(use_gpu=True)


def test_first_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device(use_gpu=True) == torch.device("cuda", 0)


def test_description_of_the_cpu() -> None:
    description = describe_device(CPU)
    assert description.startswith("cpu (")
    assert torch.backends.cpu.get_cpu_capability() in description


def test_description_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name, total_memory, major, minor = "Fake GPU", 80 * 2**30, 9, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert describe_device(torch.device("cuda", 1)) == "cuda:1 (Fake GPU, 80 GiB, compute 9.0)"


def test_peak_memory_of_the_process_in_mib() -> None:
    synchronize(CPU)
    held = torch.ones(2**22)
    resident = psutil.Process().memory_info().rss / 2**20
    # The kernel counts the resident pages a little late.
    assert peak_memory_mib(CPU) >= 0.95 * resident >= held.nbytes / 2**20
    assert peak_memory_mib(CPU) < psutil.virtual_memory().total / 2**20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_peak_memory_of_a_gpu() -> None:
    device = choose_device(use_gpu=True)
    held = torch.ones(2**20, device=device)
    synchronize(device)
    assert peak_memory_mib(device) >= held.nbytes / 2**20
