"""What a step is computed in: the order of unscaling and clipping, skipped steps, and which precision is chosen."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.errors import CheckpointError, EnvironmentMismatchError, NonFiniteError
from orchestrator.training.precision import (
    SMALLEST_SCALE,
    Fp16,
    Precision,
    PrecisionName,
    build_precision,
    cpu_bf16_feature,
    resolve_precision,
    set_tf32,
)

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
NAMES: tuple[PrecisionName, ...] = ("fp32", "bf16", "fp16")

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def parameter_and_optimizer(values: list[float]) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    parameter = nn.Parameter(torch.zeros(len(values)))
    return parameter, torch.optim.SGD([parameter], lr=1.0)


def backward(precision: Precision, parameter: nn.Parameter, gradient: list[float]) -> None:
    parameter.grad = None
    precision.backward((parameter * torch.tensor(gradient)).sum())


def skip(precision: Fp16) -> bool:
    """One step whose gradient is infinite; whether it was applied."""
    parameter, optimizer = parameter_and_optimizer([0.0])
    backward(precision, parameter, [float("inf")])
    precision.unscale(optimizer)
    applied = precision.step(optimizer)
    assert parameter.tolist() == [0.0]
    return applied


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("gradient", "clipped", "norm"), [([3.0, 4.0], [0.6, 0.8], 5.0), ([0.3, 0.4], [0.3, 0.4], 0.5)]
)
def test_clipped_after_unscaling(name: PrecisionName, gradient: list[float], clipped: list[float], norm: float) -> None:
    precision = build_precision(name, CPU)
    parameter, optimizer = parameter_and_optimizer(gradient)
    backward(precision, parameter, gradient)
    assert parameter.grad is not None
    assert precision.scale == (65536.0 if name == "fp16" else 1.0)
    assert parameter.grad.tolist() == pytest.approx([value * precision.scale for value in gradient])
    precision.unscale(optimizer)
    assert float(nn.utils.clip_grad_norm_([parameter], 1.0)) == pytest.approx(norm, rel=1e-6)
    assert parameter.grad.tolist() == pytest.approx(clipped, rel=1e-5)
    assert precision.step(optimizer) is True
    assert parameter.tolist() == pytest.approx([-value for value in clipped], rel=1e-5)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_bad_gradient_skips_the_step_and_halves_the_scale(bad: float) -> None:
    precision = Fp16(CPU)
    parameter, optimizer = parameter_and_optimizer([0.0, 0.0])
    backward(precision, parameter, [1.0, bad])
    precision.unscale(optimizer)
    assert precision.step(optimizer) is False
    assert parameter.tolist() == [0.0, 0.0]
    assert precision.scale == 32768.0
    backward(precision, parameter, [1.0, 2.0])
    precision.unscale(optimizer)
    assert precision.step(optimizer) is True
    assert parameter.tolist() == [-1.0, -2.0]
    assert precision.scale == 32768.0


def test_scale_doubles_after_enough_good_steps() -> None:
    precision = Fp16(CPU, growth_interval=3)
    parameter, optimizer = parameter_and_optimizer([0.0])
    scales = []
    for _ in range(6):
        backward(precision, parameter, [1.0])
        precision.unscale(optimizer)
        assert precision.step(optimizer) is True
        scales.append(precision.scale)
    assert scales == [65536.0, 65536.0, 131072.0, 131072.0, 131072.0, 262144.0]


def test_steps_on_a_rank_without_a_loss_of_its_own() -> None:
    precision = Fp16(CPU)
    parameter, optimizer = parameter_and_optimizer([0.0])
    parameter.grad = torch.tensor([65536.0 * 3])
    precision.unscale(optimizer)
    assert precision.step(optimizer) is True
    assert parameter.tolist() == [-3.0]


def test_gradients_that_no_scale_can_save_end_the_run() -> None:
    precision = Fp16(CPU)
    while precision.scale > SMALLEST_SCALE:
        assert skip(precision) is False
    with pytest.raises(NonFiniteError, match=r"even at a loss scale of .*--precision bf16"):
        skip(precision)


def test_scaler_state_survives_a_checkpoint() -> None:
    saved = Fp16(CPU, growth_interval=3)
    for _ in range(8):
        skip(saved)
    parameter, optimizer = parameter_and_optimizer([0.0])
    backward(saved, parameter, [1.0])
    saved.step(optimizer)
    state = saved.state_dict()
    assert saved.scale == 256.0
    assert all(type(value) in (int, float) for value in state.values())

    resumed = Fp16(CPU)
    resumed.load_state_dict(state)
    assert resumed.scale == 256.0
    assert resumed.state_dict() == state
    scales = []
    for _ in range(2):
        backward(resumed, parameter, [1.0])
        resumed.step(optimizer)
        scales.append(resumed.scale)
    assert scales == [256.0, 512.0]


def test_state_of_another_precision_is_refused() -> None:
    with pytest.raises(CheckpointError, match="loss scale of an fp16 run, but this run is bf16"):
        build_precision("bf16", CPU).load_state_dict(Fp16(CPU).state_dict())
    with pytest.raises(CheckpointError, match="no loss scale"):
        Fp16(CPU).load_state_dict({})
    build_precision("fp32", CPU).load_state_dict({})


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.half)])
def test_what_was_asked_for_is_what_runs(name: PrecisionName, dtype: torch.dtype) -> None:
    precision = build_precision(name, CPU)
    assert (precision.name, precision.has_scaler) == (name, name == "fp16")
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with precision.autocast():
        logits = model(torch.rand(4, 1, 8, 8))
    assert logits.dtype == dtype
    precision.backward(nn.functional.cross_entropy(logits.float(), torch.tensor([0, 1, 2, 0])))
    precision.unscale(optimizer)
    assert precision.step(optimizer) is True
    assert all(p.dtype == torch.float32 and torch.isfinite(p).all() for p in model.parameters())


def test_fp32_is_plain_pytorch_bit_for_bit() -> None:
    results = []
    for precision in (None, Precision()):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        optimizer = torch.optim.Adam(model.parameters())
        loss = model(torch.rand(4, 5)).square().mean()
        if precision is None:
            loss.backward()
            optimizer.step()
        else:
            precision.backward(loss)
            precision.unscale(optimizer)
            precision.step(optimizer)
        results.append(model.weight.detach())
    assert torch.equal(*results)


class FakeGpu:
    """Answers for a GPU of a given compute capability."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = capability

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: self.capability)
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Fake GPU")
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", self.has_bf16)

    def has_bf16(self, including_emulation: bool = True) -> bool:
        return including_emulation or self.capability >= (8, 0)


