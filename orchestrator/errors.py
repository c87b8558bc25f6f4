"""The exceptions that reach a user, one class per reaction of the caller.

    OrchestratorError              1  unexpected
    +-- ConfigError                2  usage or configuration
    +-- EnvironmentMismatchError   3  no such GPU, not enough resources, a worker that differs
    +-- DataError                  4  a damaged file, a wrong label, an empty class
    +-- MemoryLimitError           5  out of memory at the smallest micro-batch
    +-- NonFiniteError             6  a loss or gradient that is NaN or infinite
    +-- WorkersLostError           7  workers died and the retries are used up
    +-- HangError                  8  a time limit ran out
    +-- CheckpointError            9  storage or checkpoint

Each takes one message and nothing else: an exception with more arguments does not survive the pickling on its way from
a worker to the driver (ray-project/ray#52660), and the user would see "health check failed" instead of the cause.
"""

from __future__ import annotations

EXIT_FINISHED = 0
EXIT_STOPPED = 75
"""Stopped on request with a checkpoint (EX_TEMPFAIL of sysexits.h: the same command again will go on)."""


class OrchestratorError(Exception):
    """Base of every error that is explained to the user instead of shown as a traceback."""

    exit_code = 1
    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(message)


class ConfigError(OrchestratorError, ValueError):
    """A flag, a configuration key or a combination of them that cannot be meant."""

    exit_code = 2


class EnvironmentMismatchError(OrchestratorError):
    """The machine or the cluster does not have what was asked for."""

    exit_code = 3


class DataError(OrchestratorError):
    """The dataset is damaged, mismatched or not there."""

    exit_code = 4


class MemoryLimitError(OrchestratorError):
    """Out of memory, and nothing smaller to try."""

    exit_code = 5


class NonFiniteError(OrchestratorError):
    """A loss, a gradient or a weight became NaN or infinite."""

    exit_code = 6


class WorkersLostError(OrchestratorError):
    """One or more workers died."""

    exit_code = 7
    retryable = True


class HangError(OrchestratorError):
    """Something did not answer within its time limit."""

    exit_code = 8
    retryable = True


class CheckpointError(OrchestratorError):
    """A checkpoint or weights file is damaged, foreign or does not fit, or storage failed."""

    exit_code = 9
