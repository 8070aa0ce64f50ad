"""What people call each kind of request log, and what they do about it: for programs that report on any of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWords:
    """The nouns, and the remedies that end a finding. Each kind of settings has its own as `words`."""

    log: str
    server: str  # what keeps a copy of the log
    servers: str
    reach: str  # when no server answers
    copies: str  # when there are too few servers
    create: str  # when there is no log yet
    repair: str  # when the log breaks its contract
    protect: str  # when one command would delete the log
    restore: str  # when records are gone
    page: str  # where people read on
    servers_least: int = 3  # with fewer, a lost disk takes acknowledged requests with it
    database_sessions: int = 0  # of one replica, where the log is in the database