@pytest.mark.parametrize(
    ("capability", "expected", "reason"),
    [
        ((9, 0), "bf16", "Fake GPU (compute 9.0) has bf16"),
        ((8, 0), "bf16", "Fake GPU (compute 8.0) has bf16"),
        ((7, 5), "fp16", "Fake GPU (compute 7.5) has no bf16, but tensor cores for fp16"),
        ((7, 0), "fp16", "Fake GPU (compute 7.0) has no bf16, but tensor cores for fp16"),
        ((6, 1), "fp32", "Fake GPU (compute 6.1) has neither bf16 nor tensor cores for fp16"),
    ],
)
def test_auto_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: str, reason: str
) -> None:
    FakeGpu(capability).install(monkeypatch)
    assert resolve_precision("auto", GPU) == (expected, reason)


@pytest.mark.parametrize(
    ("capability", "allowed"), [((8, 0), {"fp32", "bf16", "fp16"}), ((7, 5), {"fp32", "fp16"}), ((5, 2), {"fp32"})]
)
def test_explicit_on_a_gpu_is_met_or_refused(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], allowed: set[str]
) -> None:
    FakeGpu(capability).install(monkeypatch)
    for name in NAMES:
        if name in allowed:
            assert resolve_precision(name, GPU) == (name, "as asked")
        else:
            with pytest.raises(EnvironmentMismatchError, match=rf"--precision {name}: Fake GPU .* has no {name}"):
                resolve_precision(name, GPU)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"architecture": "x86_64", "amx_bf16": True, "avx512_bf16": True}, ("bf16", "this CPU has amx_bf16")),
        ({"architecture": "x86_64", "amx_bf16": False, "avx512_bf16": True}, ("bf16", "this CPU has avx512_bf16")),
        ({"architecture": "x86_64", "avx2": True}, ("fp32", "this CPU has no instructions for bf16")),
        ({"architecture": "aarch64", "bf16": True}, ("bf16", "this CPU has bf16")),
        ({"architecture": "aarch64", "neon": True}, ("fp32", "this CPU has no instructions for bf16")),
    ],
)
def test_auto_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, Any], expected: tuple[str, str]
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert resolve_precision("auto", CPU) == expected


def test_auto_on_a_cpu_with_an_older_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    assert cpu_bf16_feature() == "avx512_bf16"
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported")
    assert cpu_bf16_feature() is None


def test_explicit_on_a_cpu() -> None:
    for name in NAMES:
        assert resolve_precision(name, CPU) == (name, "as asked")


def test_tf32_is_switched_for_products_and_convolutions() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        for allowed in (True, False):
            set_tf32(allowed)
            assert torch.backends.cuda.matmul.allow_tf32 is allowed
            assert torch.backends.cudnn.allow_tf32 is allowed
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.gpu
@needs_gpu
def test_fp16_with_a_fused_optimizer_on_a_gpu() -> None:
    precision = Fp16(GPU)
    parameter = nn.Parameter(torch.zeros(2, device=GPU))
    optimizer = torch.optim.Adam([parameter], lr=0.1, fused=True)
    for gradient, applied in (([1.0, float("inf")], False), ([3.0, 4.0], True)):
        parameter.grad = None
        precision.backward((parameter * torch.tensor(gradient, device=GPU)).sum())
        precision.unscale(optimizer)
        assert precision.step(optimizer) is applied
        assert bool(parameter.any()) is applied
    assert precision.scale == 32768.0
