"""What decides a result, and paths that mean the same everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestrator.config.batch import plan_batches
from orchestrator.config.contract import RESULT_NEUTRAL, contract_of, differences, resolve
from orchestrator.config.options import TrainConfig
from orchestrator.config.paths import absolute, with_absolute_paths


def test_a_config_is_frozen_and_knows_no_other_key() -> None:
    with pytest.raises(ValidationError):
        TrainConfig().lr = 1.0
    with pytest.raises(ValidationError):
        TrainConfig(learning_rate=1.0)


def test_neutral_fields_are_fields() -> None:
    assert set(TrainConfig.model_fields) > RESULT_NEUTRAL


def test_the_number_of_workers_is_no_part_of_the_contract_once_the_batch_is_fixed() -> None:
    two = TrainConfig(num_workers=2, batch_size=64)
    resolved = resolve(two, plan_batches(two))
    four = resolved.model_copy(update={"num_workers": 1, "run_name": "x", "log_every": 3})
    assert contract_of(resolve(four, plan_batches(four))) == contract_of(resolved)
    assert resolved.micro_batch_size == 32


def test_differences_name_the_field_and_both_values() -> None:
    before, now = contract_of(TrainConfig()), contract_of(TrainConfig(lr=0.5, augment="basic"))
    assert differences(before, now) == ["augment: none before, basic now", "lr: 0.003 before, 0.5 now"]
    assert differences(before, before) == []


@pytest.mark.parametrize("name", ["with space", "umläut-日本", "a#b", "p%20q"])
def test_paths_become_absolute_and_nothing_else(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = str(tmp_path / name)
    assert {absolute(p) for p in (name, f"./{name}", f"{name}/", f"~/{name}", expected)} == {expected}


def test_uris_and_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = with_absolute_paths(TrainConfig(output_dir="s3://bucket/a%20b", dataset="digits", resume="auto"))
    assert (config.output_dir, config.dataset, config.resume) == ("s3://bucket/a%20b", "digits", "auto")
    (tmp_path / "images").mkdir()
    config = with_absolute_paths(TrainConfig(dataset="images", resume="runs/x"))
    assert config.dataset == str(tmp_path / "images")
    assert config.resume == str(tmp_path / "runs" / "x")


@pytest.mark.parametrize("dataset", ["~nobody-of-this-name/x", "x" * 5000, "a\0b"])
def test_what_can_be_no_path_stays_for_the_data_to_refuse(dataset: str) -> None:
    assert with_absolute_paths(TrainConfig(dataset=dataset)).dataset == dataset
