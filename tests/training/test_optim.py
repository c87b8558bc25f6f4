"""The optimizers against PyTorch's own, and who gets weight decay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orchestrator.config.options import TrainConfig
from orchestrator.errors import ConfigError
from orchestrator.training.optim import build_optimizer


def network() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    for _ in range(5):
        images = torch.rand(8, 1, 8, 8, generator=generator)
        targets = torch.randint(5, (8,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.state_dict()


ORACLES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.0),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.8),
}


@pytest.mark.parametrize("name", ORACLES)
def test_equals_pytorchs_bit_for_bit(name: str) -> None:
    model, oracle = network(), network()
    config = TrainConfig.model_validate({"optimizer": name, "lr": 0.01, "momentum": 0.8})
    actual = train(model, build_optimizer(config, model))
    expected = train(oracle, ORACLES[name](oracle.parameters()))
    assert all(torch.equal(value, actual[key]) for key, value in expected.items())


def test_weight_decay_equals_pytorchs_with_the_same_groups() -> None:
    model, oracle = network(), network()
    config = TrainConfig(optimizer="adamw", lr=0.01, weight_decay=0.3)
    actual = train(model, build_optimizer(config, model))
    groups = [
        {"params": [oracle[0].weight, oracle[4].weight], "weight_decay": 0.3},
        {"params": [oracle[0].bias, oracle[1].weight, oracle[1].bias, oracle[4].bias], "weight_decay": 0.0},
    ]
    expected = train(oracle, torch.optim.AdamW(groups, lr=0.01))
    assert all(torch.equal(value, actual[key]) for key, value in expected.items())


@pytest.mark.parametrize("name", ORACLES)
def test_groups_and_pinned_kernels(name: str) -> None:
    model = network()
    config = TrainConfig.model_validate({"optimizer": name, "weight_decay": 0.1})
    groups = build_optimizer(config, model).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    assert [[names[id(p)] for p in group["params"]] for group in groups] == [
        ["0.weight", "4.weight"],
        ["0.bias", "1.weight", "1.bias", "4.bias"],
    ]
    assert all(group["foreach"] is False and group["fused"] is False for group in groups)


def test_frozen_parameters_are_left_out() -> None:
    model = network()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    held = [p for group in build_optimizer(TrainConfig(), model).param_groups for p in group["params"]]
    assert sum(p.numel() for p in held) == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert all(p.requires_grad for p in held)


def test_no_empty_group() -> None:
    assert len(build_optimizer(TrainConfig(), nn.Linear(3, 2, bias=False)).param_groups) == 1


def test_nothing_to_train_is_refused() -> None:
    model = network().requires_grad_(False)
    with pytest.raises(ConfigError, match="--model cnn has no parameter that is trained"):
        build_optimizer(TrainConfig(), model)
    with pytest.raises(ConfigError, match="no parameter that is trained"):
        build_optimizer(TrainConfig(), nn.ReLU())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_fused_on_a_gpu() -> None:
    optimizer = build_optimizer(TrainConfig(), network().cuda())
    assert all(group["fused"] and not group["foreach"] for group in optimizer.param_groups)
