"""`python -m orchestrator.train`: train an image CNN on any number of workers. `--help` tells everything."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from orchestrator.driver.job import run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Train with these arguments, by default those of the process, and return the exit code."""
    return run_command(
        sys.argv[1:] if argv is None else argv,
        prog="python -m orchestrator.train",
        description="Train an image CNN on one worker or many, on a laptop or a cluster.",
    )


if __name__ == "__main__":
    sys.exit(main())
