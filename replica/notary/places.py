"""Names of places where files are kept: a local path, or a URL whose scheme names a kind of store."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from replica.notary.codes import Code
from replica.notary.errors import ConfigError

_URL = re.compile(r"([a-z][a-z0-9+.-]*):(/.*)", re.IGNORECASE | re.DOTALL)
_THIS_HOST = re.compile("//(localhost)?/", re.IGNORECASE)
_STORE = re.compile(
    r"(?:s3a?://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"  # a bucket
    r"|abfss?://[a-z0-9-]{3,63}@[a-z0-9]{3,24}\.dfs\.core\.windows\.net"  # a container of an account
    r"|hdfs://[A-Za-z0-9][A-Za-z0-9._-]*(?::\d{1,5})?(?=/[^/]))"  # a NameNode or a name service, and a folder
    r"(?P<prefix>(?:/[A-Za-z0-9_.=-]+)*)/?"
)
_KNOWN = re.compile(r"(?P<scheme>s3a?|abfss?|hdfs)://(?P<holder>[^/]*).*", re.DOTALL)  # of a store, whatever follows
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class Remote(str):
    """A place in a store of objects: `s3a://BUCKET/PREFIX`, `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX`,
    or `hdfs://NAMENODE:PORT/PREFIX`, where a name service may stand for NAMENODE:PORT.

    The prefix may be empty, but not in HDFS; its parts are letters, digits and `_.=-`, none of them `.` or `..`. See
    `place_of`.
    """

    __slots__ = ()


Place = Path | Remote


def place_of(text: str) -> Place:
    """The place that a text names. Raises ConfigError (PLACE_UNKNOWN) for a URL that is not one of these."""
    store = _STORE.fullmatch(text)
    if store is None:
        known = _KNOWN.fullmatch(text)
        if known is not None:
            raise _unknown(text, _broken_rule(known["scheme"], known["holder"]))
        return local_path(text)
    if {".", ".."} & set(store["prefix"].split("/")):
        raise _unknown(text, _PREFIX_RULE)
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


_PREFIX_RULE = "what follows are names between single slashes, of letters, digits and _.=-, none of them . or .."


def _broken_rule(scheme: str, holder: str) -> str:
    """Which rule the URL of a known store breaks, so that nobody looks for a fault in its scheme."""
    if scheme.startswith("abfs"):
        return f"give {scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX, where {_PREFIX_RULE}"
    if scheme == "hdfs":
        return f"give hdfs://NAMENODE:PORT/PREFIX, or a name service for NAMENODE:PORT, where {_PREFIX_RULE}"
    if "@" in holder:
        return "credentials are taken from the environment, not from a URL"
    if not _BUCKET.fullmatch(holder):  # S3's own rule: no server makes a bucket of another name
        return "a bucket's name has 3 to 63 small letters, digits, dots and hyphens, at its ends a letter or digit"
    return _PREFIX_RULE


def _unknown(place: str, why: str = "files are not read from or written to this URL") -> ConfigError:
    return ConfigError(f"{place}: {why}", Code.PLACE_UNKNOWN)
