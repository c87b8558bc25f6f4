"""Files, environment and flags: which wins, what is refused, and what the user is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.options import TrainConfig
from orchestrator.config.sources import (
    Layer,
    build_config,
    config_to_yaml,
    environment_layer,
    file_layer,
    json_schema,
    nearest,
)
from orchestrator.errors import ConfigError


def load(folder: Path, text: str | bytes) -> TrainConfig:
    file = folder / "c.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return build_config(TrainConfig, [file_layer(str(file), TrainConfig)])


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("lr: 1e-3\n", "lr", 0.001),
        ("lr: 1E+0\n", "lr", 1.0),
        ('batch_size: "8"\n', "batch_size", 8),
        ("", "batch_size", 64),
        ("# nothing\n---\n", "batch_size", 64),
        (b"\xef\xbb\xbflr: 0.01\r\nbatch_size: 8\r\n", "batch_size", 8),
        ("micro_batch_size: null\n", "micro_batch_size", None),
        ("precision: bf16-mixed\n", "precision", "bf16"),
        ("precision: 32\n", "precision", "fp32"),
        ("max_time: 1.5h\n", "max_time", 5400.0),
        ("num_workers: 2:4\n", "num_workers", "2:4"),
        ('num_workers: "3"\n', "num_workers", 3),
        ("run_name: 2026-01-02\n", "run_name", "2026-01-02"),
        ("use_gpu: true\n", "use_gpu", True),
    ],
)
def test_what_is_meant_is_read(tmp_path: Path, text: str | bytes, field: str, value: Any) -> None:
    assert getattr(load(tmp_path, text), field) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("precision: no\n", r"c\.yaml:1: precision is 'no', but it must be one of 'auto', 'fp32', 'bf16' or 'fp16'"),
        ("use_gpu: yes please\n", "use_gpu is 'yes please', but it must be true or false"),
        ("batch_size: 010\n", r"c\.yaml:1, column 13: 010 begins with a zero.*write 10"),
        ("batch_size: 8\nbatch_size: 64\n", r"c\.yaml:2, column 1: batch_size stands here again, after line 1"),
        ("batch_size: true\n", "batch_size is true, but a number is needed"),
        ("lr: false\n", "lr is false, but a number is needed"),
        ("batch_size: null\n", "batch_size is null.*leave it out"),
        ("batch_size: 2.5\n", "batch_size is 2.5, but it must be a whole number"),
        ("lr: .nan\n", "lr is nan"),
        ("learning_rat: 0.5\n", r"c\.yaml:1: there is no option learning_rat\. Did you mean lr\?"),
        ("batch-size: 8\n", r"there is no option batch-size\. Did you mean batch_size\?"),
        ("train:\n  lr: 0.5\n", "no option train, and options are not nested. Write lr at the left margin"),
        ("- 1\n- 2\n", "the file is a list or a single value"),
        ("hello\n", "the file is a list or a single value"),
        ("train:\n\tlr: 1\n", r"c\.yaml:2, column 1"),
        ("a: [1\n", r"c\.yaml:2"),
        ("1: 2\n", "the key 1 is not a name"),
        ("run_name: a\x07\n", "is not YAML: unacceptable character"),
        (b"lr: \xff\xfe\n", "not a text file in UTF-8: byte 4"),
    ],
)
def test_traps_are_refused_with_their_place(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, text)


def test_every_problem_is_listed_with_where_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("epochs: 0\n")
    layers = [
        file_layer(str(tmp_path / "c.yaml"), TrainConfig),
        environment_layer({"ORCHESTRATOR_SEED": "-1"}, TrainConfig),
        Layer({"lr": "abc"}, {"lr": "--lr"}),
    ]
    with pytest.raises(ConfigError) as raised:
        build_config(TrainConfig, layers)
    lines = str(raised.value).splitlines()
    assert len(lines) == 3
    assert any("c.yaml:1: epochs is 0, but it must be 1 or more." in line for line in lines)
    assert "environment ORCHESTRATOR_SEED: seed is '-1', but it must be 0 or more." in lines
    assert "--lr is 'abc', but it must be a number." in lines


def test_later_layers_win() -> None:
    layers = [Layer({"lr": 1.0, "seed": 1, "epochs": 1}, {}), Layer({"lr": 2.0, "seed": 2}, {}), Layer({"lr": 3.0}, {})]
    config = build_config(TrainConfig, layers)
    assert (config.lr, config.seed, config.epochs, config.batch_size) == (3.0, 2, 1, 64)


def test_the_environment_knows_every_option_and_none_besides() -> None:
    layer = environment_layer(
        {"ORCHESTRATOR_BATCH_SIZE": "8", "ORCHESTRATOR_RUN_NAME": "none", "PATH": "x"}, TrainConfig
    )
    assert dict(layer.values) == {"batch_size": "8", "run_name": None}
    with pytest.raises(
        ConfigError, match=r"ORCHESTRATOR_BACH_SIZE is no option. Did you mean ORCHESTRATOR_BATCH_SIZE\?"
    ):
        environment_layer({"ORCHESTRATOR_BACH_SIZE": "8"}, TrainConfig)


def test_all_unknown_variables_are_listed() -> None:
    with pytest.raises(ConfigError) as raised:
        environment_layer({"ORCHESTRATOR_BACH_SIZE": "8", "ORCHESTRATOR_ZZZZZZ": "1"}, TrainConfig)
    assert str(raised.value).splitlines() == [
        "The environment variable ORCHESTRATOR_BACH_SIZE is no option. Did you mean ORCHESTRATOR_BATCH_SIZE?",
        "The environment variable ORCHESTRATOR_ZZZZZZ is no option. Unset it.",
    ]


def test_none_in_a_variable_is_null_only_where_an_option_can_be_that() -> None:
    layer = environment_layer({"ORCHESTRATOR_AUGMENT": "none", "ORCHESTRATOR_MAX_TIME": "None"}, TrainConfig)
    assert dict(layer.values) == {"augment": "none", "max_time": None}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("bach-size", "batch_size"), ("learning-rate", "lr"), ("workers", "num_workers"), ("gpus", "use_gpu"),
        ("epoch", "epochs"), ("weight-decy", "weight_decay"), ("zzzzzz", None),
    ],
)  # fmt: skip
def test_the_nearest_option_is_what_was_meant(wrong: str, right: str | None) -> None:
    assert nearest(wrong, list(TrainConfig.model_fields)) == right


# Text that a careless writer of YAML gets wrong, besides whatever hypothesis finds.
tricky = ["no", "null", "~", "1e-3", "010", "a: b", "a #b", "# a", "'", '"', "\\", "a\nb", "\r\n", " a ", "- a", "{a", "*a", "&a",
          "!!int 1", "%", "@", "2026-01-02", "日本 ü", "\x85", "\u2028", "\ufeff", "\U0001f600", "p%20q"]  # fmt: skip
texts = st.sampled_from(tricky) | st.text(min_size=1)
configs = st.builds(
    TrainConfig,
    num_workers=st.sampled_from([0, 3, "2:5"]),
    dataset=texts,
    run_name=st.none() | texts,
    output_dir=texts,
    lr=st.floats(1e-12, 1e6),
    batch_size=st.integers(1, 2**40),
    micro_batch_size=st.none() | st.integers(1, 2**40),
    max_time=st.none() | st.floats(1e-3, 1e9),
    use_gpu=st.booleans(),
    precision=st.sampled_from(["auto", "fp32", "bf16", "fp16"]),
)


@given(configs)
def test_a_written_config_is_read_back_equal(tmp_path_factory: pytest.TempPathFactory, config: TrainConfig) -> None:
    text = config_to_yaml(config)
    assert load(tmp_path_factory.mktemp("round"), text) == config
    if (config.dataset + config.output_dir + (config.run_name or "")).isascii():
        assert TrainConfig(**yaml.safe_load(text)) == config


def test_the_schema_describes_every_option() -> None:
    properties = json_schema()["properties"]
    assert set(properties) == set(TrainConfig.model_fields)
    assert all(p.get("description") for p in properties.values())


def test_all_unknown_keys_of_a_file_are_listed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, "learning_rat: 0.5\nbatch_size: 8\nbatch-sise: 9\nzzzzzz: 1\n")
    assert [line.partition("c.yaml:")[2] for line in str(raised.value).splitlines()] == [
        "1: there is no option learning_rat. Did you mean lr?",
        "3: there is no option batch-sise. Did you mean batch_size?",
        "4: there is no option zzzzzz. See --help for all of them.",
    ]


@pytest.mark.parametrize("name", ["address", "data_dir", "cache_dir", "pretrained", "run_name", "output_dir", "resume"])
def test_an_unset_shell_variable_is_no_value(name: str) -> None:
    """`--address "$HEAD"` with HEAD unset must not train on this machine instead."""
    layer = environment_layer({f"ORCHESTRATOR_{name.upper()}": ""}, TrainConfig)
    with pytest.raises(ConfigError, match=f"environment ORCHESTRATOR_{name.upper()}: {name} is '', .* not empty text"):
        build_config(TrainConfig, [layer])


def test_a_value_is_blamed_on_the_layer_that_won() -> None:
    layers = [Layer({"lr": 1.0}, {"lr": "a.yaml:1"}), Layer({"lr": -1.0}, {"lr": "b.yaml:7"})]
    with pytest.raises(ConfigError, match=r"^b\.yaml:7: lr is -1\.0, but it must be more than 0\.$"):
        build_config(TrainConfig, layers)
