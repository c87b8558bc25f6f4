"""From what Ray raises to what the user is told."""

from __future__ import annotations

import pickle

import pytest
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError

import orchestrator.errors as errors
from orchestrator.driver.failure import explain

ALL_ERRORS = [
    cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.OrchestratorError)
]


@pytest.mark.parametrize("cls", ALL_ERRORS)
def test_errors_survive_the_way_between_processes(cls: type[errors.OrchestratorError]) -> None:
    error = pickle.loads(pickle.dumps(cls("what, which value, where")))
    assert type(error) is cls
    assert str(error) == "what, which value, where"


def test_exit_codes_are_one_to_one() -> None:
    codes = [cls.exit_code for cls in ALL_ERRORS]
    assert sorted(codes) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_the_rank_that_knows_the_cause_is_believed() -> None:
    failure = explain(
        WorkerGroupError(
            "two failed",
            {
                0: RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"),
                1: errors.DataError("label 12 at item 3"),
            },
        )
    )
    assert (failure.rank, failure.exit_code, failure.message) == (1, 4, "label 12 at item 3")
    assert not failure.retryable


def test_a_plain_error_of_one_rank_comes_before_the_lost_connection_of_another() -> None:
    failure = explain(
        WorkerGroupError("x", {0: RuntimeError("Connection reset by peer"), 1: ValueError("bad shape in my model")})
    )
    assert (failure.rank, failure.error, failure.exit_code) == (1, "ValueError", 1)
    assert failure.message == "bad shape in my model"


def test_a_killed_worker_is_a_lost_worker() -> None:
    failure = explain(WorkerGroupError("x", {0: RuntimeError("Connection reset by peer"), 1: ActorDiedError()}))
    assert (failure.rank, failure.error, failure.exit_code, failure.retryable) == (1, "WorkersLostError", 7, True)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: 1 bytes"
        ),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_out_of_memory_of_each_kind_is_code_5(error: BaseException) -> None:
    failure = explain(error)
    assert (failure.error, failure.exit_code) == ("MemoryLimitError", 5)
    assert "--micro-batch-size" in failure.message


def test_what_the_controller_says_is_the_cause() -> None:
    timeout = type("WorkerGroupStartupTimeoutError", (Exception,), {})("The worker group startup timed out after 60s")
    failure = explain(ControllerError(timeout))
    assert (failure.error, failure.exit_code, failure.rank) == ("EnvironmentMismatchError", 3, None)
    assert "timed out after 60s" in failure.message


def test_status_has_no_traceback_but_the_details_do() -> None:
    failure = explain(ValueError("x"))
    assert "ValueError: x" in failure.details
    assert set(failure.to_status()) == {"class", "message", "exit_code", "retryable", "rank"}
