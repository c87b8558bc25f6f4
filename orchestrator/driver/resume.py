"""`--resume`: finding the run or the checkpoint to go on from, and making sure that it is the same training."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from orchestrator.config.batch import plan_batches
from orchestrator.config.contract import contract_of, differences, resolve
from orchestrator.config.options import TrainConfig
from orchestrator.config.paths import is_uri
from orchestrator.driver.checkpoints import CheckpointStore, read_bytes
from orchestrator.errors import CheckpointError, ConfigError
from orchestrator.reporting.run_folder import CHECKPOINTS, CONFIG, METRICS, STATUS
from orchestrator.reporting.storage import join_uri


@dataclass(frozen=True)
class Resumption:
    """What to go on from. `config` has the batch of the run that is continued; `checkpoint` is a folder, or None."""

    config: TrainConfig
    existing: bool
    finished: bool
    checkpoint: str | None


def find_resumption(config: TrainConfig, run_name: str) -> Resumption:
    """Look at `--resume` and at what is there. Nothing is changed.

    Raises ConfigError if the run there is another training, CheckpointError if it cannot be read or a checkpoint that
    was named is none.
    """
    if config.resume == "never":
        return Resumption(config, existing=False, finished=False, checkpoint=None)
    if config.resume != "auto":
        return _from_folder(config)
    place = _join(config.output_dir, run_name)
    text = read_bytes(_join(place, CONFIG))
    if text is None or read_bytes(_join(place, METRICS)) is None:
        # None there, or one that never came to its first step.
        return Resumption(config, existing=False, finished=False, checkpoint=None)
    config = _agreeing(config, _parse(text, place), place)
    checkpoints = _join(place, CHECKPOINTS)
    metas = CheckpointStore(checkpoints).metas()
    # Behind a URI Ray's own record of the checkpoints finds the newest one.
    newest = None if not metas or is_uri(checkpoints) else _join(checkpoints, metas[-1][0])
    return Resumption(config, existing=True, finished=_state(place) == "finished", checkpoint=newest)


def _from_folder(config: TrainConfig) -> Resumption:
    """`--resume PATH`: a new run that begins with a checkpoint of another one; a run's folder stands for its newest."""
    folder = Path(config.resume)
    below = CheckpointStore(str(folder / CHECKPOINTS)).metas()
    if below:
        folder = folder / CHECKPOINTS / below[-1][0]
    metas = dict(CheckpointStore(str(folder.parent)).metas())
    if folder.name not in metas:
        raise CheckpointError(
            f"--resume {config.resume} is no checkpoint: it has no meta.json. Give a folder such as "
            "runs/NAME/checkpoints/epoch_0001, the folder of a run, or auto."
        )
    micro = metas[folder.name].get("contract", {}).get("micro_batch_size")
    return Resumption(_with_micro_batch(config, micro), existing=False, finished=False, checkpoint=str(folder))


def _with_micro_batch(config: TrainConfig, micro_batch_size: Any) -> TrainConfig:
    """K and m were fixed at launch: unless the user says otherwise they stay, whatever the number of workers is now."""
    if config.micro_batch_size is None and config.accumulation_steps is None and isinstance(micro_batch_size, int):
        return config.model_copy(update={"micro_batch_size": micro_batch_size})
    return config


def _agreeing(config: TrainConfig, before: TrainConfig, place: str) -> TrainConfig:
    config = _with_micro_batch(config, before.micro_batch_size)
    changed = differences(contract_of(before), contract_of(resolve(config, plan_batches(config))))
    if changed:
        raise ConfigError(
            f"The run in {place} is another training than the one asked for:\n  "
            + "\n  ".join(changed)
            + "\nGive it the same options to go on with it, or another --run-name to begin a new one."
        )
    return config


def _parse(text: bytes, place: str) -> TrainConfig:
    try:
        return TrainConfig(**yaml.safe_load(text))
    except (yaml.YAMLError, ValidationError, TypeError) as error:
        raise CheckpointError(f"{CONFIG} of the run in {place} cannot be read: {error}") from error


def _state(place: str) -> str | None:
    text = read_bytes(_join(place, STATUS))
    try:
        status = json.loads(text or b"{}")
    except ValueError:
        return None
    return status.get("state") if isinstance(status, dict) else None


def _join(place: str, name: str) -> str:
    return join_uri(place, name) if is_uri(place) else str(Path(place) / name)
