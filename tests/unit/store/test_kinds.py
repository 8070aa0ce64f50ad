"""The kind of database follows from the connection string: each form is recognised, and opens its own reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from replica.config.model import DatabaseSettings
from replica.database import participant_database
from replica.notary.errors import ConfigError
from replica.store.open import adopt_topic, kind_of, open_reader, parse_conninfo, with_password
from replica.store.sqlite.reader import SqliteReader


@pytest.mark.parametrize(
    ("conninfo", "kind"),
    [
        ("host=db dbname=notary", "postgres"),
        ("postgresql://notary@db/notary", "postgres"),
        ("", "postgres"),
        ("oracle://notary@db:1521/notary", "oracle"),
        ("sqlite:/var/lib/notary/ledger.sqlite", "sqlite"),
        ("sqlite:/var/lib/notary/host=db dbname=notary", "sqlite"),
    ],
)
def test_the_kind_follows_from_the_string(conninfo: str, kind: str) -> None:
    """Goal: no string is taken for another kind's. Method: each form, also a path that looks like libpq's."""
    assert kind == kind_of(conninfo).NAME


async def test_an_embedded_ledger_is_read_by_its_address_and_nothing_else() -> None:
    """Goal: a front end gets the reader of a file; tools, passwords and shared databases are refused clearly.
    Method: open one, and ask for each of the others."""
    address = "sqlite:/var/lib/notary/ledger.sqlite"
    reader = open_reader(address)
    assert isinstance(reader, SqliteReader)
    assert reader._path == Path("/var/lib/notary/ledger.sqlite")
    await reader.close()
    assert parse_conninfo(address) == {"file": "/var/lib/notary/ledger.sqlite"}
    assert kind_of(address).hosts_in_clear(address) == []
    with pytest.raises(ConfigError, match="its replica only"):
        adopt_topic(address, 1, "topic", lambda position: None)
    with pytest.raises(ConfigError, match="no password"):
        with_password(address, "secret")
    with pytest.raises(ConfigError, match="share no database"):
        participant_database(address, "notary")
    with pytest.raises(ValidationError, match="of one replica"):
        DatabaseSettings(conninfo=address)
    for wrong in ("sqlite:", "sqlite:ledger.sqlite"):
        with pytest.raises(ConfigError, match="absolute path"):
            open_reader(wrong)
