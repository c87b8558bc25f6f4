"""The training loop: `fit` runs it on one rank, and everything that a run is can be read from top to bottom here."""

from __future__ import annotations

import time
from typing import Any

import torch

from orchestrator.config.batch import BatchPlan
from orchestrator.config.contract import contract_of
from orchestrator.config.options import TrainConfig
from orchestrator.data.dataset import DatasetInfo
from orchestrator.errors import CheckpointError
from orchestrator.training.checkpointing import TrainState, read_checkpoint, write_checkpoint
from orchestrator.training.device import peak_memory_mib
from orchestrator.training.metrics import StepFacts, StepRecord
from orchestrator.training.order import MicroBatch, StepBatch, epoch_order, key, steps_of_epoch
from orchestrator.training.run import TrainingRun, build_run
from orchestrator.training.schedule import learning_rate
from orchestrator.training.session import Session
from orchestrator.training.weights import weights_of, weights_sha256


def fit(config: TrainConfig, info: DatasetInfo, plan: BatchPlan, session: Session) -> dict[str, Any]:
    """Train from the beginning or the session's checkpoint to the end of the run, or to a request to stop.

    `config` is resolved (its micro-batch is the plan's). Returns the final numbers as plain values, the same on every
    rank. Raises the errors of `orchestrator.errors`, on every rank alike where the cause is in the numbers.
    """
    run = build_run(config, info, plan, session)
    state = _restore(run)
    _announce(run, state)
    stopped = False
    while state.step < run.total_steps and not _out_of_patience(config, state) and not stopped:
        stopped = _train_epoch(run, state)
        if state.step_in_epoch == run.steps_per_epoch or state.step == run.total_steps:
            _finish_epoch(run, state)
        else:
            _save(run, state, f"step_{state.step:08d}")
    return _final_numbers(run, state, stopped and state.step < run.total_steps)


def _train_epoch(run: TrainingRun, state: TrainState) -> bool:
    """Train to the end of the epoch or of the run, or to the step at which the ranks agreed to stop: then True."""
    order = epoch_order(run.train_ids, run.config.seed, state.epoch + 1)
    steps = steps_of_epoch(
        run.plan, order, rank=run.session.rank, world_size=run.session.world_size, first_step=state.step_in_epoch
    )
    run.clock.resume()
    stop = False
    for step in steps:
        stop = run.control.vote(run.session.stop_requested())
        if stop:
            break
        _train_step(run, state, step)
        run.session.emit({"event": "heartbeat", "epoch": state.epoch + 1, "step": state.step})
        if state.step == run.total_steps:
            break
        if state.step % run.config.log_every == 0:
            _log(run, state)
    stop = run.control.settle() or stop
    _log(run, state)
    run.clock.pause()
    return stop


def _train_step(run: TrainingRun, state: TrainState, step: StepBatch) -> None:
    """One optimizer step: the micro-batches, the reduced gradient, the update."""
    lr = learning_rate(run.config, state.updates, run.total_steps, run.steps_per_epoch)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    run.optimizer.zero_grad(set_to_none=True)
    run.buffers.begin_step(step.micro_batch_count)
    run.metrics.begin_step()
    scale = run.precision.scale

    run.reduction.run(step, lambda micro_batch: _forward_backward(run, state, step, micro_batch))

    run.buffers.end_step()
    run.precision.unscale(run.optimizer)
    grad_norm = _clip(run)
    applied = run.precision.step(run.optimizer)
    state.step += 1
    state.step_in_epoch += 1
    state.updates += applied
    state.samples_seen += step.samples
    facts = StepFacts(state.epoch + 1, state.step, step.samples, lr, scale, applied)
    run.metrics.end_step(facts, grad_norm)


def _forward_backward(run: TrainingRun, state: TrainState, step: StepBatch, micro_batch: MicroBatch) -> None:
    epoch = state.epoch + 1
    run.buffers.before_micro_batch()
    images, targets = run.train_batches.fetch(micro_batch.ids, run.augmentation, epoch)
    torch.manual_seed(key(run.config.seed, "forward", epoch, step.index, micro_batch.index))
    with run.precision.autocast():
        logits = run.model(images)
    loss_sum = run.criterion(logits.float(), targets)
    # Divided by the samples that the whole step really has, so that each weighs the same in a ragged one.
    run.precision.backward(loss_sum / step.samples)
    run.buffers.after_micro_batch(micro_batch.index)
    run.metrics.add_micro_batch(micro_batch.index, loss_sum, logits, targets)


