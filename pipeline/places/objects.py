"""A store in an object store that obstore knows: S3 and what speaks its protocol, Azure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError

from pipeline.places.store import ObjectExists, ObjectMissing
from replica.notary.errors import PlaceAccessDenied, PlaceUnavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

ONE_REQUEST_BYTES = 32 << 20  # a larger file is sent in parts; several at once, so this many bytes are held in memory
PART_BYTES = 8 << 20  # of a file of 80 GB; S3 takes 10,000 parts
PARTS_AT_ONCE = 4
_MESSAGE_CHARS = 500
_DENIED = (
    "status code: 403",
    "status code: 401",
    "403 Forbidden",  # of lists, as deltalake words them
    "401 Unauthorized",
    "code: AccessDenied",
    "lacked the necessary privileges",  # as deltalake words it
)  # lists and deletions have no error of their own


class ObjectsStore:
    """See Store. Open `inner` with `max_retries` 0: who repeats a write itself takes its own object for another's.

    `create` is one request (`If-None-Match: *`): of several parts, the first writer would not be known. `send` looks
    first and then writes, in parts if the file is large; parts of a write that was killed stay until the bucket's rule
    for incomplete uploads removes them.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    def names(self, under: str) -> list[str]:
        folder = under.rpartition("/")[0]
        with _errors_of(under):
            found = [entry["path"] for page in obstore.list(self._inner, folder or None) for entry in page]
        return sorted(name for name in found if name.startswith(under))

    def size(self, name: str) -> int:
        with _errors_of(name):
            return obstore.head(self._inner, name)["size"]

    def read(self, name: str) -> bytes:
        with _errors_of(name):
            return bytes(obstore.get(self._inner, name).bytes())

    def read_range(self, name: str, start: int, length: int) -> bytes:
        with _errors_of(name):
            return bytes(obstore.get_range(self._inner, name, start=start, length=length))

    def create(self, name: str, parts: Iterable[bytes]) -> None:
        content = b"".join(parts)
        try:
            with _errors_of(name):
                obstore.put(self._inner, name, content, mode="create", use_multipart=False)
        except PlaceAccessDenied:
            if self._exists(name):  # object lock may refuse before the condition is looked at
                raise ObjectExists(name) from None
            raise

    def send(self, name: str, file: Path) -> None:
        if file.stat().st_size <= ONE_REQUEST_BYTES:
            self.create(name, [file.read_bytes()])
            return
        if self._exists(name):
            raise ObjectExists(name)
        self.replace(name, file)

    def replace(self, name: str, file: Path) -> None:
        try:
            with _errors_of(name):
                obstore.put(
                    self._inner,
                    name,
                    file,
                    use_multipart=file.stat().st_size > ONE_REQUEST_BYTES,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_AT_ONCE,
                )
        except ObjectMissing:  # the upload: it was completed and the answer lost, or somebody ended it
            raise PlaceUnavailable(f"the upload of {name} is gone") from None

    def remove(self, name: str) -> bool:
        try:
            with _errors_of(name):
                obstore.delete(self._inner, name)
        except ObjectMissing:
            return True
        except PlaceAccessDenied:
            return False
        return True

    def _exists(self, name: str) -> bool:
        try:
            self.size(name)
        except ObjectMissing:
            return False
        return True


def is_denied(text: str) -> bool:
    """Whether a store's message says that it refused the credentials."""
    return any(mark in text for mark in _DENIED)


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    try:
        yield
    except AlreadyExistsError:
        raise ObjectExists(name) from None
    except FileNotFoundError:
        raise ObjectMissing(name) from None
    except BaseError as error:
        text = str(error)
        denied = isinstance(error, PermissionDeniedError | UnauthenticatedError) or is_denied(text)
        detail = text.partition("\n")[0][:_MESSAGE_CHARS]
        raise (PlaceAccessDenied if denied else PlaceUnavailable)(detail) from None
