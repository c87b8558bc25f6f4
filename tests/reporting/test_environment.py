from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.reporting import environment
from orchestrator.reporting.environment import driver_environment, git_state


def test_the_environment_is_json_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-tell")
    facts = driver_environment()
    assert "do-not-tell" not in json.dumps(facts)
    assert facts["packages"]["rich"] is not None
    assert facts["cpus"] >= 1
    assert facts["command"] != ""


def test_git_state_follows_the_repository(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init")
    assert git_state(tmp_path) is None, "no commit yet"
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    clean = git_state(tmp_path)
    assert clean is not None
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "file").write_text("2")
    assert git_state(tmp_path) == clean | {"dirty": True}


def test_a_machine_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None


def test_a_slow_git_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "git").write_text(f"#!{sys.executable}\nimport time; time.sleep(60)")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(environment, "_GIT_TIMEOUT_S", 0.1)
    assert git_state(tmp_path) is None


def test_limits_of_a_container(tmp_path: Path) -> None:
    file = tmp_path / "limit"
    assert environment._cpu_quota(file) is None
    for text, quota in (("max 100000\n", None), ("150000 100000\n", 1.5)):
        file.write_text(text)
        assert environment._cpu_quota(file) == quota
    for text, mib in (("max\n", None), ("4294967296\n", 4096)):
        file.write_text(text)
        assert environment._memory_limit_mib(file) == mib
