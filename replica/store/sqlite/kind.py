"""An embedded ledger as a kind of database: see DatabaseKind. `sqlite:PATH` names its file, with an absolute path.

A configuration says `sqlite:` alone: each replica has a ledger of its own, in its own folder. Only its replica writes
it, from the log. So tools may read it, and whatever would change it is refused.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.store.reader import CompletionReader
from replica.store.tools import Tools

SQLITE = "sqlite:"
NAME = "sqlite"
PROTECTED_BY = "nothing: an embedded ledger is a file of this machine"


def tools(conninfo: str) -> Tools:
    """What reads one ledger. Everything else raises ConfigError: it follows from the log."""
    from replica.store.sqlite import looking

    file = _file_of(conninfo)
    return Tools(
        export_completions=partial(looking.export_completions, [file]),
        export_range=partial(looking.export_range, file),
        published_state=partial(looking.published_state, file),
        adopt_topic=_refused,
        archive_heads=_refused,
    )


def reader(address: str) -> CompletionReader:
    """See DatabaseKind."""
    from replica.store.sqlite.reader import SqliteReader

    return SqliteReader(_file_of(address))


def _file_of(address: str) -> Path:
    if address == SQLITE:
        raise ConfigError("a reader needs the absolute path of one replica's file: sqlite:PATH")
    return Path(parse(address)["file"])


def _refused(*given: object) -> Any:
    raise ConfigError("an embedded ledger is written by its replica only, from the log", Code.NOT_POSSIBLE_NOW)


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
