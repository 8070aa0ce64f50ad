"""Oracle as a kind of database: see DatabaseKind."""

from __future__ import annotations

from functools import partial

from replica.store.oracle.login import parse_oracle, render_oracle
from replica.store.reader import CompletionReader
from replica.store.tools import Tools

NAME = "oracle"
PROTECTED_BY = "an Oracle database beyond this machine: use a tcps connect string"


def tools(conninfo: str) -> Tools:
    """See DatabaseKind."""
    from replica.store.oracle import adopt, archive_heads, export

    login = parse_oracle(conninfo)
    return Tools(
        export_completions=partial(export.export_completions, login),
        export_range=partial(export.export_range, login),
        published_state=partial(export.published_state, login),
        adopt_topic=partial(adopt.adopt_topic, login),
        archive_heads=partial(archive_heads.run_once, login),
    )


def reader(address: str) -> CompletionReader:
    """See DatabaseKind."""
    from replica.store.oracle.reader import OracleReader

    return OracleReader(address)


def parse(conninfo: str) -> dict[str, str]:
    """See DatabaseKind."""
    return parse_oracle(conninfo)


def with_password(conninfo: str, password: str) -> str:
    """See DatabaseKind."""
    return render_oracle({**parse_oracle(conninfo), "password": password})


def hosts_in_clear(conninfo: str) -> list[str]:
    """See DatabaseKind."""
    if "tcps" in conninfo.lower():
        return []
    return [conninfo.rpartition("@")[2].partition("/")[0].rpartition(":")[0]]
