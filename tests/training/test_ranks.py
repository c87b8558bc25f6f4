"""`fit` on several ranks: the same samples, the same evaluation, the same weights on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from orchestrator.config.batch import BatchPlan
from orchestrator.config.options import TrainConfig
from orchestrator.data.dataset import prepare_dataset
from orchestrator.training.order import MicroBatch, steps_of_epoch
from orchestrator.training.reduction import build_reduction
from orchestrator.training.session import DDP_OPTIONS, LocalSession
from tests.toy import write_idx_folder
from tests.training.fitting import Fitted, fit_here, run_ranks
from tests.training.test_loop import LINEAR, config_for


def fit_on(world_size: int, config: TrainConfig, tmp_path: Path, name: str) -> list[Any]:
    prepare_dataset(config)
    return run_ranks(world_size, lambda: fit_here(config), tmp_path / f"rendezvous-{name}")


@pytest.fixture
def ragged_folder(tmp_path: Path) -> Path:
    """107 training images: with a batch of 24 the last step has 11; and a prime number of validation images."""
    return write_idx_folder(tmp_path / "ragged", num_train=107, num_validation=101, size=8)


def test_workers_change_neither_counts_nor_the_mathematics(ragged_folder: Path, tmp_path: Path) -> None:
    # Micro-batches of 6: the last step has 2 of them, fewer than there are ranks.
    config = config_for(
        ragged_folder, model=LINEAR, batch_size=24, micro_batch_size=6, optimizer="sgd", lr=0.05, log_every=1,
        evaluation_batch_size=32, augment="basic",
    )  # fmt: skip
    alone = fit_here(config)
    for world_size in (2, 3, 4):
        ranks = fit_on(world_size, config, tmp_path, str(world_size))
        assert len({r.final["weights_sha256"] for r in ranks}) == 1
        for mine, theirs in zip(alone.of("epoch"), ranks[0].of("epoch"), strict=True):
            assert theirs["validation/accuracy"] == mine["validation/accuracy"]
            assert theirs["validation/samples"] == 101
            assert theirs["train/accuracy"] == mine["train/accuracy"]
            assert theirs["train/loss"] == pytest.approx(mine["train/loss"], rel=1e-5)
        assert ranks[0].final["samples_seen"] == alone.final["samples_seen"] == 2 * 107


def test_evaluation_is_exactly_the_same_for_every_number_of_ranks(ragged_folder: Path, tmp_path: Path) -> None:
    # A learning rate too small to move a weight leaves the same model to evaluate everywhere.
    config = config_for(ragged_folder, batch_size=24, micro_batch_size=6, lr=1e-30, evaluation_batch_size=8, epochs=1)
    alone = fit_here(config).of("epoch")[0]
    for world_size in (2, 3, 4):
        event = fit_on(world_size, config, tmp_path, str(world_size))[0].of("epoch")[0]
        assert event["validation/loss"] == alone["validation/loss"]
        assert event["validation/accuracy"] == alone["validation/accuracy"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_rank_ends_with_the_same_weights_and_statistics(
    ragged_folder: Path, tmp_path: Path, precision: str
) -> None:
    config = config_for(
        ragged_folder,
        model="cnn-bn",
        batch_size=24,
        micro_batch_size=6,
        epochs=1,
        precision=precision,
        max_grad_norm=1.0,
    )
    ranks = fit_on(3, config, tmp_path, precision)
    assert len({r.final["weights_sha256"] for r in ranks}) == 1
    alone = fit_here(config)
    assert ranks[0].final["validation_loss"] == pytest.approx(alone.final["validation_loss"], rel=0.05)


def test_all_ranks_stop_when_one_is_asked_and_two_go_on_exactly(ragged_folder: Path, tmp_path: Path) -> None:
    config = config_for(ragged_folder, batch_size=24, micro_batch_size=12, model="cnn-bn", augment="basic")
    whole = fit_on(2, config, tmp_path, "whole")
    checkpoints = tmp_path / "checkpoints"

    def stopped() -> Fitted:
        return fit_here(config, LocalSession(checkpoints=checkpoints, should_stop=lambda: dist.get_rank() == 1))

    ranks = run_ranks(2, stopped, tmp_path / "rendezvous-stop")
    assert [r.final["stopped"] for r in ranks] == [True, True]
    assert [r.final["steps"] for r in ranks] == [1, 1]
    assert [p.name for p in checkpoints.iterdir()] == ["step_00000001"]
    resume_from = checkpoints / "step_00000001"
    resumed = run_ranks(
        2, lambda: fit_here(config, LocalSession(resume_from=resume_from)), tmp_path / "rendezvous-resume"
    )
    assert {r.final["weights_sha256"] for r in resumed} == {whole[0].final["weights_sha256"]}


def test_a_nan_on_one_rank_ends_all_of_them_alike(ragged_folder: Path, tmp_path: Path) -> None:
    config = config_for(ragged_folder, batch_size=24, micro_batch_size=6, lr=1e30, optimizer="sgd", log_every=1)
    prepare_dataset(config)

    def body() -> str:
        try:
            fit_here(config)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "finished"

    said = run_ranks(2, body, tmp_path / "rendezvous-nan")
    assert said[0] == said[1]
    assert said[0].startswith("NonFiniteError")


def test_batch_norm_statistics_are_averaged_over_micro_batches(tmp_path: Path) -> None:
    """Values {1,3} on one rank and {101,103} on the other, momentum 0.1: 0.1 * mean(2, 102) = 5.2 everywhere."""
    from orchestrator.training.buffers import StepBuffers

    def body() -> tuple[float, int]:
        rank = dist.get_rank()
        norm = torch.nn.BatchNorm1d(1)
        buffers = StepBuffers(norm, world_size=2)
        buffers.begin_step(micro_batch_count=2)
        buffers.before_micro_batch()
        norm(torch.tensor([[1.0], [3.0]]) + 100 * rank)
        buffers.after_micro_batch(rank)
        buffers.end_step()
        return float(norm.running_mean[0]), int(norm.num_batches_tracked)

    assert run_ranks(2, body, tmp_path / "rendezvous-bn") == [(pytest.approx(5.2), 1)] * 2


@pytest.mark.parametrize("deterministic", [True, False])
def test_five_samples_on_two_ranks_weigh_the_same(tmp_path: Path, deterministic: bool) -> None:
    """Rank 0 has 3 and rank 1 has 2 of them: the gradient is the mean over the 5, not the mean of two means."""

    def body() -> float:
        rank = dist.get_rank()
        model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
        reduction = build_reduction(model, rank=rank, world_size=2, deterministic=deterministic)
        (step,) = steps_of_epoch(BatchPlan(5, 3), torch.arange(5), rank=rank, world_size=2)

        def forward_backward(micro: MicroBatch) -> None:
            (model(micro.ids.float().view(-1, 1) + 1).sum() / step.samples).backward()

        reduction.run(step, forward_backward)
        return float(model.module.weight.grad)

    assert run_ranks(2, body, tmp_path / "rendezvous-five") == [3.0, 3.0]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("model", ["cnn", "cnn-bn"])
def test_the_number_of_ranks_changes_no_bit(ragged_folder: Path, tmp_path: Path, model: str, precision: str) -> None:
    # 5 micro-batches a step, 2 or 3 in the last one: blocks that are no subtrees, and ranks with nothing to do.
    config = config_for(
        ragged_folder, model=model, batch_size=24, micro_batch_size=5, precision=precision, max_grad_norm=1.0,
        augment="strong", log_every=1, scheduler="onecycle",
    )  # fmt: skip
    alone = fit_here(config)
    for world_size in (2, 3, 4):
        ranks = fit_on(world_size, config, tmp_path, str(world_size))
        assert {r.final["weights_sha256"] for r in ranks} == {alone.final["weights_sha256"]}
        assert [e["train/loss"] for e in ranks[0].of("step")] == [e["train/loss"] for e in alone.of("step")]
        assert [e["train/grad_norm"] for e in ranks[0].of("step")] == [e["train/grad_norm"] for e in alone.of("step")]


def test_without_the_tree_the_number_of_ranks_shows(ragged_folder: Path, tmp_path: Path) -> None:
    config = config_for(ragged_folder, batch_size=24, micro_batch_size=5, deterministic=False)
    alone, together = fit_here(config), fit_on(3, config, tmp_path, "plain")
    assert len({r.final["weights_sha256"] for r in together}) == 1
    assert together[0].final["weights_sha256"] != alone.final["weights_sha256"]


def test_stopped_on_three_ranks_and_resumed_on_two_equals_one(ragged_folder: Path, tmp_path: Path) -> None:
    config = config_for(ragged_folder, model="cnn-bn", batch_size=24, micro_batch_size=6, augment="basic")
    checkpoints = tmp_path / "checkpoints"
    prepare_dataset(config)

    def stopped() -> Fitted:
        session = LocalSession(checkpoints=checkpoints)
        session._should_stop = lambda: session.rank == 0 and any(e.get("step") == 6 for e in session.emitted)
        return fit_here(config, session)

    first = run_ranks(3, stopped, tmp_path / "rendezvous-three")
    assert first[0].final["stopped"]
    (checkpoint,) = [p for p in checkpoints.iterdir() if p.name.startswith("step_")]
    resumed = run_ranks(2, lambda: fit_here(config, LocalSession(resume_from=checkpoint)), tmp_path / "rendezvous-two")
    assert resumed[0].final["weights_sha256"] == fit_here(config).final["weights_sha256"]


def test_unaligned_bucket_layout_changes_no_bit(ragged_folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    config = config_for(ragged_folder, batch_size=24, micro_batch_size=5, epochs=1)
    alone = fit_here(config)
    monkeypatch.setitem(DDP_OPTIONS, "bucket_cap_mb", 0.005)
    ranks = fit_on(3, config, tmp_path, "buckets")
    assert ranks[0].final["weights_sha256"] == alone.final["weights_sha256"]


class _WithUnused(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(64, 10), torch.nn.Linear(3, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.used(images.flatten(1))


def with_unused() -> torch.nn.Module:
    return _WithUnused()


def test_parameters_that_take_no_part_are_the_same_on_any_number_of_ranks(ragged_folder: Path, tmp_path: Path) -> None:
    config = config_for(
        ragged_folder, model="tests.training.test_ranks:with_unused", batch_size=24, micro_batch_size=6,
        optimizer="adamw", weight_decay=0.1,
    )  # fmt: skip
    alone = fit_here(config)
    for world_size in (2, 3):
        ranks = fit_on(world_size, config, tmp_path, str(world_size))
        assert {r.final["weights_sha256"] for r in ranks} == {alone.final["weights_sha256"]}
