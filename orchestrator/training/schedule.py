"""The learning rate as a pure function of the number of optimizer steps, so that resuming needs no scheduler state."""

from __future__ import annotations

import math

from orchestrator.config.options import TrainConfig
from orchestrator.errors import ConfigError

# The defaults of torch.optim.lr_scheduler.OneCycleLR (Smith and Topin, arXiv:1708.07120).
_ONECYCLE_RISE = 0.3
_ONECYCLE_FIRST = 1 / 25
_ONECYCLE_LAST = 1 / 25 / 1e4


def check_schedule(config: TrainConfig, total_updates: int) -> None:
    """Raises `ConfigError` if the warm-up contradicts the scheduler or leaves nothing of the run."""
    if config.warmup_steps == 0:
        return
    if config.scheduler == "onecycle":
        raise ConfigError(
            f"--warmup-steps {config.warmup_steps} with --scheduler onecycle: onecycle has its own warm-up, over the "
            f"first {_ONECYCLE_RISE:.0%} of the run; leave out --warmup-steps or take --scheduler cosine"
        )
    if config.warmup_steps >= total_updates:
        raise ConfigError(
            f"--warmup-steps {config.warmup_steps} is no less than the {total_updates} optimizer steps of the run; "
            f"give at most {total_updates - 1}, or train longer"
        )


def learning_rate(config: TrainConfig, update: int, total_updates: int, updates_per_epoch: int) -> float:
    """Learning rate of the next optimizer step when `update` of `total_updates` steps are done.

    Over the first `warmup_steps` it rises linearly to what the scheduler says: the first step has 1/`warmup_steps` of
    it, the last of them all of it. `cosine` falls to 0 over the steps after the warm-up; `onecycle` is PyTorch's,
    without the cycle of the momentum; `step` cuts by `lr_gamma` every `lr_step_epochs` epochs, counted from the
    beginning of the run (None: a third of the run, rounded up). After the end the last value stays.
    """
    rise = min(1.0, (update + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    return config.lr * rise * _factor(config, update, total_updates, updates_per_epoch)


def _factor(config: TrainConfig, update: int, total_updates: int, updates_per_epoch: int) -> float:
    if config.scheduler == "cosine":
        after_warmup = update - config.warmup_steps
        return _cosine(1.0, 0.0, after_warmup / (total_updates - config.warmup_steps))
    if config.scheduler == "onecycle":
        return _onecycle(update, total_updates)
    if config.scheduler == "step":
        epochs = math.ceil(total_updates / updates_per_epoch)
        step_epochs = config.lr_step_epochs or math.ceil(epochs / 3)
        epoch = min(update, total_updates - 1) // updates_per_epoch
        return float(config.lr_gamma ** (epoch // step_epochs))
    return 1.0


def _onecycle(update: int, total_updates: int) -> float:
    peak, last = _ONECYCLE_RISE * total_updates - 1, total_updates - 1
    if update <= peak:
        return _cosine(_ONECYCLE_FIRST, 1.0, update / peak)
    return _cosine(1.0, _ONECYCLE_LAST, (update - peak) / (last - peak))


def _cosine(start: float, end: float, progress: float) -> float:
    """Half a cosine from `start` to `end`, constant before `progress` 0 and after 1."""
    progress = min(max(progress, 0.0), 1.0)
    return end + (start - end) / 2 * (1 + math.cos(math.pi * progress))
