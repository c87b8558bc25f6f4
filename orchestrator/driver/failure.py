"""From an exception to what the user is told: class, place, cause, advice, exit code."""

from __future__ import annotations

import re
import traceback
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.errors import EnvironmentMismatchError, MemoryLimitError, OrchestratorError, WorkersLostError


@dataclass(frozen=True)
class Failure:
    """Why a run ended. `details` is the full traceback, for a file and not for the terminal."""

    error: str
    message: str
    exit_code: int
    retryable: bool
    rank: int | None
    details: str

    def to_status(self) -> dict[str, Any]:
        """For status.json: all but the traceback."""
        return {("class" if k == "error" else k): v for k, v in asdict(self).items() if k != "details"}


def explain(exception: BaseException) -> Failure:
    """Find the cause behind what `fit` raised. The lowest rank that knows its cause is the one to be believed."""
    rank, cause = _root_cause(exception)
    known = _translate(cause)
    return Failure(
        error=type(known).__name__,
        message=str(known),
        exit_code=known.exit_code if isinstance(known, OrchestratorError) else 1,
        retryable=isinstance(known, OrchestratorError) and known.retryable,
        rank=rank,
        details="".join(traceback.format_exception(exception)),
    )


def _root_cause(exception: BaseException) -> tuple[int | None, BaseException]:
    """The rank and the error that the others only followed: ours, then any but a lost connection, then the first."""
    failures: dict[int, BaseException] = getattr(exception, "worker_failures", None) or {}
    if failures:
        rank = min(failures, key=lambda r: (_rank_of_evidence(failures[r]), r))
        return rank, failures[rank]
    controller_failure = getattr(exception, "controller_failure", None)
    return None, controller_failure if controller_failure is not None else exception


def _rank_of_evidence(error: BaseException) -> int:
    if isinstance(error, OrchestratorError):
        return 0
    if _is_lost_worker(error):
        return 1
    return 3 if _CONNECTION.search(str(error)) else 2


_CONNECTION = re.compile(r"Connection (reset|closed|refused)|Broken pipe|peer|NCCL", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|DefaultCPUAllocator", re.IGNORECASE)


def _is_lost_worker(error: BaseException) -> bool:
    names = {cls.__name__ for cls in type(error).__mro__}
    return bool(names & {"RayActorError", "ActorDiedError", "WorkerHealthCheckFailedError", "NodeDiedError"})


def _translate(error: BaseException) -> BaseException:
    names = {cls.__name__ for cls in type(error).__mro__}
    text = str(error).strip()
    if isinstance(error, OrchestratorError):
        return error
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names or _OUT_OF_MEMORY.search(text):
        return MemoryLimitError(
            f"Out of memory: {_first_line(text)} Use a smaller --micro-batch-size (the result stays that of the same "
            "--batch-size), --precision bf16, or a smaller --image-size."
        )
    if _is_lost_worker(error):
        return WorkersLostError(
            f"A worker process died: {_first_line(text)} If it was killed for memory (see dmesg), use fewer workers or a "
            "smaller --micro-batch-size; else run the same command with --resume auto."
        )
    if names & {"WorkerGroupStartupTimeoutError", "WorkerGroupStartupFailedError", "InsufficientClusterResourcesError"}:
        return EnvironmentMismatchError(
            f"The workers could not be started: {_first_line(text)} Use fewer --num-workers, or --wait-for-resources."
        )
    return error


def _first_line(text: str) -> str:
    line = text.splitlines()[0] if text else "no message"
    return line if line.endswith(".") else line + "."
