"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.toy import write_idx_folder

# Ray reads its token when it is imported, which the collection of any test file may do: it has to be here by then.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", "a-token-for-tests-only-0123456789abcdef")


@pytest.fixture(autouse=True)
def _own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or fills the user's cache, or is changed by the user's environment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg-cache"))
    for name in ("RAY_ADDRESS", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def toy_folder(tmp_path: Path) -> Path:
    """64 training and 30 validation images of 28x28 as IDX files."""
    return write_idx_folder(tmp_path / "toy")


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    """The same with 8x8 images: fp16 convolutions on a CPU without fp16 kernels take a second for each large batch."""
    return write_idx_folder(tmp_path / "tiny", size=8)


@pytest.fixture
def _torch_state() -> Iterator[None]:
    """Undo what a training loop switches on in this process."""
    import torch

    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
