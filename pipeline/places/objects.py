"""A store in an object store that obstore knows: S3 and what speaks its protocol, Azure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError

from pipeline.places.store import ObjectExists, ObjectMissing, PlaceUnavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class ObjectsStore:
    """See Store. Open `inner` with `max_retries` 0: who repeats a write itself takes its own object for another's.

    An object is sent as one request (`If-None-Match: *`): of several parts, the first writer would not be known.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    def names(self, under: str) -> list[str]:
        folder = under.rpartition("/")[0]
        try:
            found = [entry["path"] for page in obstore.list(self._inner, folder or None) for entry in page]
        except BaseError as error:
            raise _unavailable(error) from None
        return sorted(name for name in found if name.startswith(under))

    def read(self, name: str) -> bytes:
        try:
            return bytes(obstore.get(self._inner, name).bytes())
        except (NotFoundError, FileNotFoundError):
            raise ObjectMissing(name) from None
        except BaseError as error:
            raise _unavailable(error) from None

    def create(self, name: str, parts: Iterable[bytes]) -> None:
        content = b"".join(parts)
        try:
            obstore.put(self._inner, name, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            raise ObjectExists(name) from None
        except BaseError as error:
            raise _unavailable(error) from None

    def remove(self, name: str) -> bool:
        try:
            obstore.delete(self._inner, name)
        except (NotFoundError, FileNotFoundError):
            return True
        except BaseError as error:
            raise _unavailable(error) from None
        return True


def _unavailable(error: BaseError) -> PlaceUnavailable:
    return PlaceUnavailable(str(error).partition("\n")[0][:500])
