"""Paths that mean the same in every process on every node."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.options import TrainConfig
from orchestrator.config.paths import absolute, is_uri, with_absolute_paths


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("name", ["plain", "with space", "umläut-日本", "a#b", "p%20q", "a?b", "c:d", "$HOME", "a\\b"])
def test_a_path_becomes_absolute_and_nothing_else(tmp_path: Path, name: str) -> None:
    expected = str(tmp_path / name)
    ways = (name, f"./{name}", f"{name}/", f"{name}//", f"~/{name}", f"sub/../{name}", expected, f"{expected}/")
    assert {absolute(path) for path in ways} == {expected}


def test_home_and_root_and_a_user_that_is_not_there(tmp_path: Path) -> None:
    assert absolute("~") == absolute(".") == str(tmp_path)
    assert absolute("/") == "/"
    assert absolute("~no-such-user-here/x") == str(tmp_path / "~no-such-user-here" / "x")


@pytest.mark.parametrize(
    "uri", ["s3://bucket/a%20b/", "gs://b", "file:///tmp/x y", "hdfs://host:9000/a#b", "s3://b/../c"]
)
def test_a_uri_is_untouched(uri: str) -> None:
    assert is_uri(uri)
    assert absolute(uri) == uri


def test_links_are_kept_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert absolute("link") == str(tmp_path / "link")


def test_every_path_of_a_config_is_made_absolute(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    config = with_absolute_paths(
        TrainConfig(dataset="~/images", data_dir="d", cache_dir="c/", pretrained="w#1.pt", output_dir="o", resume="r/x")
    )
    paths = (config.dataset, config.data_dir, config.cache_dir, config.pretrained, config.output_dir, config.resume)
    assert paths == tuple(str(tmp_path / name) for name in ("images", "d", "c", "w#1.pt", "o", "r/x"))
    assert with_absolute_paths(config) == config


def test_what_is_no_path_stays() -> None:
    config = TrainConfig(dataset="digits", resume="auto", output_dir="s3://bucket/runs")
    assert with_absolute_paths(config) == config
    assert with_absolute_paths(TrainConfig()).resume == "never"


@pytest.mark.parametrize("dataset", ["~no-such-user-here/x", "x" * 5000, "images-that-are-not-there"])
def test_a_dataset_that_is_no_path_here_is_left_to_the_data_to_refuse(dataset: str) -> None:
    assert with_absolute_paths(TrainConfig(dataset=dataset)).dataset == dataset


def test_a_name_wins_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert with_absolute_paths(TrainConfig(dataset="digits")).dataset == "digits"
    assert with_absolute_paths(TrainConfig(dataset="./digits")).dataset == str(tmp_path / "digits")
