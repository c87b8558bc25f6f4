"""What decides a result."""

from __future__ import annotations

import json

from orchestrator.config.batch import plan_batches
from orchestrator.config.contract import RESULT_NEUTRAL, contract_of, differences, resolve
from orchestrator.config.options import TrainConfig


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


def test_what_decides_the_result_is_a_choice_made_field_by_field() -> None:
    """A new option is part of the contract until it is declared neutral."""
    assert set(contract_of(TrainConfig())) == set(TrainConfig.model_fields) - RESULT_NEUTRAL
    for name in (
        "lr",
        "seed",
        "batch_size",
        "micro_batch_size",
        "precision",
        "cpus_per_worker",
        "deterministic",
        "epochs",
    ):
        assert name not in RESULT_NEUTRAL


def test_an_accumulation_is_written_down_as_its_micro_batch() -> None:
    asked = TrainConfig(batch_size=64, num_workers=2, accumulation_steps=4)
    resolved = resolve(asked, plan_batches(asked))
    assert (resolved.micro_batch_size, resolved.accumulation_steps) == (8, None)
    assert plan_batches(resolved) == plan_batches(asked)
    assert resolve(resolved, plan_batches(resolved)) == resolved


def test_a_contract_is_plain_and_survives_json() -> None:
    contract = contract_of(TrainConfig(precision="bf16", lr=1e-12, max_steps=3))
    assert json.loads(json.dumps(contract)) == contract


def test_a_field_that_only_one_version_knows_is_a_difference() -> None:
    assert differences({"a": 1}, {"a": 1, "b": True}) == ["b: None before, True now"]
