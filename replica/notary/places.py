"""Names of places where files are kept: a local path, or a URL whose scheme names a kind of store."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from replica.notary.errors import Code, ConfigError

_URL = re.compile(r"([a-z][a-z0-9+.-]*):(/.*)", re.IGNORECASE | re.DOTALL)
_THIS_HOST = re.compile("//(localhost)?/", re.IGNORECASE)
_STORE = re.compile(
    r"(?:s3a?://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"  # a bucket
    r"|abfss?://[a-z0-9-]{3,63}@[a-z0-9]{3,24}\.dfs\.core\.windows\.net)"  # a container of an account
    r"(?P<prefix>(?:/[A-Za-z0-9_.=-]+)*)/?"
)


class Remote(str):
    """A place in a store of objects: `s3a://BUCKET/PREFIX`, or `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX`.

    The prefix may be empty; its parts are letters, digits and `_.=-`, none of them `.` or `..`. See `place_of`.
    """

    __slots__ = ()


Place = Path | Remote


def place_of(text: str) -> Place:
    """The place that a text names. Raises ConfigError (PLACE_UNKNOWN) for a URL that is not one of these."""
    store = _STORE.fullmatch(text)
    if store is None:
        return local_path(text)
    if {".", ".."} & set(store["prefix"].split("/")):
        raise _unknown(text)
    return Remote(text.rstrip("/"))


def inside(place: Place, name: str) -> Place:
    """The place of this name within another."""
    return Remote(f"{place}/{name}") if isinstance(place, Remote) else place / name


def local_path(place: str) -> Path:
    """The path of a place on this machine: what a `file:` URL names (RFC 8089), and everything that is no URL.

    Raises ConfigError (PLACE_UNKNOWN) for another scheme, and for another host.
    """
    url = _URL.fullmatch(place)
    if url is None:
        return Path(place)
    if url[1].lower() != "file":
        raise _unknown(place)
    path, on_this_host = _THIS_HOST.subn("/", url[2], count=1) if url[2].startswith("//") else (url[2], 1)
    if not on_this_host:
        raise _unknown(place)
    return Path(unquote(path))


def no_url(path: Path) -> Path:
    """The path, unless it was a URL, of which a path has lost the second slash. Raises ConfigError (PLACE_UNKNOWN)."""
    if _URL.fullmatch(str(path)):
        raise _unknown(str(path))
    return path


def _unknown(place: str) -> ConfigError:
    return ConfigError(f"{place}: files are not read from or written to this URL", Code.PLACE_UNKNOWN)
