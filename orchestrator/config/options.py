"""`TrainConfig`: every option of a training run, in the groups in which `--help` shows them.

The description of a field is the reference manual: `--help` and the JSON schema are made from it. What a field may
hold is checked here, what one field says about another in `TrainConfig`, and what the batch fields say about the
number of workers in `orchestrator.config.batch`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _refuse_bool(value: Any) -> Any:
    # bool is a subclass of int in Python: without this `batch_size: true` would train with a batch of one.
    if isinstance(value, bool):
        raise ValueError("a number is needed, not true or false")
    return value


Integer = Annotated[int, BeforeValidator(_refuse_bool)]
Real = Annotated[float, BeforeValidator(_refuse_bool), Field(allow_inf_nan=False)]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
_SECONDS_PER_UNIT = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _parse_duration(value: Any) -> Any:
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError("a duration is a number with s, m, h or d behind it, such as 90s, 30m or 1.5h")
        return float(match[1]) * _SECONDS_PER_UNIT[match[2]]
    return _refuse_bool(value)


Duration = Annotated[float, BeforeValidator(_parse_duration), Field(gt=0, allow_inf_nan=False)]

_WORKERS = re.compile(r"(\d+)(?::(\d+))?")


def _parse_workers(value: Any) -> Any:
    match = None if isinstance(value, bool) else _WORKERS.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("the number of workers is N (0 or more), or MIN:MAX with 1 <= MIN <= MAX")
    if match[2] is None:
        return int(match[1])
    low, high = int(match[1]), int(match[2])
    if not 1 <= low <= high:
        raise ValueError(f"MIN:MAX needs 1 <= MIN <= MAX, not {low}:{high}")
    return f"{low}:{high}"


Workers = Annotated[int | str, BeforeValidator(_parse_workers)]

_PRECISION_SPELLINGS = {
    "32": "fp32", "32-true": "fp32", "float32": "fp32",
    "bf16-mixed": "bf16", "bfloat16": "bf16",
    "16": "fp16", "16-mixed": "fp16", "float16": "fp16",
}  # fmt: skip


def _parse_precision(value: Any) -> Any:
    return _PRECISION_SPELLINGS.get(str(value), value)


Precision = Annotated[Literal["auto", "fp32", "bf16", "fp16"], BeforeValidator(_parse_precision)]


class Options(BaseModel):
    """Base of the groups: frozen, and a key that does not exist is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ScaleOptions(Options):
    """Workers: how many, on what, and in which cluster."""

    num_workers: Workers = Field(
        1,
        description="Ray Train workers, one process and one device each. MIN:MAX lets Ray shrink and grow the run "
        "between the two. 0 trains in this process without Ray, for debugging.",
    )
    use_gpu: bool = Field(False, description="Give each worker one GPU. Refused if there are not enough.")
    cpus_per_worker: Integer = Field(
        1,
        ge=1,
        description="CPUs, and torch threads, of each worker. Part of the result: weight gradients depend on it.",
    )
    address: str | None = Field(
        None,
        min_length=1,
        description="Ray cluster to connect to: auto, or HOST:PORT. None starts Ray on this machine for the run.",
    )
    wait_for_resources: bool = Field(
        False, description="Wait for the cluster to grow instead of refusing a run that does not fit now."
    )


DATASET_NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100")
"""What `--dataset` knows by name. A folder of such a name is written as a path: ./digits."""


class DataOptions(Options):
    """Data: which images, and what is done to them."""

    dataset: str = Field(
        "digits",
        min_length=1,
        description="digits (in the package), mnist, fashion-mnist, cifar10, cifar100, or a path: a folder of class "
        "folders, a folder of IDX files, a Parquet file or a folder of them.",
    )
    data_dir: str | None = Field(
        None,
        min_length=1,
        description="Where downloaded datasets are kept. None: share/datasets, then ~/.cache/orchestrator.",
    )
    image_size: Integer | None = Field(
        None, ge=1, le=4096, description="Resize each image to this height and width, in pixels. None keeps their size."
    )
    num_classes: Integer | None = Field(
        None, ge=2, description="Classes of an IDX folder (None: 10) or of integer labels in Parquet (None: as seen)."
    )
    validation_fraction: Real = Field(
        0.2, gt=0, lt=1, description="Part of the training data to validate on, where a dataset has no such split."
    )
    augment: Literal["none", "basic", "strong"] = Field(
        "none",
        description="basic: random shift, and mirroring where it keeps the class; strong: also rotation and erasing.",
    )
    cache_dir: str | None = Field(
        None, min_length=1, description="Where decoded images are kept, once per node. None: ~/.cache/orchestrator."
    )
    on_bad_sample: Literal["stop", "skip"] = Field(
        "stop",
        description="What to do about an image that cannot be read: stop and name it, or leave it out and count.",
    )
    limit_train_samples: Integer | None = Field(
        None, ge=1, description="Train on this many samples, drawn once from the seed. None: all."
    )
    limit_validation_samples: Integer | None = Field(
        None, ge=1, description="Validate on this many samples, drawn once from the seed. None: all."
    )


class ModelOptions(Options):
    """Model: which network, and where its weights begin."""

    model: str = Field(
        "cnn",
        min_length=1,
        description="cnn, cnn-bn, torchvision/NAME (such as torchvision/resnet18), or package.module:function.",
    )
    pretrained: str | None = Field(
        None,
        min_length=1,
        description="Weights to begin with: a .safetensors or .pt file. Every key and shape has to fit.",
    )
    channels_last: bool = Field(False, description="Keep images and weights in the channels-last memory format.")


