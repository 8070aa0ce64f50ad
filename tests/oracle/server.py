"""The database: sessions, user locks, and what the V$ views say of them. Attributes switch faults on."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ha.clock import Clock
from tests.oracle.tables import OracleError, carry_out, open_tables

KILLED = (28, "your session has been killed")
IDLE = (2396, "exceeded maximum idle time, please connect again")
ENDED = (3113, "end-of-file on communication channel")
CONTACT_LOST = (3135, "connection lost contact")
NOT_LOGGED_ON = (1012, "not logged on")
LOCK_TIMEOUT = (4021, "timeout occurred while waiting to lock object SYS.DBMS_LOCK")
NO_TABLE = (942, "table or view does not exist")
NO_PACKAGE = (6550, "line 2, column 16:\nPLS-00201: identifier 'SYS.DBMS_LOCK' must be declared")

_NAME = re.compile(r"/\* (?:ha|notary)\.([\w.]+) \*/")


@dataclass
class Call:
    """One call as the server got it. `rows`: the values of each iteration."""

    session: str
    name: str
    text: str
    rows: list[dict[str, Any]]
    commit: bool


@dataclass(eq=False)
class Session:
    """One session. `ended` is why it is over, reported with its next call."""

    sid: int
    idle_since_s: float
    tables: sqlite3.Connection
    name: str = ""
    ended: tuple[int, str] | None = None


class OracleServer:
    """One database, one schema."""

    def __init__(self, clock: Clock, folder: Path, *, idle_limit_s: float = 60.0) -> None:
        self.accepts = True
        self.user = self.schema = "NOTARY"
        self.proxy: str | None = None
        self.server_process = "DEDICATED"
        self.role, self.open_mode = "PRIMARY", "READ WRITE"
        self.sid_shift = 0  # what a pool in between makes of session numbers
        self.idle_time = "1"
        self.parameters = {"resource_limit": "TRUE", "max_idle_time": "0"}
        self.ahead_s = 0.0
        self.failures: dict[str, list[tuple[int, str]]] = defaultdict(list)  # by statement: raised instead, once each
        self.results: dict[str, list[int]] = defaultdict(list)  # by statement: what DBMS_LOCK answers instead
        self.stalled: set[str] = set()  # statements that are carried out and never answered
        self.notes: dict[int, tuple[int, str, str | None, Session]] = {}  # releases; by, for, where
        self.locks: dict[int, Session] = {}
        self.calls: list[Call] = []
        self.breaks = 0  # how often the driver was made to cancel a statement
        self.sessions: list[Session] = []
        self._clock = clock
        self._idle_limit_s = idle_limit_s
        self._path = folder / "tables.sqlite"
        self._answers: dict[str, Callable[[Session, Mapping[str, Any]], Any]] = {
            "lock.prepare": lambda session, values: None,
            "lock.check": self._check,
            "lock.profile": lambda session, values: [(self.idle_time,)],
            "lock.parameters": lambda session, values: list(self.parameters.items()),
            "lock.request": self._request,
            "lock.look": self._look,
            "lock.note": self._note,
            "lock.release": self._give_back,
            "lock.identity": lambda session, values: [("4711", 925702)],
            "migration_lock": self._request,
        }

    def connect(self) -> Session:
        """A new session."""
        if not self.accepts:
            raise OracleError(12514, "Cannot connect to database. Service notary is not registered with the listener.")
        session = Session(len(self.sessions) + 101, self._clock.boottime_s(), open_tables(self._path))
        self.sessions.append(session)
        return session

    def end(self, session: Session, reason: tuple[int, str] = ENDED) -> None:
        """A session is over: its locks are free, its transaction is undone."""
        if session.ended is None:
            session.ended = reason
            self.locks = {number: holder for number, holder in self.locks.items() if holder is not session}
            session.tables.close()

    def session_of(self, name: str) -> Session:
        """The newest session of a replica."""
        return next(session for session in reversed(self.sessions) if session.name == name)

    def carry_out(self, session: Session, text: str, rows: list[dict[str, Any]], commit: bool) -> Any:
        """One call: rows of a query, values of a block's variables, or None. Raises OracleError."""
        name = name_of(text)
        self.calls.append(Call(session.name, name, text, rows, commit))
        self._expire()
        if session.ended is not None:
            raise OracleError(*session.ended)
        session.idle_since_s = self._clock.boottime_s()
        if self.failures[name]:
            failure = self.failures[name].pop(0)
            if failure[0] in {28, 1012, 2396, 3113, 3135}:
                self.end(session, failure)
            raise OracleError(*failure)
        if name in self._answers:
            return self._answers[name](session, rows[0])
        answer = None
        for row in rows:
            answer = carry_out(session.tables, text, row)
        if commit and session.tables.in_transaction:
            session.tables.execute("COMMIT")
        return answer

    def now(self) -> datetime:
        """The server's wall clock, UTC."""
        wall = datetime.fromtimestamp(self._clock.wall_us() / 1e6, UTC) + timedelta(seconds=self.ahead_s)
        return wall.replace(tzinfo=None)

    def named(self, name: str) -> list[Call]:
        """The calls of one statement so far."""
        return [call for call in self.calls if call.name == name]

    def _expire(self) -> None:
        for session in self.sessions:
            if self._clock.boottime_s() - session.idle_since_s >= self._idle_limit_s:
                self.end(session, IDLE)

    def _check(self, session: Session, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        context = (self.user, self.schema, self.proxy, session.sid + self.sid_shift)
        return [(*context, self.server_process, self.role, self.open_mode, self.now())]

    def _request(self, session: Session, values: Mapping[str, Any]) -> dict[str, Any]:
        """DBMS_LOCK.REQUEST of an exclusive lock: 0 granted, 1 timeout, 4 already own, or what is scripted."""
        holder = self.locks.get(values["id"])
        self.locks.setdefault(values["id"], session)
        result = 0 if holder is None else 4 if holder is session else 1
        return {"result": self._scripted("request", result), "role": self.role, "wall": self.now()}

    def _give_back(self, session: Session, values: Mapping[str, Any]) -> dict[str, Any]:
        """DBMS_LOCK.RELEASE: 0 done, 4 not owned."""
        owned = self.locks.get(values["id"]) is session
        if owned:
            del self.locks[values["id"]]
        return {"result": self._scripted("release", 0 if owned else 4)}

    def _note(self, session: Session, values: Mapping[str, Any]) -> dict[str, Any]:
        releases = self.notes[values["id"]][0] if values["id"] in self.notes else 0
        self.notes[values["id"]] = (releases + 1, values["name"], values["peer"], session)
        return {}

    def _look(self, session: Session, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        holder, note = self.locks.get(values["id"]), self.notes.get(values["id"])
        who = (None,) * 4 if holder is None else (holder.sid, holder.name, "NOTARY", "machine-1")
        noted = (None, None, None) if note is None else note[:3]
        releasing = int(holder is not None and note is not None and note[3] is holder)
        return [(*who, *noted, releasing, self.role, self.now())]

    def _scripted(self, call: str, result: int) -> int:
        return self.results[call].pop(0) if self.results[call] else result


def name_of(text: str) -> str:
    """The name that a statement carries; its first words if it has none."""
    found = _NAME.match(text)
    return found[1] if found else " ".join(text.split()[:3])