def _clip(run: TrainingRun) -> torch.Tensor:
    """Norm of the whole gradient before clipping, on the device."""
    gradients = [p.grad for p in run.parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if run.config.max_grad_norm > 0:
        torch.nn.utils.clip_grads_with_norm_(run.parameters, run.config.max_grad_norm, norm)
    return norm


def _log(run: TrainingRun, state: TrainState) -> None:
    """Read the metrics of the steps since the last time and tell the driver."""
    records = run.metrics.read()
    if not records:
        return
    for record in records:
        state.epoch_loss += record.loss * record.facts.samples
        state.epoch_correct += record.correct
        state.epoch_samples += record.facts.samples
    samples = sum(r.facts.samples for r in records)
    event: dict[str, Any] = {
        "event": "step",
        "epoch": state.epoch + 1,
        "step": state.step,
        "total_steps": run.total_steps,
        "train/loss": sum(r.loss * r.facts.samples for r in records) / samples,
        "train/accuracy": sum(r.correct for r in records) / samples,
        "train/lr": records[-1].facts.lr,
        "train/grad_norm": _last_applied(records).grad_norm,
        "perf/images_per_second": run.clock.images_per_second(samples),
        "samples_seen": state.samples_seen,
    }
    if run.precision.has_scaler:
        event["train/loss_scale"] = records[-1].facts.scale
        event["train/skipped_steps"] = sum(not r.facts.applied for r in records)
    run.session.emit(event)


def _last_applied(records: list[StepRecord]) -> StepRecord:
    """The norm of a gradient that the loss scaler threw away is infinite by design and says nothing."""
    return next((r for r in reversed(records) if r.facts.applied), records[-1])


def _finish_epoch(run: TrainingRun, state: TrainState) -> None:
    """Evaluate, tell, save."""
    evaluation = run.evaluator.evaluate(run.bare_model)
    state.epoch += 1
    state.step_in_epoch = 0
    state.train_loss = state.epoch_loss / state.epoch_samples
    state.train_accuracy = state.epoch_correct / state.epoch_samples
    state.epoch_loss, state.epoch_correct, state.epoch_samples = 0.0, 0, 0
    state.validation_loss, state.validation_accuracy = evaluation.loss, evaluation.accuracy
    is_best = state.best_accuracy is None or evaluation.accuracy > state.best_accuracy
    state.epochs_since_best = 0 if is_best else state.epochs_since_best + 1
    if is_best:
        state.best_accuracy, state.best_epoch = evaluation.accuracy, state.epoch
    run.session.emit(
        {
            "event": "epoch",
            "epoch": state.epoch,
            "step": state.step,
            "train/loss": state.train_loss,
            "train/accuracy": state.train_accuracy,
            "validation/loss": evaluation.loss,
            "validation/accuracy": evaluation.accuracy,
            "validation/samples": evaluation.samples,
            "perf/images_per_second": run.clock.epoch_images_per_second(),
            "best": is_best,
        }
    )
    _save(run, state, f"epoch_{state.epoch:04d}")


def _out_of_patience(config: TrainConfig, state: TrainState) -> bool:
    return 0 < config.early_stopping_patience <= state.epochs_since_best


def _save(run: TrainingRun, state: TrainState, name: str) -> None:
    contract = _contract(run)
    run.session.save_checkpoint(
        name,
        state.score(),
        lambda folder: write_checkpoint(folder, run.stateful, state, contract, run.info.class_names),
    )
    run.session.emit({"event": "checkpoint", "epoch": state.epoch, "step": state.step, "path": name})


def _restore(run: TrainingRun) -> TrainState:
    folder = run.session.restore()
    if folder is None:
        return TrainState()
    state = read_checkpoint(folder, run.stateful, _contract(run), run.info.class_names)
    if not 0 <= state.step_in_epoch <= run.steps_per_epoch:
        # Such an epoch would have no step, and no rank would ever be asked whether to stop.
        raise CheckpointError(
            f"The checkpoint {folder} is at step {state.step_in_epoch} of an epoch of {run.steps_per_epoch} steps. "
            "It is damaged; name another one with --resume."
        )
    return state


def _contract(run: TrainingRun) -> dict[str, Any]:
    """What the weights are a function of: the options, and the very pixels and labels."""
    return {**contract_of(run.config), "data": run.info.content}


def _announce(run: TrainingRun, state: TrainState) -> None:
    environments = run.control.gather(run.environment)
    run.session.emit(
        {
            "event": "start",
            "epochs": run.config.epochs,
            "total_steps": run.total_steps,
            "steps_per_epoch": run.steps_per_epoch,
            "num_train": len(run.train_ids),
            "num_validation": len(run.evaluator.ids),
            "num_classes": len(run.info.class_names),
            "model": run.config.model,
            "parameters": sum(p.numel() for p in run.bare_model.parameters()),
            "trainable_parameters": sum(p.numel() for p in run.parameters),
            "precision": run.precision.name,
            "precision_reason": run.precision_reason,
            "workers": environments,
            "plan": run.plan.describe(run.session.world_size),
            "resumed_from_step": state.step or None,
        }
    )


def _final_numbers(run: TrainingRun, state: TrainState, stopped: bool) -> dict[str, Any]:
    peaks = run.control.gather({"peak": peak_memory_mib(run.session.device)})
    return {
        "stopped": stopped,
        "epochs": state.epoch,
        "steps": state.step,
        "samples_seen": state.samples_seen,
        "train_loss": state.train_loss,
        "validation_loss": state.validation_loss,
        "validation_accuracy": state.validation_accuracy,
        "best_validation_accuracy": state.best_accuracy,
        "best_epoch": state.best_epoch,
        "weights_sha256": weights_sha256(weights_of(run.bare_model)),
        "images_per_second": run.clock.total_images_per_second(),
        "peak_memory_mib": max(p["peak"] for p in peaks),
        "num_workers": run.session.world_size,
        "precision": run.precision.name,
        "finished_at": time.time(),
    }