class OptimizationOptions(Options):
    """Optimisation: how a gradient becomes a step."""

    optimizer: Literal["adam", "adamw", "sgd"] = Field("adam", description="Norms and biases get no weight decay.")
    lr: Real = Field(3e-3, gt=0, description="Learning rate at its highest.")
    weight_decay: Real = Field(0.0, ge=0, description="Weight decay; decoupled in adamw.")
    momentum: Real = Field(0.9, ge=0, lt=1, description="Momentum of sgd.")
    scheduler: Literal["constant", "cosine", "onecycle", "step"] = Field(
        "cosine", description="Course of the learning rate, counted in optimizer steps."
    )
    warmup_steps: Integer = Field(0, ge=0, description="Steps over which the learning rate rises to --lr.")
    lr_step_epochs: Integer | None = Field(
        None, ge=1, description="Epochs between two cuts of the step scheduler. None: a third of the run."
    )
    lr_gamma: Real = Field(0.1, gt=0, le=1, description="Factor of each cut of the step scheduler.")
    max_grad_norm: Real = Field(0.0, ge=0, description="Clip the gradient to this norm. 0 is off.")
    label_smoothing: Real = Field(0.0, ge=0, lt=1, description="Share of each target spread over all classes.")


class BatchOptions(Options):
    """Batch and precision: the size of a step, and the numbers it is computed in."""

    batch_size: Integer = Field(64, ge=1, description="Global batch: samples in one optimizer step, over all workers.")
    micro_batch_size: Integer | None = Field(
        None, ge=1, description="Samples in one forward and backward pass. None: batch / (workers x accumulation)."
    )
    accumulation_steps: Integer | None = Field(
        None, ge=1, description="Micro-batches that one worker runs per step. None: as many as the batch needs."
    )
    evaluation_batch_size: Integer = Field(
        256, ge=1, description="Samples in one forward pass of the evaluation. Does not depend on the workers."
    )
    precision: Precision = Field(
        "auto", description="bf16 and fp16 are autocast, weights stay fp32. auto decides by the device and says why."
    )
    tf32: bool = Field(False, description="Allow TF32 in fp32 matrix products on a GPU: faster, 10 bits of mantissa.")


class LengthOptions(Options):
    """Length: when the run ends."""

    epochs: Integer = Field(10, ge=1, description="Passes over the training data, in total (also with --resume).")
    max_steps: Integer | None = Field(None, ge=1, description="End after this many optimizer steps. None: by epochs.")
    max_time: Duration | None = Field(
        None, description="Stop with a checkpoint after this time, such as 90s, 30m or 1.5h; exit code 75."
    )
    early_stopping_patience: Integer = Field(
        0, ge=0, description="End after this many epochs without a better validation accuracy. 0 is off."
    )


class ReproducibilityOptions(Options):
    """Reproducibility: what the result depends on."""

    seed: Integer = Field(0, ge=0, lt=2**63, description="Seed of everything random.")
    deterministic: bool = Field(
        True, description="The same bits each time and on any number of workers. Off: faster on a GPU."
    )


class RunOptions(Options):
    """Run: its name, its folder, its checkpoints."""

    output_dir: str = Field("runs", min_length=1, description="Folder, or URI, that the run's folder is made in.")
    run_name: str | None = Field(None, min_length=1, description="Name of the run's folder. None: DATASET-MODEL-TIME.")
    resume: str = Field(
        "never",
        min_length=1,
        description="never; auto: go on with the run of that name, or start it; or a checkpoint folder.",
    )
    keep_checkpoints: Integer = Field(1, ge=1, description="Newest checkpoints to keep, besides the best one.")


class ReportingOptions(Options):
    """Looking: what is shown and written while it runs."""

    report_to: Literal["tensorboard", "none"] = Field(
        "tensorboard", description="Tracker to write to, besides the files."
    )
    log_every: Integer = Field(20, ge=1, description="Optimizer steps between two lines of metrics.")
    log_format: Literal["text", "json"] = Field("text", description="json prints one JSON object a line.")
    quiet: bool = Field(False, description="Print nothing but warnings, errors and the last line.")


GROUPS: tuple[type[Options], ...] = (
    ScaleOptions,
    DataOptions,
    ModelOptions,
    OptimizationOptions,
    BatchOptions,
    LengthOptions,
    ReproducibilityOptions,
    RunOptions,
    ReportingOptions,
)


class TrainConfig(
    ReportingOptions,
    RunOptions,
    ReproducibilityOptions,
    LengthOptions,
    BatchOptions,
    OptimizationOptions,
    ModelOptions,
    DataOptions,
    ScaleOptions,
):
    """One training run. Frozen: change it with `model_copy(update=...)`, which keeps what was printed true.

    Raises `pydantic.ValidationError` on a value that cannot be meant; `orchestrator.config.sources` turns it into a
    `ConfigError` that names the key, the value and where it came from.
    """

    @property
    def min_workers(self) -> int:
        return int(str(self.num_workers).split(":")[0])

    @property
    def max_workers(self) -> int:
        return int(str(self.num_workers).split(":")[-1])
