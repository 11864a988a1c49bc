"""The key-value file: either the old or the new state, and never a silent loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketq.errors import InvalidConfiguration, InvalidName, NotFound, TooLarge
from rocketq_nameserver.kv_config import FILE_NAME, VALUE_BYTES_MAX, KvConfig


def test_what_was_put_is_read_by_the_next_one(tmp_path: Path) -> None:
    first = KvConfig(tmp_path / "new" / "directory")
    first.put("a", "x", "1")
    first.put("a", "y", "2")
    first.put("b", "x", "3")
    first.delete("a", "x")
    first.close()
    second = KvConfig(tmp_path / "new" / "directory")
    assert second.namespace("a") == {"y": "2"}
    assert second.get("b", "x") == "3"


def test_a_namespace_goes_with_its_last_key(tmp_path: Path) -> None:
    kv = KvConfig(tmp_path)
    kv.put("a", "x", "1")
    kv.delete("a", "x")
    with pytest.raises(NotFound):
        kv.namespace("a")
    assert json.loads((tmp_path / FILE_NAME).read_text())["namespaces"] == {}


def test_a_change_that_cannot_be_written_is_not_visible(tmp_path: Path) -> None:
    kv = KvConfig(tmp_path)
    kv.put("a", "x", "1")
    # A directory in the place of the file that is written aside.
    (tmp_path / "kvConfig.new").mkdir()
    with pytest.raises(OSError, match="kvConfig"):
        kv.put("a", "x", "2")
    assert kv.get("a", "x") == "1"
    kv.close()
    assert KvConfig(tmp_path).get("a", "x") == "1"


def test_a_half_written_file_aside_is_never_read(tmp_path: Path) -> None:
    kv = KvConfig(tmp_path)
    kv.put("a", "x", "1")
    (tmp_path / "kvConfig.new").write_bytes(b'{"version": 1, "namesp')
    kv.close()
    kv = KvConfig(tmp_path)
    assert kv.get("a", "x") == "1"
    kv.put("a", "x", "2")
    kv.close()
    assert KvConfig(tmp_path).get("a", "x") == "2"


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"\xff", b'{"version": 2, "namespaces": {}}', b'{"version": 1}']
)
def test_a_damaged_file_keeps_it_from_starting(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(damage)
    with pytest.raises(InvalidConfiguration, match=FILE_NAME):
        KvConfig(tmp_path)


def test_a_directory_has_one_nameserver_at_a_time(tmp_path: Path) -> None:
    first = KvConfig(tmp_path)
    with pytest.raises(InvalidConfiguration, match="another NameServer"):
        KvConfig(tmp_path)
    first.close()
    KvConfig(tmp_path).close()


def test_names_and_values_have_limits() -> None:
    kv = KvConfig()
    with pytest.raises(InvalidName):
        kv.put("a b", "x", "1")
    with pytest.raises(InvalidName):
        kv.put("a", "../x", "1")
    kv.put("a", "x", "v" * VALUE_BYTES_MAX)
    with pytest.raises(TooLarge):
        kv.put("a", "x", "v" * (VALUE_BYTES_MAX + 1))
