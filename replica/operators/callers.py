"""Who may call the admin listener: the account that the replica runs as, root, and members of one group.

The kernel refuses others already, by the socket's mode; who it is, it tells for each connection. So a folder or a mode
that somebody has widened opens nothing.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct
from dataclasses import dataclass

from replica.notary.errors import ConfigError

_CREDENTIALS = struct.Struct("3i")  # struct ucred, unix(7)


@dataclass(frozen=True, slots=True)
class Caller:
    """The process at the other end of a Unix socket, as it was when it connected."""

    pid: int
    uid: int
    gid: int


def caller_of(connection: socket.socket) -> Caller:
    """Who connected. Raises OSError."""
    return Caller(*_CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)))


def may_operate(caller: Caller, own_uid: int, group_id: int | None) -> bool:
    """Whether this caller may watch and steer. `group_id`: whose members may as well."""
    return caller.uid in (0, own_uid) or (group_id is not None and group_id in _groups_of(caller))


def group_id_of(name: str) -> int:
    """The group of that name. Raises ConfigError."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"admin.group: this machine has no group {name!r}") from None


def _groups_of(caller: Caller) -> set[int]:
    try:
        account = pwd.getpwuid(caller.uid)
    except KeyError:  # an account without a name is in the one group that the kernel tells
        return {caller.gid}
    return {caller.gid, *os.getgrouplist(account.pw_name, account.pw_gid)}
