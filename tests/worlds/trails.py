"""Operators' trails in memory, and people who sign in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from nacl.signing import SigningKey

from replica.config.model import Config
from replica.store.trail import Entry, Head, Signatory, head_of, signed_line

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
PEOPLE = {name: SigningKey(bytes([number]) * 32) for number, name in enumerate(("anna", "ben", "notary"), start=1)}
KNOWN = {bytes(key.verify_key).hex(): Signatory(None if name == "notary" else name) for name, key in PEOPLE.items()}


def line_after(head: Head, who: str = "anna", **fields: Any) -> bytes:
    """A signed line that follows on a head."""
    key = PEOPLE[who]
    values: dict[str, Any] = {
        "number": head.number + 1,
        "previous": head.digest,
        "at": NOW + timedelta(seconds=head.number),
        "cluster": "notary",
        "act": "pause",
        "phase": "begun",
        "operator": who if who != "notary" else "root",
        "os_user": "root",
        "host": "machine",
        "signer": "notary" if who == "notary" else "operator",
        "key": bytes(key.verify_key).hex(),
    }
    return signed_line(Entry(**(values | fields)), lambda message: key.sign(message).signature)


def trail_of(*entries: dict[str, Any]) -> list[bytes]:
    """The lines of a trail with these entries; `who` is anna where an entry names nobody."""
    lines: list[bytes] = []
    for fields in entries:
        lines.append(line_after(head_of(lines[-1] if lines else None), **fields))
    return lines


class KeptHere:
    """See TrailKeeper. `late` is added just before the next line, as by somebody else."""

    def __init__(self, lines: list[bytes] | None = None) -> None:
        self.lines = list(lines or [])
        self.late: list[dict[str, Any]] = []

    async def newest_of_trail(self) -> bytes | None:
        return self.lines[-1] if self.lines else None

    async def trail(self, after: int, limit: int) -> list[bytes]:
        return [line for line in self.lines if head_of(line).number > after][:limit]

    async def extend_trail(self, number: int, line: bytes) -> bool:
        self.lines += [line_after(head_of(await self.newest_of_trail()), **self.late.pop()) for _ in self.late[:1]]
        if number != head_of(await self.newest_of_trail()).number + 1:
            return False
        self.lines.append(line)
        return True


def kept_here(patch: pytest.MonkeyPatch, lines: list[bytes] | None = None) -> KeptHere:
    """The trail that commands read and write from now on."""
    kept = KeptHere(lines)

    @asynccontextmanager
    async def board(_: str) -> AsyncIterator[KeptHere]:
        yield kept

    patch.setattr(Config, "ledgers", lambda *_: SimpleNamespace(board=board))
    return kept
