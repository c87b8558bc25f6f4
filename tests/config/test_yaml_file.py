"""Reading a file of options, whatever is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.yaml_file import read_yaml
from orchestrator.errors import ConfigError


def read(folder: Path, content: str | bytes) -> tuple[dict[str, Any], dict[str, int]]:
    file = folder / "c.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_yaml(str(file))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001), ("1E+3", 1000.0), (".5", 0.5), ("5.", 5.0), ("+1", 1), ("-0", 0), ("0", 0), ("-.5e1", -5.0),
        ("true", True), ("FALSE", False), ("null", None), ("~", None), ("", None), (".inf", float("inf")),
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"), ("y", "y"), ("tRUE", "tRUE"), ("nUll", "nUll"),
        ("1:30", "1:30"), ("2026-01-02", "2026-01-02"), ("0x10", "0x10"), ("0o7", "0o7"), ("1_000", "1_000"),
        ('"8"', "8"), ("'010'", "010"), ('"true"', "true"), ("a # b", "a"), ("a#b", "a#b"), ('"\\u00fc"', "ü"),
        ("umläut 日本", "umläut 日本"), ("'it''s'", "it's"), ("C:\\data", "C:\\data"), ("s3://b/a%20b", "s3://b/a%20b"),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(tmp_path: Path, written: str, value: Any) -> None:
    values, _ = read(tmp_path, f"x: {written}\n")
    assert values == {"x": value}
    assert type(values["x"]) is type(value)


@pytest.mark.parametrize("content", ["", "\n", "# only a comment\n", "---\n", "---\n...\n", b"\xef\xbb\xbf", "{}"])
def test_an_empty_file_has_no_options(tmp_path: Path, content: str | bytes) -> None:
    assert read(tmp_path, content) == ({}, {})


def test_the_mark_and_line_ends_of_windows_change_nothing(tmp_path: Path) -> None:
    windows = read(tmp_path, b"\xef\xbb\xbflr: 0.01\r\n\r\nbatch_size: 8\r\n")
    assert (
        windows
        == read(tmp_path, "lr: 0.01\n\nbatch_size: 8\n")
        == ({"lr": 0.01, "batch_size": 8}, {"lr": 1, "batch_size": 3})
    )


def test_an_anchor_stands_for_its_value(tmp_path: Path) -> None:
    values, lines = read(tmp_path, "lr: &rate 0.5\nlr_gamma: *rate\n")
    assert values == {"lr": 0.5, "lr_gamma": 0.5}
    assert lines == {"lr": 1, "lr_gamma": 2}


def test_a_merge_key_is_a_key_like_any_other(tmp_path: Path) -> None:
    assert read(tmp_path, "<<: {lr: 1}\n")[0] == {"<<": {"lr": 1}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: 1\n\nb: 2\na: 3\n", "c.yaml:4, column 1: a stands here again, after line 1."),
        ("a: 1\n'a': 1\n", "c.yaml:2, column 1: a stands here again, after line 1."),
        ("t:\n  a: 1\n  a: 2\n", "c.yaml:3, column 3: a stands here again, after line 2."),
        ("a: 010\n", "c.yaml:1, column 4: 010 begins with a zero, which YAML 1.1 reads as octal; write 10."),
        ("a: 00\n", "write 0."),
        ("a: 1\n1: 2\n", "c.yaml:2, column 1: the key 1 is not a name."),
        ("no: 1\ntrue: 2\n", "c.yaml:2, column 1: the key True is not a name."),
        ("? [a]\n: 1\n", "the key ['a'] is not a name."),
        ("- 1\n- 2\n", "c.yaml:1, column 1: the file is a list or a single value"),
        ("lr 0.5\n", "the file is a list or a single value"),
        ("train:\n\tlr: 1\n", "c.yaml:2, column 1: found character '\\t' that cannot start any token."),
        ("a: 1\n b: 2\n", "c.yaml:2, column 3: mapping values are not allowed here."),
        ("a: [1\n", "c.yaml:2, column 1"),
        ("a: 'b\n", "c.yaml:2, column 1"),
        ("a: *nothing\n", "found undefined alias 'nothing'."),
        ("a: 1\n---\na: 2\n", "c.yaml:2, column 1: but found another document."),
        ("a: \x00\n", "is not YAML: unacceptable character"),
        (b"a: \xff\n", "is not a text file in UTF-8: byte 3 cannot be read."),
        ("a: 1\n".encode("utf-16"), "is not a text file in UTF-8: byte 0 cannot be read."),
        (f"a: {'1' * 5000}\n", "a number too long to read"),
        (f"a: {'[' * 3000}{']' * 3000}\n", "brackets too deep"),
    ],
)
def test_what_is_refused_and_where(tmp_path: Path, content: str | bytes, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, content)
    assert said in str(raised.value)
    assert str(tmp_path / "c.yaml") in str(raised.value)


@pytest.mark.parametrize(
    "value",
    ["!!python/object/apply:os.system ['touch ran']", "!!python/name:os.system", "!!int '010'", "!!int abc",
     "!!bool maybe", "!!timestamp x", "!!binary '%'", "!!set {a}", "!own 1", "! 1"],
)  # fmt: skip
def test_every_tag_is_refused(tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (f"a: {value}\n", f"a:\n- {value}\n", f"{value}\n"):
        with pytest.raises(ConfigError, match=r"c\.yaml:\d, column \d: the tag !.* is refused"):
            read(tmp_path, content)
    assert not (tmp_path / "ran").exists()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, said in (
        (str(tmp_path / "none.yaml"), "there is no such file"),
        ("~no-such-user-here/c.yaml", "there is no such file"),
        (str(tmp_path), "cannot be read: Is a directory"),
        (str(tmp_path / ("x" * 300)), "cannot be read: File name too long"),
    ):
        with pytest.raises(ConfigError) as raised:
            read_yaml(path)
        assert str(raised.value).startswith(f"--config {path}")
        assert said in str(raised.value)


@pytest.mark.parametrize("name", ["with space", "umläut-日本", "a#b", "p%20q"])
def test_files_of_any_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / name).write_text("lr: 1\n")
    assert read_yaml(str(tmp_path / name)) == read_yaml(f"~/{name}") == ({"lr": 1}, {"lr": 1})
