"""The lines about a run that stay: what it starts with, its steps and its epochs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from orchestrator.reporting.standing import Event, Standing
from orchestrator.reporting.text import Row, count, duration, loss, percent, rate

_COLUMNS = (("epoch", 7), ("train loss", 10), ("acc", 6), ("val loss", 8), ("acc", 6), ("images/s", 8), ("time", 7))
_WIDE = 72


def start_rows(event: Event) -> list[Row]:
    """What the run starts with, from its start event."""
    reason = event.get("precision_reason")
    rows = [
        Row("batch", event["plan"]),
        Row("data", _data(event)),
        Row("model", _model(event)),
        Row("precision", f"{event['precision']}: {reason}" if reason else event["precision"]),
        Row("workers", describe_workers(event.get("workers") or [])),
        Row("steps", _steps(event)),
    ]
    if event.get("resumed_from_step"):
        rows.append(Row("resumed", f"after step {event['resumed_from_step']:,}", style="bold"))
    return rows


def _data(event: Event) -> str:
    train, validation = event["num_train"], event["num_validation"]
    return f"{train:,} training and {validation:,} validation images, {count(event['num_classes'], 'class', 'classes')}"


def _model(event: Event) -> str:
    everything, trained = event["parameters"], event["trainable_parameters"]
    frozen = "" if everything == trained else f", {trained:,} of them trained"
    return f"{event['model']}, {count(everything, 'parameter')}{frozen}"


def _steps(event: Event) -> str:
    total, per_epoch = event["total_steps"], event["steps_per_epoch"]
    epochs = f"{count(event['epochs'], 'epoch')} of {per_epoch:,}"
    cut = "" if total == event["epochs"] * per_epoch else ", cut short"
    return f"{count(total, 'optimizer step')}: {epochs}{cut}"


def describe_workers(workers: list[Mapping[str, Any]]) -> str:
    """`2 on host-a (cpu) and 1 on host-b (NVIDIA H200)`."""
    places = Counter((w.get("host", "?"), w.get("gpu") or str(w.get("device", "?"))) for w in workers)
    if not places:
        return "none"
    return ", ".join(f"{number} on {host} ({device})" for (host, device), number in places.items())


def step_line(standing: Standing) -> Text:
    """One line for a log, which says itself what each number is."""
    metrics = standing.step_metrics
    parts = [
        f"epoch {standing.epoch}/{standing.epochs}",
        f"step {standing.step}/{standing.total_steps}",
        f"train loss {loss(metrics.get('train/loss'))}",
        f"accuracy {percent(metrics.get('train/accuracy'))}",
        f"{rate(metrics.get('perf/images_per_second'))} images/s",
        f"elapsed {duration(standing.elapsed_s())}",
    ]
    eta = standing.eta_s()
    return Text("  ".join([*parts, f"left {duration(eta)}"] if eta is not None else parts))


def epoch_line(event: Event, epochs: int | None, epoch_s: float | None) -> Text:
    """The same for the end of an epoch."""
    parts = [
        f"epoch {event['epoch']}/{epochs} done",
        f"train loss {loss(event.get('train/loss'))}",
        f"accuracy {percent(event.get('train/accuracy'))}",
        f"validation loss {loss(event.get('validation/loss'))}",
        f"accuracy {percent(event.get('validation/accuracy'))}",
        f"{rate(event.get('perf/images_per_second'))} images/s",
        duration(epoch_s),
    ]
    return Text("  ".join([*parts, "* best so far"] if event.get("best") else parts))


def table_header(width: int) -> Text:
    """Head of the table of epochs that grows on a terminal `width` columns wide."""
    return Text(_gap(width).join(f"{name:>{size}}" for name, size in _COLUMNS), style="dim")


def table_line(event: Event, epochs: int | None, epoch_s: float | None, width: int) -> Text:
    """One epoch in that table; the best so far has a star."""
    values = [
        f"{event['epoch']}/{epochs}",
        loss(event.get("train/loss")),
        percent(event.get("train/accuracy"), 1),
        loss(event.get("validation/loss")),
        percent(event.get("validation/accuracy"), 1),
        rate(event.get("perf/images_per_second")),
        duration(epoch_s),
    ]
    cells = [f"{value:>{size}}" for value, (_, size) in zip(values, _COLUMNS, strict=True)]
    text = Text(_gap(width).join(cells))
    return text.append(" *", style="bold green") if event.get("best") else text


def _gap(width: int) -> str:
    return "  " if width >= _WIDE else " "
