"""A store in HDFS: a file is written under a name of its own, and then renamed, which takes its name as one step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import BinaryIO, TypeVar
from uuid import uuid4

from hdfs_native import Client, WriteOptions

from pipeline.places.store import ObjectExists, ObjectMissing
from replica.notary.errors import ConfigError, PlaceAccessDenied, PlaceUnavailable

PARTIAL = "_partial"  # folder of files that are being written; Spark, too, passes over names that begin like this
CALL_MAX_S = 120.0  # one request to the NameNode, or one piece of a file; the library alone would wait for ever
LIST_MAX_S = 600.0
PIECE_BYTES = 8 << 20
_FILE_MODE, _FOLDER_MODE = 0o640, 0o750  # records name parties
_SETTINGS = {
    # Each NameNode is asked once: `again` repeats, and the library alone would go on for three minutes.
    "dfs.client.failover.max.attempts": "2",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "500",
}
_DENIED = ("AccessControlException", "SaslException", "SASLError", "NoSASLMechanism", "GSSAPIError", "AccessToken")
_NO_SERVICE = "No NameNode hosts found"
_REMOTE = re.compile(r'RPCError\("[\w.$]+", "(.*?)(?:\\n|"\)$)', re.DOTALL)
_MESSAGE_CHARS = 500

AnswerT = TypeVar("AnswerT")


class HdfsStore:
    """See Store. `namenode`: `hdfs://HOST:PORT`, or a name service of HADOOP_CONF_DIR; `root`: absolute, not `/`.

    The bytes are on the DataNodes' disks and the name in the NameNode's journal before `create` returns. The NameNode
    refuses a rename to a name that is taken. A killed writer leaves its file in PARTIAL, which is never listed.
    """

    def __init__(self, namenode: str, root: str) -> None:
        """Asks nothing of the NameNode yet. Raises ConfigError, as for an unknown name service."""
        try:
            self._client = Client(namenode, dict(_SETTINGS))
        except (OSError, RuntimeError) as error:
            raise _not_configured(namenode, str(error)) from None
        self._namenode = namenode
        self._root = root

    def names(self, under: str) -> list[str]:
        folder = under.rpartition("/")[0]
        try:
            with self._errors_of(under):
                paths = _within(LIST_MAX_S, partial(self._files, f"{self._root}/{folder}".rstrip("/")))
        except ObjectMissing:
            return []
        found = (path.removeprefix(f"{self._root}/") for path in paths)
        return sorted(name for name in found if name.startswith(under) and not name.startswith(f"{PARTIAL}/"))

    def size(self, name: str) -> int:
        with self._errors_of(name):
            return int(self._asked(self._client.get_file_info, self._path(name)).length)

    def read(self, name: str) -> bytes:
        with self._errors_of(name):
            return self._asked(self._range, name, 0, None)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        with self._errors_of(name):
            return self._asked(self._range, name, start, length)

    def create(self, name: str, parts: Iterable[bytes]) -> None:
        self._write(name, parts, overwrite=False)

    def send(self, name: str, file: Path) -> None:
        with file.open("rb") as content:
            self._write(name, _pieces(content), overwrite=False)

    def replace(self, name: str, file: Path) -> None:
        with file.open("rb") as content:
            self._write(name, _pieces(content), overwrite=True)

    def _write(self, name: str, parts: Iterable[bytes], *, overwrite: bool) -> None:
        path, written = self._path(name), f"{self._root}/{PARTIAL}/{uuid4().hex}"
        try:
            with self._errors_of(name):
                for file in (written, path):
                    self._asked(self._client.mkdirs, file.rpartition("/")[0], _FOLDER_MODE, True)
                options = WriteOptions(permission=_FILE_MODE, overwrite=False)
                writer = self._asked(self._client.create, written, options)
            for part in parts:
                with self._errors_of(name):
                    self._asked(writer.write, part)
            with self._errors_of(name):
                self._asked(writer.hsync)
                self._asked(writer.close)
                self._asked(self._client.rename, written, path, overwrite)
        except BaseException as error:
            with suppress(Exception):
                self._asked(self._client.delete, written, False)
            if isinstance(error, ObjectMissing):  # renamed already, and the answer lost; or somebody removed it
                raise PlaceUnavailable(f"the file that was to become {name} is gone") from None
            raise

    def remove(self, name: str) -> bool:
        try:
            with self._errors_of(name):
                self._asked(self._client.delete, self._path(name), False)
        except PlaceAccessDenied:
            return False
        return True

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _files(self, folder: str) -> list[str]:
        return [entry.path for entry in self._client.list_status(folder, True) if not entry.isdir]

    def _range(self, name: str, start: int, length: int | None) -> bytes:
        reader = self._client.read(self._path(name))
        rest = max(0, len(reader) - start)  # the library panics where more is asked for
        wanted = rest if length is None else min(length, rest)
        return bytes(reader.read_range(start, wanted)) if wanted else b""

    @staticmethod
    def _asked(call: Callable[..., AnswerT], *arguments: object) -> AnswerT:
        return _within(CALL_MAX_S, partial(call, *arguments))

    @contextmanager
    def _errors_of(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise ObjectExists(name) from None
        except FileNotFoundError:
            raise ObjectMissing(name) from None
        except TimeoutError:
            raise PlaceUnavailable(f"{self._namenode} did not answer about {name} in time") from None
        except (OSError, RuntimeError) as error:  # a RuntimeError has the NameNode's exception in its text
            raise _meant(str(error)) from None


def _pieces(content: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: content.read(PIECE_BYTES), b"")


def _not_configured(namenode: str, text: str) -> ConfigError:
    if _NO_SERVICE in text:
        text = "name the NameNode's port as well, or a name service of the configuration in the folder HADOOP_CONF_DIR"
    return ConfigError(f"{namenode}: {text.partition(chr(10))[0]}")


def _meant(text: str) -> PlaceUnavailable | PlaceAccessDenied:
    said = _REMOTE.match(text)
    detail = (said[1] if said else text.partition("\n")[0])[:_MESSAGE_CHARS]
    return (PlaceAccessDenied if any(mark in text for mark in _DENIED) else PlaceUnavailable)(detail)


def _within(max_s: float, call: Callable[[], AnswerT]) -> AnswerT:
    """What a call gives. Raises TimeoutError; the call then goes on in a thread that ends with the process."""
    answer: Future[AnswerT] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, name="hdfs", daemon=True).start()
    return answer.result(max_s)
