"""What depends on the operating system: how bytes reach the disk, and where servers do not run."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocketq.errors import InvalidConfiguration
from rocketq.system.durability import F_FULLFSYNC, SyncCall, sync_call, sync_directory, sync_file
from rocketq.system.platforms import check_servers_run_here

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("platform", "file", "directory"),
    [
        ("linux", SyncCall.FDATASYNC, SyncCall.FSYNC),
        ("freebsd14", SyncCall.FDATASYNC, SyncCall.FSYNC),
        ("darwin", SyncCall.FULL_FSYNC, SyncCall.FULL_FSYNC),
        ("sunos5", SyncCall.FSYNC, SyncCall.FSYNC),
    ],
)
def test_each_system_has_its_call_that_reaches_the_disk(
    platform: str, file: SyncCall, directory: SyncCall
) -> None:
    assert sync_call(platform) is file
    assert sync_call(platform, is_directory=True) is directory


@pytest.mark.parametrize("platform", ["linux", "darwin", "sunos5"])
def test_files_and_directories_are_synced_by_the_real_calls(platform: str, tmp_path: Path) -> None:
    """This system does not know F_FULLFSYNC, so as darwin it also takes the way of such a file system."""
    with (tmp_path / "file").open("wb") as file:
        file.write(b"data")
        file.flush()
        sync_file(file.fileno(), platform)
    sync_directory(tmp_path, platform)


def calls_of(monkeypatch: pytest.MonkeyPatch, error: int = 0) -> list[str]:
    """Note which calls are made; the one of macOS ends with this errno."""
    made: list[str] = []

    def full_fsync(descriptor: int, command: int) -> int:
        made.append("F_FULLFSYNC" if command == F_FULLFSYNC else "another")
        if error:
            raise OSError(error, os.strerror(error))
        return 0

    monkeypatch.setattr(fcntl, "fcntl", full_fsync)
    monkeypatch.setattr(os, "fsync", lambda descriptor: made.append("fsync"))
    monkeypatch.delattr(os, "fdatasync")
    return made


def test_macos_has_the_drive_write_its_cache_and_needs_no_fdatasync(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = calls_of(monkeypatch)
    sync_file(0, "darwin")
    sync_directory(tmp_path, "darwin")
    assert made == ["F_FULLFSYNC", "F_FULLFSYNC"]


@pytest.mark.parametrize("error", [errno.ENOTSUP, errno.ENOTTY, errno.EINVAL])
def test_a_file_system_without_the_call_of_macos_gets_an_fsync(
    error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = calls_of(monkeypatch, error)
    sync_file(0, "darwin")
    assert made == ["F_FULLFSYNC", "fsync"]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_sync_that_fails_on_macos_is_not_tried_another_way(
    error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = calls_of(monkeypatch, error)
    with pytest.raises(OSError, match=re.escape(os.strerror(error))):
        sync_file(0, "darwin")
    assert made == ["F_FULLFSYNC"]


def test_nothing_else_syncs_a_file() -> None:
    by_hand = re.compile(r"os\.(fsync|fdatasync)\(|F_FULLFSYNC")
    folders = ("connector", "broker_server", "nameserver", "benchmarks")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert [path.name for path in paths if by_hand.search(path.read_text())] == ["durability.py"]


def test_servers_run_on_posix_systems_only() -> None:
    for platform in ("linux", "darwin", "freebsd14"):
        check_servers_run_here(platform)
    with pytest.raises(InvalidConfiguration, match="do not run on Windows") as refused:
        check_servers_run_here("win32")
    assert "WSL 2" in refused.value.hint


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("rocketq_broker.__main__", "main(['--name', 'a', '--data-dir', 'unused'])"),
        ("rocketq_nameserver.__main__", "main([])"),
        ("rocketq.cli.main", "main(['up'])"),
        ("rocketq.cli.main", "main(['broker', 'run', '--name', 'a'])"),
    ],
)
def test_on_windows_a_server_says_so_before_it_needs_anything_of_posix(module: str, call: str) -> None:
    script = (
        "import sys; sys.modules['fcntl'] = sys.modules['resource'] = None; "
        f"from {module} import main; sys.platform = 'win32'; sys.exit({call})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "do not run on Windows" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
