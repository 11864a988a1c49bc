"""An acceptor on a real directory: what it answered for is there after a stop, or it does not start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rocketq.errors import AcceptorFailed, InvalidConfiguration
from rocketq.protocol.documents.meta_register import AcceptRequest, Ballot, PrepareRequest, RegisterValue
from rocketq_nameserver.meta_register import acceptor_files
from rocketq_nameserver.meta_register.acceptor import Acceptor
from rocketq_nameserver.meta_register.acceptor_files import AcceptorFiles, file_name

LOW, HIGH = Ballot(1, "p"), Ballot(2, "p")
VALUE = RegisterValue(1, "p.1", '{"epoch": 1}')
NAME = "DefaultCluster/broker-a"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    AcceptorFiles(tmp_path, is_new=True).close()
    return tmp_path


def after_restart(directory: Path, *calls: Callable[[Acceptor], object]) -> Acceptor:
    """Make calls in one life, and return the acceptor of the next one."""
    files = AcceptorFiles(directory)
    acceptor = Acceptor(files)
    for call in calls:
        call(acceptor)
    files.close()
    return Acceptor(AcceptorFiles(directory))


def prepare(acceptor: Acceptor, ballot: Ballot = HIGH, name: str = NAME) -> bool:
    return acceptor.prepare(name, PrepareRequest(ballot)).is_granted


def accept(acceptor: Acceptor, ballot: Ballot = HIGH, name: str = NAME) -> bool:
    return acceptor.accept(name, AcceptRequest(ballot, VALUE)).is_granted


def test_a_promise_and_a_value_survive_a_restart(directory: Path) -> None:
    again = after_restart(directory, prepare, accept)
    assert not accept(again, LOW)
    assert not prepare(again, HIGH)
    answer = again.prepare(NAME, PrepareRequest(Ballot(3, "p")))
    assert (answer.is_granted, answer.accepted, answer.value) == (True, HIGH, VALUE)


def test_registers_have_nothing_to_do_with_each_other(directory: Path) -> None:
    again = after_restart(directory, prepare, lambda acceptor: prepare(acceptor, LOW, "other"))
    assert accept(again, LOW, "other")
    assert not accept(again, LOW)


def test_a_torn_file_aside_is_of_no_account(directory: Path) -> None:
    before = AcceptorFiles(directory)
    assert prepare(Acceptor(before))
    before.close()
    (directory / f"{file_name(NAME)}.new").write_bytes(b"RQA\x01torn")
    again = Acceptor(AcceptorFiles(directory))
    assert not accept(again, LOW)
    assert accept(again, HIGH)


@pytest.mark.parametrize("damage", ["bit", "empty", "short", "renamed", "magic"])
def test_an_acceptor_does_not_start_with_a_register_that_was_damaged(directory: Path, damage: str) -> None:
    files = AcceptorFiles(directory)
    assert prepare(Acceptor(files))
    files.close()
    path = directory / file_name(NAME)
    data = bytearray(path.read_bytes())
    if damage == "renamed":
        path.rename(directory / file_name("another"))
    else:
        data[len(data) // 2] ^= 1
        damaged = {"bit": data, "empty": b"", "short": path.read_bytes()[:-3], "magic": b"RQB" + data[3:]}
        path.write_bytes(damaged[damage])
    with pytest.raises(InvalidConfiguration, match="damaged") as refused:
        AcceptorFiles(directory)
    assert "must not start without" in refused.value.hint


def test_an_emptied_directory_is_no_new_acceptor_unless_the_operator_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="holds no acceptor") as refused:
        AcceptorFiles(tmp_path)
    assert "--register-new" in refused.value.hint
    made = AcceptorFiles(tmp_path, is_new=True)
    made.close()
    assert AcceptorFiles(tmp_path).acceptor == made.acceptor


def test_a_directory_has_one_acceptor_at_a_time(directory: Path) -> None:
    first = AcceptorFiles(directory)
    with pytest.raises(InvalidConfiguration, match="another NameServer"):
        AcceptorFiles(directory)
    first.close()
    AcceptorFiles(directory).close()


@pytest.mark.parametrize("step", ["sync_file", "sync_directory"])
def test_after_a_failed_sync_an_acceptor_answers_nothing_more(
    directory: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = AcceptorFiles(directory)
    acceptor = Acceptor(files)
    assert prepare(acceptor, LOW)

    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(acceptor_files, step, fail)
    with pytest.raises(AcceptorFailed, match="the disk is gone"):
        prepare(acceptor)
    monkeypatch.undo()
    with pytest.raises(AcceptorFailed):
        accept(acceptor)
    files.close()
    assert prepare(Acceptor(AcceptorFiles(directory)), Ballot(5, "p"))


def test_a_refusal_writes_nothing(directory: Path) -> None:
    acceptor = Acceptor(AcceptorFiles(directory))
    assert prepare(acceptor)
    before = (directory / file_name(NAME)).stat().st_mtime_ns
    assert not prepare(acceptor, LOW)
    assert not accept(acceptor, LOW)
    assert (directory / file_name(NAME)).stat().st_mtime_ns == before
