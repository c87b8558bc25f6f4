"""A lock on a folder that ends with the process that holds it, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from pathlib import Path
from typing import IO

from orchestrator.errors import ConfigError

LOCK_FILE = ".lock"


def lock_folder(folder: Path) -> IO[str]:
    """Take the lock on a folder; closing the file gives it back.

    A file system without locks is used without one. Raises ConfigError, naming the process, if another one has it, and
    OSError if the file cannot be written.
    """
    file = open(folder / LOCK_FILE, "a+", encoding="utf-8")  # noqa: SIM115  (open for as long as the run)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise ConfigError(
                f"{folder} is being written by {holder}. Wait for it or stop it, or give another --run-name."
            ) from error
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            file.close()
            raise
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}\n")
    file.flush()
    return file
