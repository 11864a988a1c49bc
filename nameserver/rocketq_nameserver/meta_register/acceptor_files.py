"""The files of an acceptor: one for each register, replaced as a whole, and one that names the acceptor.

    <register-dir>/acceptor        the name of the acceptor and the format, as JSON
    <register-dir>/HASH.register   magic "RQA" 01 | CRC-32C of the rest: u32 | JSON: its name and state

A file is written aside, synced, and renamed; then the directory is synced. A crash leaves the old file or
the new one, and perhaps a torn one aside, which was never answered for and is overwritten. So a register
file that does not match its checksum was damaged later, and the acceptor does not start with it: an
acceptor that forgets a promise can undo what a majority has decided. For the same reason a directory
without the file `acceptor` is taken for a new one only if the operator says so.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import google_crc32c
import msgspec

from rocketq.errors import InvalidConfiguration
from rocketq.system.durability import sync_directory, sync_file
from rocketq_nameserver.directory_lock import locked
from rocketq_nameserver.meta_register.acceptor import AcceptorState

SETTING: Final = "register_dir"
IDENTITY: Final = "acceptor"
SUFFIX: Final = ".register"
FORMAT: Final = 1
_MAGIC: Final = b"RQA\x01"
_HEAD: Final = 8


class _Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    acceptor: str
    format: int


@dataclass(frozen=True, slots=True)
class _Register:
    name: str
    state: AcceptorState


_IDENTITIES: Final = msgspec.json.Decoder(_Identity)
_REGISTERS: Final = msgspec.json.Decoder(_Register)


class AcceptorFiles:
    """The directory of one acceptor, which it has for itself until `close`."""

    def __init__(self, directory: Path, *, is_new: bool = False) -> None:
        """Open a directory, and check every file; with `is_new` make it. Raises InvalidConfiguration."""
        self._directory = directory
        self._lock = locked(directory, SETTING)
        try:
            self.acceptor = self._identity(is_new)
            self._found = dict(_checked(path) for path in sorted(directory.glob(f"*{SUFFIX}")))
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Unlock the directory. Closing twice is no error."""
        self._lock.close()

    def load(self, register: str) -> AcceptorState:
        return self._found.get(register, AcceptorState())

    def save(self, register: str, state: AcceptorState) -> None:
        body = msgspec.json.encode(_Register(register, state))
        checksum = google_crc32c.value(body).to_bytes(4, "little")
        self._replace(file_name(register), _MAGIC + checksum + body)

    def _identity(self, is_new: bool) -> str:
        path = self._directory / IDENTITY
        try:
            identity = _IDENTITIES.decode(path.read_bytes())
        except FileNotFoundError:
            if not is_new:
                raise InvalidConfiguration(
                    SETTING, str(self._directory), "it holds no acceptor",
                    hint="Start a new acceptor with --register-new. One that has lost its disk must not: "
                    "it may have promised or accepted what it no longer knows.",
                ) from None  # fmt: skip
            identity = _Identity(uuid.uuid4().hex, FORMAT)
            self._replace(IDENTITY, msgspec.json.encode(identity))
        except msgspec.DecodeError as error:
            raise InvalidConfiguration(SETTING, str(path), f"the file is damaged: {error}") from error
        if identity.format != FORMAT:
            raise InvalidConfiguration(SETTING, str(path), f"its format is {identity.format}, not {FORMAT}")
        return identity.acceptor

    def _replace(self, name: str, data: bytes) -> None:
        path = self._directory / name
        aside = path.with_name(f"{name}.new")
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            sync_file(file.fileno())
        aside.replace(path)
        sync_directory(self._directory)


def file_name(register: str) -> str:
    """Return the file of a register: no part of a path is made of a name that a caller gave."""
    return hashlib.sha256(register.encode()).hexdigest()[:32] + SUFFIX


def _checked(path: Path) -> tuple[str, AcceptorState]:
    data = path.read_bytes()
    body = data[_HEAD:]
    why = ""
    if data[:4] != _MAGIC:
        why = "it does not begin with its magic number"
    elif google_crc32c.value(body) != int.from_bytes(data[4:_HEAD], "little"):
        why = "its checksum does not hold"
    else:
        try:
            found = _REGISTERS.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            why = f"it cannot be read: {error}"
        else:
            if file_name(found.name) == path.name:
                return found.name, found.state
            why = f"it is the file of register {found.name!r}"
    raise InvalidConfiguration(
        SETTING, str(path), f"the file is damaged: {why}",
        hint="Leave this acceptor stopped; a majority is enough. It must not start without the file.",
    )  # fmt: skip
