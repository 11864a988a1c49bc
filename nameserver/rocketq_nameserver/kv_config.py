"""The key-value configuration: all that a NameServer keeps across restarts (RocketMQ: KVConfigManager).

    <data-dir>/kvConfig.json      {"version": 1, "namespaces": {namespace: {key: value}}}

Each change writes a new file and renames it over the old one. File and directory are synced before the change
is visible or acknowledged. So after a crash the file has the old or the new content, and a value that a
client has read is still there after a restart. A lock keeps a second NameServer out of the directory, because
each would overwrite the other's changes. Without a directory everything is in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Final

import msgspec

from rocketq.errors import InvalidConfiguration, NotFound, TooLarge
from rocketq.protocol.rules.reserved_names import check_name
from rocketq.system.durability import sync_directory, sync_file
from rocketq_nameserver.directory_lock import locked

FILE_NAME: Final = "kvConfig.json"
VALUE_BYTES_MAX: Final = 64 * 1024
ENTRIES_MAX: Final = 10_000

Namespaces = dict[str, dict[str, str]]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    namespaces: Namespaces


_DOCUMENTS: Final = msgspec.json.Decoder(_Document)


class KvConfig:
    """Values by namespace and key. Not thread-safe: one call at a time."""

    def __init__(self, directory: Path | None = None) -> None:
        """Read what is there; raise InvalidConfiguration if the file cannot be read or used."""
        self._path = directory / FILE_NAME if directory is not None else None
        self._namespaces: Namespaces = {}
        self._lock: IO[bytes] | None = None
        if self._path is not None:
            self._lock = locked(self._path.parent, "data_dir")
            self._namespaces = _load(self._path)

    def close(self) -> None:
        """Unlock the directory. Closing twice is no error."""
        if self._lock is not None:
            self._lock.close()

    def get(self, namespace: str, key: str) -> str:
        """Return a value; raise NotFound."""
        try:
            return self._namespaces[namespace][key]
        except KeyError:
            raise NotFound("key", f"{namespace}/{key}") from None

    def namespace(self, namespace: str) -> dict[str, str]:
        """Return all keys and values of a namespace; raise NotFound if it has none."""
        found = self._namespaces.get(namespace)
        if found is None:
            raise NotFound("namespace", namespace)
        return dict(found)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises InvalidName, TooLarge, OSError; then nothing has changed."""
        for kind, name in (("namespace", namespace), ("key", key)):
            check_name(kind, name)
        size = len(value.encode("utf-8"))
        if size > VALUE_BYTES_MAX:
            raise TooLarge("the value", size, VALUE_BYTES_MAX)
        known = self._namespaces.get(namespace, {})
        if key not in known and sum(map(len, self._namespaces.values())) >= ENTRIES_MAX:
            raise TooLarge("the number of keys", ENTRIES_MAX + 1, ENTRIES_MAX)
        self._replace({**self._namespaces, namespace: {**known, key: value}})

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, and its namespace with the last one. Raises NotFound, OSError."""
        self.get(namespace, key)
        left = {name: value for name, value in self._namespaces[namespace].items() if name != key}
        others = {name: values for name, values in self._namespaces.items() if name != namespace}
        self._replace({**others, namespace: left} if left else others)

    def _replace(self, namespaces: Namespaces) -> None:
        if self._path is not None:
            _save(self._path, namespaces)
        self._namespaces = namespaces


def _load(path: Path) -> Namespaces:
    try:
        document = _DOCUMENTS.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(
            "data_dir", str(path), f"the file is damaged: {error}", hint="Restore it or move it away."
        ) from error
    except OSError as error:
        raise InvalidConfiguration("data_dir", str(path), f"it cannot be read: {error.strerror}") from error
    if document.version != 1:
        raise InvalidConfiguration("data_dir", str(path), f"its version is {document.version}, not 1")
    return document.namespaces


def _save(path: Path, namespaces: Namespaces) -> None:
    data = msgspec.json.format(msgspec.json.encode(_Document(1, namespaces)), indent=2)
    aside = path.with_suffix(".new")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        sync_file(file.fileno())
    aside.replace(path)
    sync_directory(path.parent)
