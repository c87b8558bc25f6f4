"""The numbers that a step is computed in: fp32, bf16 or fp16 autocast. Weights stay fp32 in all of them.

The loop calls `autocast` around the forward pass, `backward` per micro-batch, and after the reduction of the gradients
`unscale`, then clips, then `step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from orchestrator.errors import CheckpointError, EnvironmentMismatchError, NonFiniteError

PrecisionName = Literal["fp32", "bf16", "fp16"]

INITIAL_SCALE = 65536.0
SMALLEST_SCALE = 2.0**-10
"""Below this the gradients are not too large for fp16, they are broken: 65536 was halved more than 26 times."""


class Precision:
    """fp32: every call does what plain PyTorch does."""

    name: PrecisionName = "fp32"
    has_scaler = False

    @property
    def scale(self) -> float:
        """Factor on the loss in `backward`."""
        return 1.0

    def autocast(self) -> AbstractContextManager[Any]:
        """Context for a forward pass."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss` times `scale`."""
        loss.backward()  # type: ignore[no-untyped-call]

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients by `scale`: once per step, after the reduction and before clipping."""

    def step(self, optimizer: Optimizer) -> bool:
        """Step with the gradients as they are; False if it was skipped because one is not finite."""
        optimizer.step()
        return True

    def state_dict(self) -> dict[str, float | int]:
        """Plain numbers, for a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave. Raises `CheckpointError` if that was another precision."""
        if state:
            raise CheckpointError(f"the checkpoint has the loss scale of an fp16 run, but this run is {self.name}")


class Bf16(Precision):
    """bf16 autocast. It has the range of fp32, so nothing is scaled."""

    name = "bf16"

    def __init__(self, device: torch.device) -> None:
        self._device_type = device.type

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device_type, torch.bfloat16)


class Fp16(Precision):
    """fp16 autocast with a scaled loss (Micikevicius et al., arXiv:1710.03740).

    A step with a gradient that is not finite is skipped and halves the scale; `growth_interval` steps in a row without
    one double it.
    """

    name = "fp16"
    has_scaler = True

    def __init__(self, device: torch.device, *, growth_interval: int = 2000) -> None:
        self._device = device
        self._scaler = torch.amp.GradScaler(device.type, init_scale=INITIAL_SCALE, growth_interval=growth_interval)
        # The scaler makes its tensors at the first loss, which a rank without a micro-batch of its own never has.
        self._scaler.scale(torch.zeros((), device=device))
        # A copy on this side, because asking the scaler waits for the GPU.
        self._scale = INITIAL_SCALE

    @property
    def scale(self) -> float:
        return self._scale

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device.type, torch.float16)

    def backward(self, loss: Tensor) -> None:
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def unscale(self, optimizer: Optimizer) -> None:
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> bool:
        """As in the base; unscales if `unscale` was not called.

        Raises `NonFiniteError` when the scale falls under `SMALLEST_SCALE`: no scale makes such gradients finite.
        """
        self._scaler.step(optimizer)
        self._scaler.update()
        before, self._scale = self._scale, self._scaler.get_scale()
        if self._scale < SMALLEST_SCALE:
            raise NonFiniteError(
                f"gradients are NaN or infinite in fp16 even at a loss scale of {self._scale:g}, so each step is "
                "skipped; try a lower --lr, --max-grad-norm 1, or --precision bf16"
            )
        return self._scale >= before

    def state_dict(self) -> dict[str, float | int]:
        return dict(self._scaler.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        missing = self._scaler.state_dict().keys() - state.keys()
        if missing:
            raise CheckpointError(
                f"the checkpoint has no loss scale ({', '.join(sorted(missing))} missing), but this run is fp16"
            )
        self._scaler.load_state_dict(dict(state))
        self._scale = self._scaler.get_scale()


def build_precision(name: PrecisionName, device: torch.device) -> Precision:
    """The object for one of the three names; see `resolve_precision` for `auto`."""
    if name == "fp16":
        return Fp16(device)
    return Bf16(device) if name == "bf16" else Precision()


def resolve_precision(
    requested: Literal["auto", "fp32", "bf16", "fp16"], device: torch.device
) -> tuple[PrecisionName, str]:
    """What to compute in on `device`, and why, for the user.

    `auto` takes bf16 where the hardware has it, else fp16 on a GPU with tensor cores, else fp32. Any other request is
    met, or raises `EnvironmentMismatchError`: never another precision than the one asked for.
    """
    if requested == "auto":
        return _choose_on_gpu(device) if device.type == "cuda" else _choose_on_cpu()
    if device.type == "cuda":
        _check_gpu(requested, device)
    return requested, "as asked"


def _choose_on_gpu(device: torch.device) -> tuple[PrecisionName, str]:
    capability = torch.cuda.get_device_capability(device)
    gpu = f"{torch.cuda.get_device_name(device)} (compute {capability[0]}.{capability[1]})"
    if _gpu_has_bf16(device):
        return "bf16", f"{gpu} has bf16"
    if capability >= (7, 0):
        return "fp16", f"{gpu} has no bf16, but tensor cores for fp16"
    return "fp32", f"{gpu} has neither bf16 nor tensor cores for fp16"


def _choose_on_cpu() -> tuple[PrecisionName, str]:
    feature = cpu_bf16_feature()
    return ("bf16", f"this CPU has {feature}") if feature else ("fp32", "this CPU has no instructions for bf16")


def _check_gpu(requested: PrecisionName, device: torch.device) -> None:
    capability = torch.cuda.get_device_capability(device)
    lacking = (requested == "bf16" and not _gpu_has_bf16(device)) or (requested == "fp16" and capability < (5, 3))
    if lacking:
        raise EnvironmentMismatchError(
            f"--precision {requested}: {torch.cuda.get_device_name(device)} (compute {capability[0]}.{capability[1]}) "
            f"has no {requested}; give --precision auto, or fp32"
        )


def _gpu_has_bf16(device: torch.device) -> bool:
    # PyTorch asks about the current device.
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def cpu_bf16_feature() -> str | None:
    """Name of the CPU's instructions for bf16 matrix products, None if there are none (PyTorch then emulates them)."""
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if not capabilities:
        # Older PyTorch, which has single questions instead.
        capabilities = {"avx512_bf16": getattr(torch.cpu, "_is_avx512_bf16_supported", bool)()}
    is_arm = str(capabilities.get("architecture", "")).startswith(("arm", "aarch"))
    names = ("bf16",) if is_arm else ("amx_bf16", "avx512_bf16")
    return next((name for name in names if capabilities.get(name)), None)


def set_tf32(allowed: bool) -> None:
    """Allow or forbid TF32 in the fp32 matrix products and convolutions of this process's GPUs."""
    # The old names: they set both the old and the new state, while the new ones make later reads of the old raise.
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
