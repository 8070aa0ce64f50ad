"""An embedded ledger as a kind of database: see DatabaseKind. `sqlite:PATH` names its file, with an absolute path.

A configuration says `sqlite:` alone: each replica has a ledger of its own, in its own folder. Only readers open one by
its address: its replica writes it, from the log, and nobody else. So it has no tools.
"""

from __future__ import annotations

from pathlib import Path

from replica.notary.errors import ConfigError
from replica.store.reader import CompletionReader
from replica.store.tools import Tools

SQLITE = "sqlite:"
NAME = "sqlite"
PROTECTED_BY = "nothing: an embedded ledger is a file of this machine"


def tools(conninfo: str) -> Tools:
    """Raises ConfigError: what tools would read or change follows from the log."""
    raise ConfigError(f"{conninfo}: an embedded ledger is written by its replica only; tools read the log")


def reader(address: str) -> CompletionReader:
    """See DatabaseKind."""
    from replica.store.sqlite.reader import SqliteReader

    if address == SQLITE:
        raise ConfigError("a reader needs the absolute path of one replica's file: sqlite:PATH")
    return SqliteReader(Path(parse(address)["file"]))


def parse(conninfo: str) -> dict[str, str]:
    """The file; nothing for `sqlite:` alone, which names no file. Raises ConfigError."""
    file = conninfo.removeprefix(SQLITE)
    if not file:
        return {}
    if not Path(file).is_absolute():
        raise ConfigError("an embedded ledger is named sqlite:PATH, with the absolute path of its file")
    return {"file": file}


def with_password(conninfo: str, password: str) -> str:
    """Raises ConfigError: a file has no password."""
    raise ConfigError("an embedded ledger has no password: leave password_file out")


def hosts_in_clear(conninfo: str) -> list[str]:
    """None: nothing leaves the machine."""
    return []
