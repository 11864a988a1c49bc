"""The offsets file of a broadcasting member: the old or the new one, never another's, never half."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketq.consuming.members.local_offsets import OffsetsFile
from rocketq.errors import InvalidConfiguration
from rocketq.model import MessageQueue

ONE, TWO = MessageQueue("t", "a", 0), MessageQueue("t", "b", 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "offsets.json"


def test_what_was_written_is_read_by_the_next(path: Path) -> None:
    first = OffsetsFile(path, "g")
    assert first.offsets == {}
    first.write({ONE: (3, "i"), TWO: (4, "j")})
    first.write({ONE: (5, "i"), TWO: (4, "j")})
    first.close()
    second = OffsetsFile(path, "g")
    assert second.offsets == {ONE: (5, "i"), TWO: (4, "j")}
    second.close()


def test_two_members_do_not_share_a_file(path: Path) -> None:
    first = OffsetsFile(path, "g")
    with pytest.raises(InvalidConfiguration, match="another member uses it"):
        OffsetsFile(path, "g")
    first.close()
    OffsetsFile(path, "g").close()


def test_the_file_of_another_group_is_refused(path: Path) -> None:
    first = OffsetsFile(path, "g")
    first.write({ONE: (3, "i")})
    first.close()
    with pytest.raises(InvalidConfiguration, match="'g', not of 'h'"):
        OffsetsFile(path, "h")
    OffsetsFile(path, "g").close()


@pytest.mark.parametrize("content", [b"", b"{", b'{"group": "g"}', b"[]"])
def test_a_damaged_file_is_an_error_and_not_a_new_start(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        OffsetsFile(path, "g")


def test_a_file_that_cannot_be_written_leaves_the_one_before(path: Path) -> None:
    file = OffsetsFile(path, "g")
    file.write({ONE: (3, "i")})
    aside = path.with_name(path.name + ".new")
    aside.mkdir()
    with pytest.raises(InvalidConfiguration, match="offsets_file"):
        file.write({ONE: (4, "i")})
    file.close()
    assert OffsetsFile(path, "g").offsets == {ONE: (3, "i")}
