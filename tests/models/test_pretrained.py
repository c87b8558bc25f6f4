"""Weights from files: prefixes, strictness, damaged files, and files that would run code."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from orchestrator.errors import CheckpointError, ConfigError
from orchestrator.models.pretrained import load_pretrained, read_weights


def network(num_classes: int = 2) -> nn.Sequential:
    return nn.Sequential(OrderedDict(body=nn.Linear(3, 4), norm=nn.BatchNorm1d(4), head=nn.Linear(4, num_classes)))


def state(num_classes: int = 2) -> dict[str, Tensor]:
    torch.manual_seed(11)
    return dict(network(num_classes).state_dict())


def write(folder: Path, content: Any) -> str:
    path = folder / "weights.pt"
    torch.save(content, path)
    return str(path)


def assert_loads(path: str, model: nn.Module, prefix: str = "") -> None:
    load_pretrained(model, path)
    loaded = model.state_dict()
    for name, value in state().items():
        assert torch.equal(loaded[prefix + name], value), name


WRAPPINGS: list[Callable[[dict[str, Tensor]], dict[str, Any]]] = [
    lambda weights: weights,
    lambda weights: {"model": weights, "epoch": 3},
    lambda weights: {"state_dict": weights, "hyper_parameters": {"lr": 0.1}},
    lambda weights: {"model_state_dict": OrderedDict(weights), "loss": 0.5},
]


@pytest.mark.parametrize("wrap", WRAPPINGS)
def test_wrapped_or_bare(tmp_path: Path, wrap: Callable[[dict[str, Tensor]], dict[str, Any]]) -> None:
    assert_loads(write(tmp_path, wrap(state())), network())


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module._orig_mod."]
)
def test_prefixes_are_stripped(tmp_path: Path, prefix: str) -> None:
    path = write(tmp_path, {"model": {prefix + name: value for name, value in state().items()}, "epoch": 3})
    assert read_weights(path).keys() == state().keys()
    assert_loads(path, network())


def test_prefix_on_the_side_of_the_model(tmp_path: Path) -> None:
    assert_loads(write(tmp_path, state()), nn.ModuleDict({"module": network()}), prefix="module.")


def test_prefix_of_some_names_only_is_part_of_them(tmp_path: Path) -> None:
    path = write(tmp_path, {"module.weight": torch.ones(2), "bias": torch.ones(2)})
    assert list(read_weights(path)) == ["module.weight", "bias"]


def test_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"module." + name: value for name, value in state().items()}, path)
    assert_loads(str(path), network())


def test_half_precision_is_widened(tmp_path: Path) -> None:
    weights = {name: value.half() if value.is_floating_point() else value for name, value in state().items()}
    model = network()
    load_pretrained(model, write(tmp_path, weights))
    assert torch.equal(model.state_dict()["body.weight"], weights["body.weight"].float())


def test_missing_and_unexpected_names_are_listed(tmp_path: Path) -> None:
    weights = state()
    del weights["body.bias"], weights["norm.running_mean"]
    weights["extra.weight"] = torch.zeros(3)
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    path = write(tmp_path, weights)
    with pytest.raises(CheckpointError) as refused:
        load_pretrained(model, path)
    assert str(refused.value) == (
        f"{path} does not fit the model: 2 missing: body.bias, norm.running_mean; 1 unexpected: extra.weight"
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_at_most_ten_names_and_the_count(tmp_path: Path) -> None:
    path = write(tmp_path, {**state(), **{f"extra{i:02}": torch.zeros(1) for i in range(13)}})
    with pytest.raises(CheckpointError, match=r"13 unexpected: extra00, .*, extra09 and 3 more$"):
        load_pretrained(network(), path)


def test_other_class_count_is_named_by_its_layer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as refused:
        load_pretrained(network(10), write(tmp_path, state(num_classes=2)))
    assert "head.weight (file 2x4 float32, model 10x4 float32)" in str(refused.value)
    assert str(refused.value).endswith("the last layer, head, has 2 classes in the file and 10 here")


def test_other_shape_inside_is_no_class_count(tmp_path: Path) -> None:
    weights = {**state(), "body.weight": torch.zeros(4, 5)}
    with pytest.raises(CheckpointError, match=r"1 of another shape or type: body.weight \(file 4x5 float32") as refused:
        load_pretrained(network(), write(tmp_path, weights))
    assert "classes" not in str(refused.value)


def test_integers_for_weights_are_refused(tmp_path: Path) -> None:
    weights = {**state(), "body.bias": torch.zeros(4, dtype=torch.int8)}
    with pytest.raises(CheckpointError, match=r"body.bias \(file 4 int8, model 4 float32\)"):
        load_pretrained(network(), write(tmp_path, weights))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_weights_are_refused(tmp_path: Path, value: float) -> None:
    weights = state()
    weights["norm.weight"][2] = value
    with pytest.raises(CheckpointError, match=r"NaN or infinite in norm.weight$"):
        read_weights(write(tmp_path, weights))


class RunsCode:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.marker), "w")


def test_code_in_a_file_does_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = write(tmp_path, {"model": state(), "x": RunsCode(marker)})
    with pytest.raises(CheckpointError, match=r"weights.pt was refused: it contains \S*open, and .*can run code"):
        read_weights(path)
    assert not marker.exists()


def test_object_of_another_library_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, {"model": state(), "best": np.float64(0.75)})
    with pytest.raises(CheckpointError, match=r"it contains numpy.*scalar, and .*torch.save\(model.state_dict"):
        read_weights(path)


@pytest.mark.parametrize("content", [b"", b"hello world", b"\x80\x02", b"PK\x03\x04 no zip file", b"\x00" * 512])
@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_not_a_file_of_weights(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name} is (empty|damaged)"):
        read_weights(str(path))


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_cut_anywhere(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    torch.save(state(), path) if name.endswith(".pt") else save_file(state(), path)
    whole = path.read_bytes()
    for part in (0.1, 0.5, 2 / 3, 0.99):
        path.write_bytes(whole[: int(len(whole) * part)])
        with pytest.raises(CheckpointError, match=re.escape(name)) as refused:
            read_weights(str(path))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], r"holds no state dict, but list"),
        ({}, r"holds an empty state dict"),
        ({"model": {}}, r"holds an empty state dict"),
        ({"epoch": 3}, r"the value of 'epoch' is int"),
        ({0: torch.ones(1)}, r"the value of 0 is Tensor"),
        ({"model": {"weight": [1.0]}}, r"the value of 'weight' is list"),
        (torch.ones(3), r"holds no state dict, but Tensor"),
    ],
)
def test_no_state_dict(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_weights(write(tmp_path, content))


def test_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.pt", tmp_path):
        with pytest.raises(ConfigError, match=r"--pretrained .*: there is no such file"):
            read_weights(str(path))
