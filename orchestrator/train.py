"""`python -m orchestrator.train`: train an image CNN on any number of workers. `--help` tells everything."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from orchestrator.errors import EXIT_STOPPED


def main(argv: Sequence[str] | None = None) -> int:
    """Train with these arguments, by default those of the process, and return the exit code."""
    try:
        # Here, because a Ctrl-C while it is imported shall be no traceback either.
        from orchestrator.driver.job import run_command

        return run_command(
            sys.argv[1:] if argv is None else argv,
            prog="python -m orchestrator.train",
            description="Train an image CNN on one worker or many, on a laptop or a cluster.",
        )
    except KeyboardInterrupt:
        return EXIT_STOPPED


if __name__ == "__main__":
    sys.exit(main())
