"""One training command from its arguments to its exit code: check, make the run's folder, train, explain the end."""

from __future__ import annotations

import re
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.config.flags import CommandLine, parse_command_line
from orchestrator.config.options import TrainConfig
from orchestrator.config.paths import with_absolute_paths
from orchestrator.driver.signals import StopSignals
from orchestrator.errors import EXIT_FINISHED, EXIT_STOPPED, OrchestratorError
from orchestrator.reporting.closing import State, print_failure
from orchestrator.reporting.consoles import open_consoles
from orchestrator.reporting.display import Progress
from orchestrator.reporting.environment import driver_environment
from orchestrator.reporting.names import check_name_is_free
from orchestrator.reporting.progress import build_progress
from orchestrator.reporting.reporter import RunReporter
from orchestrator.reporting.run_folder import TENSORBOARD, RunFolder
from orchestrator.reporting.tensorboard import TensorBoardTracker
from orchestrator.reporting.text import Row, say, say_rows

if TYPE_CHECKING:
    from orchestrator.driver.launch import Outcome
    from orchestrator.driver.preflight import CheckedRun
    from orchestrator.driver.resume import Resumption


def run_command(arguments: Sequence[str], *, prog: str, description: str) -> int:
    """Run `python -m orchestrator.train` with these arguments and return its exit code. Explains every error."""
    out, err = open_consoles()
    try:
        command = parse_command_line(arguments, prog=prog, description=description)
        return _run(command, arguments, out, err)
    except OrchestratorError as error:
        print_failure({"class": type(error).__name__, "message": str(error)}, err)
        return error.exit_code
    except KeyboardInterrupt:
        say(err, "Stopped before training began; nothing had to be saved.")
        return EXIT_STOPPED
    except Exception as error:
        print_failure({"class": type(error).__name__, "message": _unexpected(error)}, err)
        return OrchestratorError.exit_code


def _unexpected(error: Exception) -> str:
    with tempfile.NamedTemporaryFile("w", prefix="orchestrator-", suffix=".txt", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    return f"{error} This is a fault of the program; its traceback is in {file.name}."


def _run(command: CommandLine, arguments: Sequence[str], out: Console, err: Console) -> int:
    if command.print_config:
        from orchestrator.config.sources import config_to_yaml

        out.print(config_to_yaml(command.config), markup=False, soft_wrap=True, end="")
        return EXIT_FINISHED
    config = with_absolute_paths(command.config)
    if command.dry_run:
        return _dry_run(config, out)
    progress = build_progress(out, err, log_format=config.log_format, quiet=config.quiet)
    with StopSignals() as signals:
        try:
            return _train(config, arguments, progress, signals)
        finally:
            progress.close()


def _dry_run(config: TrainConfig, out: Console) -> int:
    from orchestrator.config.sources import config_to_yaml
    from orchestrator.driver.preflight import describe_dry_run

    rows = describe_dry_run(config, f"{config.output_dir}/{config.run_name or default_run_name(config)}")
    out.print(config_to_yaml(config), markup=False, soft_wrap=True)
    say_rows(out, (Row(heading, text) for heading, text in rows))
    return EXIT_FINISHED


def default_run_name(config: TrainConfig) -> str:
    """DATASET-MODEL-TIME, in characters that are plain in a path and a URI."""
    stem = f"{Path(config.dataset).name}-{config.model.removeprefix('torchvision/')}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")[:80] + time.strftime("-%Y%m%d-%H%M%S")


def _train(config: TrainConfig, arguments: Sequence[str], progress: Progress, signals: StopSignals) -> int:
    started_at = time.monotonic()
    run_name = config.run_name or default_run_name(config)
    progress.phase("checking the run")
    # Here and not above: they import pyarrow, numpy and torch, which --help and a refused flag do not need.
    from orchestrator.driver.cluster import check_local_fit, cluster_address
    from orchestrator.driver.preflight import check_run
    from orchestrator.driver.resume import find_resumption

    check_name_is_free(config.output_dir, run_name, resume=config.resume == "auto")
    if cluster_address(config) is None:
        check_local_fit(config)
    resumption = find_resumption(config, run_name)
    if resumption.finished:
        progress.note(f"The run {run_name} is finished already; nothing is left to do.", warning=False)
        return EXIT_FINISHED
    checked = check_run(resumption.config, lambda done, total: progress.phase("decoding images", done, total))
    with RunFolder.create(config.output_dir, run_name, resume=config.resume == "auto") as folder:
        return _train_in(folder, checked, resumption, arguments, progress, signals, started_at)


def _train_in(  # noqa: PLR0913  (the parts of one run, which meet only here)
    folder: RunFolder,
    checked: CheckedRun,
    resumption: Resumption,
    arguments: Sequence[str],
    progress: Progress,
    signals: StopSignals,
    started_at: float,
) -> int:
    from orchestrator.config.sources import config_to_yaml
    from orchestrator.driver.launch import Launch, train

    config, plan = checked.config, checked.plan
    if not resumption.existing:
        folder.write_config(config_to_yaml(config.model_copy(update={"run_name": folder.run_name, "resume": "never"})))
    folder.write_env(driver_environment())
    for note in checked.notes:
        progress.note(note)
    trackers = [TensorBoardTracker(folder.path / TENSORBOARD)] if config.report_to == "tensorboard" else []
    constants = {
        "batch_size": plan.batch_size,
        "micro_batch_size": plan.micro_batch_size,
        "micro_batches_per_step": plan.micro_batches_per_step,
    }
    with RunReporter(folder, progress, trackers, started_at=started_at, constants=constants) as reporter:
        launch = Launch(
            checked, folder.location, resumption.checkpoint, reporter.handle, reporter.phase, signals, started_at
        )
        try:
            outcome = train(launch)
        except KeyboardInterrupt:
            if reporter.standing.starts:
                progress.note("Stopped at once: the work since the last checkpoint is lost.")
            reporter.finish("stopped", EXIT_STOPPED, arguments=arguments)
            return EXIT_STOPPED
        return _conclude(outcome, folder, reporter, arguments)


def _conclude(outcome: Outcome, folder: RunFolder, reporter: RunReporter, arguments: Sequence[str]) -> int:
    from orchestrator.driver.failure import explain

    if outcome.final is not None:
        try:
            _collect_weights(folder, outcome.final)
        except OrchestratorError as error:
            outcome = replace(outcome, failure=explain(error))
    if outcome.failure is not None:
        folder.write_traceback(outcome.failure.details)
        code = outcome.failure.exit_code
        reporter.finish("failed", code, outcome.final, outcome.failure.to_status(), arguments=arguments)
        return code
    final = outcome.final or {}
    state: State = "stopped" if final["stopped"] else "finished"
    code = EXIT_STOPPED if final["stopped"] else EXIT_FINISHED
    reporter.finish(state, code, final, arguments=arguments)
    return code


def _collect_weights(folder: RunFolder, final: dict[str, object]) -> None:
    """Bring the last and the best weights from the checkpoints to the top of the run's folder."""
    from orchestrator.driver.checkpoints import CheckpointStore
    from orchestrator.training.checkpointing import WEIGHTS

    store = CheckpointStore(folder.checkpoints)
    metas = store.metas()
    if metas:
        store.fetch(metas[-1][0], WEIGHTS, folder.path / WEIGHTS)
    best = [name for name, meta in metas if meta["state"]["epoch"] == final["best_epoch"] and meta["score"] >= 0]
    if best:
        store.fetch(best[-1], WEIGHTS, folder.path / "best.safetensors")
