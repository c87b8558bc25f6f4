"""The files in jobs/ are runs that can be started."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.flags import parse_command_line

JOBS = sorted((Path(__file__).parent.parent / "jobs").glob("*.yaml"))


@pytest.mark.parametrize("file", JOBS, ids=lambda f: f.stem)
def test_a_job_is_a_config_and_says_what_to_expect(file: Path) -> None:
    command = parse_command_line(["--config", str(file), "--dry-run"], prog="train", description="")
    assert command.config.max_workers >= 1
    header = file.read_text().split("\ndataset:")[0]
    assert f"--config jobs/{file.name}" in header
    assert "Measured: " in header
