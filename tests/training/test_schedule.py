"""The learning rate against PyTorch's schedulers and against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR, StepLR

from orchestrator.config.options import TrainConfig
from orchestrator.errors import ConfigError
from orchestrator.training.schedule import check_schedule, learning_rate


def course(total: int, per_epoch: int, count: int | None = None, **options: Any) -> list[float]:
    config = TrainConfig.model_validate({"lr": 1.0, **options})
    check_schedule(config, total)
    return [learning_rate(config, update, total, per_epoch) for update in range(count or total)]


def optimizer(lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def course_of(scheduler: LRScheduler, total: int) -> list[float]:
    rates = []
    for _ in range(total):
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return [float(rate) for rate in rates]


def test_cosine_by_hand() -> None:
    # 64 samples, batch 24, 2 epochs: 3 steps per epoch, 6 in all.
    rates = course(6, 3, count=9, scheduler="cosine")
    assert rates == pytest.approx([1, 0.9330127, 0.75, 0.5, 0.25, 0.0669873, 0, 0, 0], abs=1e-7)


def test_constant() -> None:
    assert course(4, 2, count=6, scheduler="constant", lr=0.25) == [0.25] * 6


def test_halved_each_epoch() -> None:
    rates = course(8, 2, count=11, scheduler="step", lr_step_epochs=1, lr_gamma=0.5)
    assert rates == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.125, 0.125, 0.125]


@pytest.mark.parametrize(("epochs", "first_cut"), [(1, None), (2, 1), (3, 1), (4, 2), (10, 4), (90, 30)])
def test_step_cuts_after_a_third_of_the_run(epochs: int, first_cut: int | None) -> None:
    rates = course(epochs * 5, 5, scheduler="step")
    cuts = [epoch for epoch in range(1, epochs) if rates[epoch * 5] < rates[epoch * 5 - 1]]
    assert (cuts[0] if cuts else None) == first_cut
    assert rates[0] == 1.0


@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_cosine_is_pytorchs(total: int) -> None:
    expected = course_of(CosineAnnealingLR(optimizer(0.3), T_max=total), total)
    assert course(total, 5, scheduler="cosine", lr=0.3) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("total", [2, 3, 4, 10, 11, 97, 1000])
def test_onecycle_is_pytorchs(total: int) -> None:
    oracle = OneCycleLR(optimizer(0.3), max_lr=0.3, total_steps=total, cycle_momentum=False)
    expected = [*course_of(oracle, total - 1), float(oracle.get_last_lr()[0])]
    assert course(total, 5, scheduler="onecycle", lr=0.3) == pytest.approx(expected, rel=1e-9)


def test_onecycle_ends_low_and_stays() -> None:
    rates = course(20, 5, count=24, scheduler="onecycle")
    assert rates[0] == pytest.approx(1 / 25)
    assert max(rates) == rates[5] == pytest.approx(1.0)
    assert rates[19:] == pytest.approx([1 / 25 / 1e4] * 5)


def test_step_is_pytorchs() -> None:
    per_epoch, epochs = 4, 9
    by_epoch = course_of(StepLR(optimizer(0.3), step_size=2, gamma=0.3), epochs)
    rates = course(per_epoch * epochs, per_epoch, scheduler="step", lr=0.3, lr_step_epochs=2, lr_gamma=0.3)
    assert rates == pytest.approx([rate for rate in by_epoch for _ in range(per_epoch)], rel=1e-12)


def test_warmup_rises_to_the_target_and_the_cosine_takes_what_is_left() -> None:
    rates = course(10, 5, count=11, scheduler="cosine", warmup_steps=4)
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == pytest.approx([(1 + math.cos(math.pi * i / 6)) / 2 for i in range(7)], abs=1e-12)


def test_warmup_leaves_the_cuts_at_their_epochs() -> None:
    rates = course(6, 2, scheduler="step", warmup_steps=4, lr_step_epochs=1, lr_gamma=0.5)
    assert rates == [0.25, 0.5, 0.375, 0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler": "onecycle", "warmup_steps": 5}, r"--warmup-steps 5 with --scheduler onecycle.*first 30%"),
        ({"warmup_steps": 10}, r"--warmup-steps 10 is no less than the 10 optimizer steps.*at most 9"),
        ({"warmup_steps": 500, "scheduler": "constant"}, r"--warmup-steps 500 .* 10 optimizer steps"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_schedule(TrainConfig.model_validate(options), 10)


@given(
    scheduler=st.sampled_from(["constant", "cosine", "onecycle", "step"]),
    total=st.integers(1, 300),
    per_epoch=st.integers(1, 50),
    warmup=st.integers(0, 299),
)
def test_between_zero_and_the_target_everywhere(scheduler: str, total: int, per_epoch: int, warmup: int) -> None:
    warmup = 0 if scheduler == "onecycle" else min(warmup, total - 1)
    rates = course(total, per_epoch, count=total + 5, scheduler=scheduler, warmup_steps=warmup, lr=0.1)
    assert all(0 <= rate <= 0.1 * (1 + 1e-12) for rate in rates)
    assert len(set(rates[total:])) == 1
