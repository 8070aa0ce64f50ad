"""Who may call the admin listener: an account, a group, and nobody else."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from replica.notary.errors import ConfigError
from replica.operators.admin import AdminListener
from replica.operators.callers import Caller, may_operate
from tests.steering import steering_of_nobody

OWN, GROUP = 10_001, 10_002
NOBODY = pwd.getpwnam("nobody")
ASK = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(20)
try:
    connection.connect(sys.argv[1])
except PermissionError:
    print("closed")
    sys.exit()
connection.sendall(b"GET /admin/v1/status HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n")
print(connection.recv(4096).decode())
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT PLAYED: another account takes root")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that every account may enter."""
    with tempfile.TemporaryDirectory(prefix="admin-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


async def asked_as(uid: int, gid: int, path: Path) -> str:
    """What a process of this account is answered; "closed": it cannot connect."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-Sc", ASK, str(path), stdout=asyncio.subprocess.PIPE, user=uid, group=gid, extra_groups=[]
    )
    printed, _ = await process.communicate()
    return printed.decode().strip()


@as_root
async def test_another_account_is_refused(folder: Path) -> None:
    """Goal: an account on the machine is no operator. Method: root and nobody, at the socket as it is made; nobody
    again after somebody opened it to all."""
    path = folder / "admin.sock"
    listener = AdminListener(steering_of_nobody(), dict, (), path)
    await listener.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "200 OK" in await asked_as(0, 0, path)
    assert await asked_as(NOBODY.pw_uid, NOBODY.pw_gid, path) == "closed"
    path.chmod(0o666)
    refused = await asked_as(NOBODY.pw_uid, NOBODY.pw_gid, path)
    assert ("403 Forbidden" in refused, '"code":"NOT_AN_OPERATOR"' in refused) == (True, True), refused
    await listener.stop()


@as_root
async def test_a_group_may_be_let_in(folder: Path) -> None:
    """Goal: operators with accounts of their own. Method: the group of nobody; nobody in it, then in another one."""
    path, other = folder / "admin.sock", NOBODY.pw_gid + 1
    listener = AdminListener(steering_of_nobody(), dict, (), path, grp.getgrgid(NOBODY.pw_gid).gr_name)
    await listener.start()
    found = path.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, NOBODY.pw_gid)
    assert "200 OK" in await asked_as(NOBODY.pw_uid, NOBODY.pw_gid, path)
    assert await asked_as(10_999, other, path) == "closed"
    await listener.stop()


def test_who_may_operate() -> None:
    """Goal: the rule itself. Method: each kind of caller, with a group and without."""
    member, own, stranger = Caller(1, 4_000_000, GROUP), Caller(1, OWN, 1), Caller(1, 4_000_000, 4_000_001)
    assert [may_operate(one, OWN, None) for one in (Caller(1, 0, 0), own, member, stranger)] == [
        True,
        True,
        False,
        False,
    ]
    assert [may_operate(one, OWN, GROUP) for one in (own, member, stranger)] == [True, True, False]


async def test_what_cannot_be_a_socket_is_said(folder: Path) -> None:
    """Goal: a start that cannot succeed says why. Method: a path too long; no such folder; no such group."""
    for path, group, says in (
        (folder / ("x" * 120), None, "at most 107 bytes"),
        (folder / "none" / "admin.sock", None, "No such file"),
        (folder / "admin.sock", "no-such-group", "no group"),
    ):
        with pytest.raises(ConfigError, match=says):
            await AdminListener(steering_of_nobody(), dict, (), path, group).start()
