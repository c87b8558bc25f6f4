"""`fit` in this process: its mathematics against plain PyTorch, its counts, its stops and its errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch.nn import functional

from orchestrator.config.batch import plan_batches
from orchestrator.config.contract import resolve
from orchestrator.config.options import TrainConfig
from orchestrator.data.dataset import open_split, prepare_dataset
from orchestrator.errors import CheckpointError, ConfigError, NonFiniteError
from orchestrator.models.build import build_model
from orchestrator.training import checkpointing
from orchestrator.training.loop import fit
from orchestrator.training.order import epoch_order, key
from orchestrator.training.session import LocalSession, checkpoint_metas
from orchestrator.training.weights import weights_of, weights_sha256
from tests.training.fitting import Fitted, fit_here

pytestmark = pytest.mark.usefixtures("_torch_state")


def config_for(folder: Path, **changes: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "dataset": str(folder),
        "epochs": 2,
        "batch_size": 16,
        "precision": "fp32",
        "scheduler": "constant",
        "lr": 1e-3,
        "num_workers": 0,
    }
    return TrainConfig(**base | changes)


def linear(num_classes: int, in_channels: int, image_size: tuple[int, int]) -> torch.nn.Module:
    """A network without dropout or batch norm, found by its import path."""
    torch.manual_seed(1)
    pixels = in_channels * image_size[0] * image_size[1]
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(pixels, num_classes))


def poisoned(num_classes: int, in_channels: int, image_size: tuple[int, int]) -> torch.nn.Module:
    model = linear(num_classes, in_channels, image_size)
    with torch.no_grad():
        model[1].weight[0, 0] = math.nan
    return model


LINEAR = "tests.training.test_loop:linear"


def plain_pytorch(config: TrainConfig) -> dict[str, torch.Tensor]:
    """The same training written out by hand: no accumulation, no workers, no session."""
    info = prepare_dataset(config)
    split = open_split(info.train_file)
    images = torch.tensor(split.images.copy()).permute(0, 3, 1, 2).float()
    images = (images - torch.tensor(info.mean).view(1, -1, 1, 1) * 255) / (
        torch.tensor(info.std).view(1, -1, 1, 1) * 255
    )
    targets = torch.tensor(split.labels.copy())
    torch.manual_seed(key(config.seed, "weights"))
    model = build_model(config, channels=1, height=28, width=28, num_classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    for epoch in range(1, config.epochs + 1):
        order = epoch_order(torch.arange(len(targets)), config.seed, epoch)
        for ids in order.split(config.batch_size):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[ids]), targets[ids]).backward()
            optimizer.step()
    return weights_of(model)


def test_one_worker_equals_a_plain_pytorch_loop_bit_for_bit(toy_folder: Path) -> None:
    config = config_for(toy_folder, model=LINEAR, batch_size=20)
    assert fit_here(config).final["weights_sha256"] == weights_sha256(plain_pytorch(config))


def final_weights(folder: Path, tmp: Path, **changes: Any) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    fit_here(config_for(folder, **changes), LocalSession(checkpoints=tmp))
    return load_file(checkpoint_metas(tmp)[-1][0] / "model.safetensors")


@pytest.mark.parametrize(("samples", "micro"), [(64, 4), (50, 4), (64, 5), (35, 8)])
def test_accumulation_equals_the_whole_batch_with_a_ragged_last_step(tmp_path: Path, samples: int, micro: int) -> None:
    from tests.toy import write_idx_folder

    folder = write_idx_folder(tmp_path / "data", num_train=samples)
    sgd = {"model": LINEAR, "optimizer": "sgd", "lr": 0.01}
    whole = final_weights(folder, tmp_path / "whole", **sgd)
    cut = final_weights(folder, tmp_path / "cut", micro_batch_size=micro, **sgd)
    for name, tensor in whole.items():
        torch.testing.assert_close(cut[name], tensor, rtol=0, atol=1e-6)


def test_counts_of_steps_samples_and_evaluation(toy_folder: Path) -> None:
    fitted = fit_here(config_for(toy_folder, batch_size=24, epochs=3, log_every=2))
    assert fitted.final["steps"] == 9
    assert fitted.final["samples_seen"] == 3 * 64
    assert [e["epoch"] for e in fitted.of("epoch")] == [1, 2, 3]
    assert {e["validation/samples"] for e in fitted.of("epoch")} == {30}
    for event in fitted.of("epoch"):
        assert (event["validation/accuracy"] * 30) == pytest.approx(round(event["validation/accuracy"] * 30), abs=1e-9)
    assert [e["step"] for e in fitted.of("step")] == [2, 3, 4, 6, 8, 9]


def test_the_network_learns(toy_folder: Path) -> None:
    fitted = fit_here(config_for(toy_folder, epochs=8, model="cnn"))
    losses = [e["train/loss"] for e in fitted.of("epoch")]
    assert losses[-1] < 0.5 * losses[0]
    assert fitted.final["validation_accuracy"] == 1.0


def test_the_logged_loss_is_the_mean_over_all_samples(toy_folder: Path) -> None:
    fitted = fit_here(config_for(toy_folder, log_every=1, batch_size=24, epochs=1))
    steps, epoch = fitted.of("step"), fitted.of("epoch")[0]
    sizes = [24, 24, 16]
    mean = sum(s["train/loss"] * n for s, n in zip(steps, sizes, strict=True)) / 64
    assert epoch["train/loss"] == pytest.approx(mean, rel=1e-12)
    assert epoch["train/accuracy"] * 64 == pytest.approx(
        sum(s["train/accuracy"] * n for s, n in zip(steps, sizes, strict=True)), abs=1e-9
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_two_runs_give_the_same_bits(tiny_folder: Path, precision: str) -> None:
    config = config_for(
        tiny_folder, precision=precision, model="cnn-bn", augment="strong", micro_batch_size=6, batch_size=20, epochs=1
    )
    first, second = fit_here(config), fit_here(config)
    assert first.final["weights_sha256"] == second.final["weights_sha256"]
    assert first.final["precision"] == precision
    other = fit_here(config.model_copy(update={"seed": 1}))
    assert other.final["weights_sha256"] != first.final["weights_sha256"]


class StopAfter(LocalSession):
    """Asks for a stop once `steps` steps are done."""

    def __init__(self, steps: int, **options: Any) -> None:
        super().__init__(**options)
        self._steps = steps

    def stop_requested(self) -> bool:
        return any(e["event"] == "heartbeat" and e["step"] >= self._steps for e in self.emitted)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_stopped_and_resumed_equals_undisturbed(tiny_folder: Path, tmp_path: Path, steps: int, precision: str) -> None:
    config = config_for(
        tiny_folder, precision=precision, model="cnn-bn", scheduler="onecycle", max_grad_norm=1.0, optimizer="adamw",
        weight_decay=0.01, micro_batch_size=7, augment="basic", log_every=1,
    )  # fmt: skip
    whole = fit_here(config)
    stopped = fit_here(config, StopAfter(steps, checkpoints=tmp_path))
    assert stopped.final["stopped"]
    assert stopped.final["steps"] == steps + 1
    resumed = fit_here(config, LocalSession(resume_from=checkpoint_metas(tmp_path)[-1][0]))
    assert resumed.of("start")[0]["resumed_from_step"] == steps + 1
    assert resumed.final["weights_sha256"] == whole.final["weights_sha256"]
    assert resumed.final["train_loss"] == whole.final["train_loss"]
    assert losses(stopped) + losses(resumed) == losses(whole)


def losses(fitted: Fitted) -> list[float]:
    return [e["train/loss"] for e in fitted.of("step")]


def test_a_checkpoint_of_another_training_is_refused_field_by_field(toy_folder: Path, tmp_path: Path) -> None:
    fit_here(config_for(toy_folder, epochs=1), LocalSession(checkpoints=tmp_path))
    other = config_for(toy_folder, epochs=1, lr=0.5, seed=3)
    with pytest.raises(ConfigError, match=r"lr: 0\.001 before, 0\.5 now\n  seed: 0 before, 3 now"):
        fit_here(other, LocalSession(resume_from=checkpoint_metas(tmp_path)[-1][0]))


def test_best_and_last_checkpoints_stay(toy_folder: Path, tmp_path: Path) -> None:
    fitted = fit_here(config_for(toy_folder, epochs=5, lr=0.01), LocalSession(checkpoints=tmp_path))
    names = {path.name for path, _ in checkpoint_metas(tmp_path)}
    assert names == {f"epoch_{fitted.final['best_epoch']:04d}", "epoch_0005"}
    accuracies = [e["validation/accuracy"] for e in fitted.of("epoch")]
    assert fitted.final["best_validation_accuracy"] == max(accuracies)
    assert fitted.final["best_epoch"] == accuracies.index(max(accuracies)) + 1


def test_max_steps_ends_within_an_epoch_with_an_evaluation(toy_folder: Path) -> None:
    fitted = fit_here(config_for(toy_folder, max_steps=6, epochs=5))
    assert fitted.final["steps"] == 6
    assert [e["step"] for e in fitted.of("epoch")] == [4, 6]
    assert fitted.final["validation_accuracy"] is not None


def test_early_stopping_waits_for_its_patience(toy_folder: Path) -> None:
    fitted = fit_here(config_for(toy_folder, epochs=30, early_stopping_patience=2, lr=0.005))
    accuracies = [e["validation/accuracy"] for e in fitted.of("epoch")]
    assert len(accuracies) == fitted.final["best_epoch"] + 2 < 30


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_loss_that_is_not_finite_ends_the_run_and_is_not_saved(
    toy_folder: Path, tmp_path: Path, precision: str
) -> None:
    config = config_for(toy_folder, lr=1e30, epochs=3, precision=precision, optimizer="sgd", log_every=1)
    with pytest.raises(NonFiniteError, match=r"in epoch 1, step \d+ \(learning rate 1e\+30\)"):
        fit_here(config, LocalSession(checkpoints=tmp_path))
    assert checkpoint_metas(tmp_path) == []


def test_weights_that_begin_as_nan_are_named_at_the_first_step(toy_folder: Path) -> None:
    config = config_for(toy_folder, model="tests.training.test_loop:poisoned")
    with pytest.raises(NonFiniteError, match="step 1 "):
        fit_here(config)


def test_class_names_and_only_plain_values_are_in_a_checkpoint(tiny_folder: Path, tmp_path: Path) -> None:
    fit_here(config_for(tiny_folder, epochs=1, precision="fp16"), LocalSession(checkpoints=tmp_path))
    folder, meta = checkpoint_metas(tmp_path)[-1]
    assert meta["class_names"] == [str(i) for i in range(10)]
    trainer = torch.load(folder / "trainer.pt", weights_only=True)
    assert set(trainer) == {"optimizer", "precision"}
    assert trainer["precision"]


def test_the_training_mode_is_the_same_before_every_step(toy_folder: Path) -> None:
    config = config_for(toy_folder, model="cnn-bn", epochs=2)
    plan = plan_batches(config)
    seen: list[list[bool]] = []
    hook = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, _args: seen.append([m.training for m in module.modules()]) if torch.is_grad_enabled() else None
    )
    try:
        fit(resolve(config, plan), prepare_dataset(config), plan, LocalSession())
    finally:
        hook.remove()
    assert seen
    assert all(all(flags) for flags in seen)


def test_a_checkpoint_that_cannot_be_stored_ends_the_run_and_leaves_nothing_half(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    fit_here(config_for(tiny_folder, epochs=1), LocalSession(checkpoints=tmp_path / "c"))
    monkeypatch.setattr(checkpointing, "save_file", full)
    with pytest.raises(CheckpointError, match=r"after step 4 cannot be written to .*No space left on device"):
        fit_here(config_for(tiny_folder, epochs=1), LocalSession(checkpoints=tmp_path / "c"))
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["epoch_0001"]
    assert checkpoint_metas(tmp_path / "c")


def test_a_checkpoint_beyond_its_epoch_is_refused_and_does_not_loop(tiny_folder: Path, tmp_path: Path) -> None:
    config = config_for(tiny_folder)
    fit_here(config, LocalSession(checkpoints=tmp_path, should_stop=lambda: True))
    folder, meta = checkpoint_metas(tmp_path)[-1]
    meta["state"]["step_in_epoch"] = 99
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(CheckpointError, match="step 99 of an epoch of 4 steps"):
        fit_here(config, LocalSession(resume_from=folder))
