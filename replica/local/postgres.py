"""A real Postgres server of our own on loopback: made when absent, reused when present, durable, password-protected."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pwd
import secrets
import shutil
import signal
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from replica.local.machine import THIS_MACHINE, Machine
from replica.local.process import Command, ManagedProcess, ServerFailed, SoftwareMissing, run_to_end

SERVER_ACCOUNT = "postgres"  # Debian's package makes it; initdb and the server refuse to run as root
SUPERUSER = "postgres"
UNREACHABLE_HOME = Path("/var/lib/replicated-notary")  # where data goes that the account could not reach otherwise
INITDB_MAX_S = 60.0
READY_MAX_S = 60.0
CONNECT_TIMEOUT_S = 5
# Durable, whatever a configuration file says: the notary refuses a server that may forget a commit.
SETTINGS: Mapping[str, str] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "unix_socket_directories": "",
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%a %u@%d ",
}


class PostgresServer:
    """One server in `folder`: its data, its log and its superuser's password.

    Run by root, the server runs as the account `postgres`. Where that account cannot reach the folder, the data is
    kept in /var/lib/replicated-notary and `folder/data` is a link to it.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        settings: Mapping[str, str] | None = None,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        self.folder = folder.absolute()
        self.machine = machine
        self.port = port
        self.log_path = self.folder / "postgres.log"
        self._password_path = self.folder / "superuser.password"
        self._settings = {**SETTINGS, "listen_addresses": machine.address, "port": str(port), **(settings or {})}
        self._account = SERVER_ACCOUNT if os.geteuid() == 0 else None
        self._process: ManagedProcess | None = None

    @property
    def process(self) -> ManagedProcess:
        """The running server, for faults on purpose. Raises ServerFailed before `start`."""
        if self._process is None:
            raise ServerFailed("the Postgres server was not started")
        return self._process

    async def start(self) -> None:
        """Make the data folder if there is none, start the server, wait until it answers. Raises ServerFailed."""
        binaries = find_binaries()
        data = self._data_folder()
        if not data.exists():
            await self._initialise(binaries, data)
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        _drop_stale_lock(data)
        command = self._command("postgres", [str(binaries / "postgres"), "-D", str(data), *options])
        self._process = ManagedProcess(command)
        self._process.start()
        await self._process.wait_ready(self._answers, READY_MAX_S)

    async def start_standby_of(self, primary: PostgresServer, name: str) -> None:
        """Start as a streaming standby of a running server, whose data is copied if there is none. Raises ServerFailed.

        `name`: its name at the primary, see `require_standby`.
        """
        data = self._data_folder()
        if not data.exists():
            partial = data.with_name("data.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(mode=0o700)
            self._give(partial)
            _write_secret(self._password_path, primary._superuser_password())
            source = make_conninfo(primary.dsn(), host=primary.machine.address, application_name=name)
            argv = [str(find_binaries() / "pg_basebackup"), f"--pgdata={partial}", f"--dbname={source}"]
            argv += ["--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream"]
            await run_to_end(self._command("pg_basebackup", argv), INITDB_MAX_S)
            partial.rename(data)
        await self.start()

    async def require_standby(self, name: str) -> None:
        """From now on a commit returns only when this standby has it on disk."""
        await self._execute(sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(sql.Literal(name)))
        await self._execute(sql.SQL("SELECT pg_reload_conf()"))

    async def promote(self) -> None:
        """Make a standby a primary, one that waits for no standby of its own; returns once it takes writes."""
        await self._execute(sql.SQL("ALTER SYSTEM SET synchronous_standby_names = ''"))
        await self._execute(sql.SQL("SELECT pg_reload_conf()"))
        await self._execute(sql.SQL("SELECT pg_promote(wait => true)"))

    async def stop(self, *, immediate: bool = False) -> None:
        """Fast shutdown (sessions are ended, a checkpoint is written) or, when immediate, as if it had crashed."""
        if self._process is not None:
            await self._process.stop(first=signal.SIGQUIT if immediate else signal.SIGINT)

    def freeze(self) -> None:
        """Stop every process of the server where it is, as if its machine hung; the kernel still answers for them."""
        self.process.signal_tree(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server run on."""
        self.process.signal_tree(signal.SIGCONT)

    async def kill(self) -> None:
        """End every process of the server at once, as if its machine lost power, but for the disk cache."""
        await self.process.kill()

    async def remove(self) -> None:
        """Stop the server and delete everything it kept."""
        await self.stop(immediate=True)
        data = self.folder / "data"
        if data.is_symlink():
            shutil.rmtree(data.resolve().parent, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def dsn(self, database: str = "postgres", user: str = SUPERUSER, password: str | None = None) -> str:
        """A libpq connection string; without a password it is the superuser's own."""
        secret = self._superuser_password() if password is None else password
        return make_conninfo(host=self.machine.address, port=self.port, dbname=database, user=user, password=secret)

    async def ensure_role(self, name: str, password: str) -> None:
        """Create a role that may log in and nothing else, or give an existing one this password."""
        role = sql.Identifier(name)
        if not await self._exists("SELECT 1 FROM pg_roles WHERE rolname = %s", name):
            await self._execute(sql.SQL("CREATE ROLE {}").format(role))
        await self._execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(password)))

    async def ensure_database(self, name: str, owner: str) -> None:
        """Create a database that only its owner may connect to, unless it is there."""
        if await self._exists("SELECT 1 FROM pg_database WHERE datname = %s", name):
            return
        database, role = sql.Identifier(name), sql.Identifier(owner)
        await self._execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(database, role))
        await self._execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(database))

    async def run_script(self, script: bytes, database: str) -> None:
        """Run SQL in a database as the superuser, all of it or nothing. Raises psycopg.Error."""
        async with await psycopg.AsyncConnection.connect(self.dsn(database)) as connection:
            await connection.execute(script)

    async def drop_database(self, name: str) -> None:
        """Delete a database, ending the sessions that use it; nothing happens if it is not there."""
        await self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _command(self, name: str, argv: list[str]) -> Command:
        # SIGQUIT is Postgres's immediate shutdown: the children are ended as well and shared memory is freed.
        return Command(
            name=name,
            argv=argv,
            log_path=self.log_path,
            user=self._account,
            cwd=Path("/"),
            enter=self.machine.enter,
            death_signal=signal.SIGQUIT,
        )

    async def _initialise(self, binaries: Path, data: Path) -> None:
        """Make the data folder beside its final place and rename it when complete, so that half of one is never run."""
        partial, hand_over = data.with_name("data.partial"), data.with_name("data.password")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        password = secrets.token_urlsafe(24)
        _write_secret(self._password_path, password)
        _write_secret(hand_over, password)  # initdb reads it as the account that it runs as
        self._give(partial)
        self._give(hand_over)
        argv = [str(binaries / "initdb"), f"--pgdata={partial}", f"--username={SUPERUSER}", "--auth=scram-sha-256"]
        argv += [f"--pwfile={hand_over}", "--encoding=UTF8", "--no-locale", "--data-checksums", "--no-instructions"]
        try:
            await run_to_end(self._command("initdb", argv), INITDB_MAX_S)
        finally:
            hand_over.unlink()
        if self.machine.network is not None:
            with (partial / "pg_hba.conf").open("a") as rules:
                for database in ("all", "replication"):
                    rules.write(f"host {database} all {self.machine.network} scram-sha-256\n")
        partial.rename(data)

    def _data_folder(self) -> Path:
        """Where the data is or shall be: inside `folder`, unless the server's account cannot get there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        link = self.folder / "data"
        if self._account and not link.exists() and not reachable(self.folder, self._account):
            elsewhere = UNREACHABLE_HOME / hashlib.sha256(str(self.folder).encode()).hexdigest()[:16]
            elsewhere.mkdir(mode=0o755, parents=True, exist_ok=True)
            link.unlink(missing_ok=True)  # a link whose target was deleted
            link.symlink_to(elsewhere / "data")
        return link.resolve()

    def _give(self, path: Path) -> None:
        if self._account:
            entry = pwd.getpwnam(self._account)
            os.chown(path, entry.pw_uid, entry.pw_gid)

    def _superuser_password(self) -> str:
        return self._password_path.read_text()

    async def _answers(self) -> bool:
        try:
            await self._execute(sql.SQL("SELECT 1"))
        except psycopg.OperationalError:
            return False
        return True

    async def _execute(self, statement: sql.SQL | sql.Composed) -> None:
        async with await self._connect() as connection:
            await connection.execute(statement)

    async def _exists(self, query: str, name: str) -> bool:
        async with await self._connect() as connection:
            cursor = await connection.execute(query.encode(), (name,))
            return await cursor.fetchone() is not None

    async def sessions(self) -> str:
        """A text for people: the activity and age of each client's session, and the holders of advisory locks."""
        query: LiteralString = """
            SELECT concat_ws('  ', a.pid, a.application_name, a.state, a.wait_event, clock_timestamp() - a.state_change,
                             CASE WHEN l.pid IS NOT NULL THEN 'HOLDS THE LOCK' END)
              FROM pg_stat_activity a LEFT JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'advisory' AND l.granted
             WHERE a.backend_type IN ('client backend', 'walsender') ORDER BY a.application_name, a.pid
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S), await self._connect() as connection:
                lines = await (await connection.execute(query)).fetchall()
        except (psycopg.Error, TimeoutError) as error:
            return f"the database does not show its sessions: {str(error).strip() or 'no answer'}"
        return "\n".join(str(line) for (line,) in lines)

    async def _connect(self) -> psycopg.AsyncConnection[tuple[object, ...]]:
        return await psycopg.AsyncConnection.connect(self.dsn(), autocommit=True, connect_timeout=CONNECT_TIMEOUT_S)


def _drop_stale_lock(data: Path) -> None:
    """Remove what a server that is gone left: Postgres takes any process that has its number by now for it."""
    lock = data / "postmaster.pid"
    try:
        number = int(lock.read_text().split(maxsplit=1)[0])
        folder = Path(f"/proc/{number}/cwd").readlink()  # a server's is its data folder
    except (OSError, ValueError, IndexError):
        return  # no lock; or no such process, or none of this account: Postgres sees that itself
    if folder != data:
        lock.unlink(missing_ok=True)


def find_binaries(root: Path = Path("/usr/lib/postgresql")) -> Path:
    """The folder with a server's programs: $NOTARY_POSTGRES_BIN, else the newest installed. Raises SoftwareMissing."""
    configured = os.environ.get("NOTARY_POSTGRES_BIN")
    if configured:
        if not Path(configured, "initdb").exists():
            raise SoftwareMissing(f"no Postgres server in {configured}, which NOTARY_POSTGRES_BIN names")
        return Path(configured)
    found = [path.parent for path in root.glob("*/bin/initdb") if path.parts[-3].isdecimal()]
    if found:
        return max(found, key=lambda path: int(path.parts[-2]))
    on_path = shutil.which("initdb")
    if on_path is None:
        raise SoftwareMissing("no Postgres server; Debian's package is `postgresql`")
    return Path(on_path).resolve().parent


def reachable(folder: Path, account: str) -> bool:
    """True if `account` may enter every folder on the way to `folder`."""
    entry = pwd.getpwnam(account)
    groups = set(os.getgrouplist(account, entry.pw_gid))
    return all(may_enter(part.stat(), entry.pw_uid, groups) for part in (folder.resolve(), *folder.resolve().parents))


def may_enter(info: os.stat_result, uid: int, groups: set[int]) -> bool:
    """True if the folder's mode lets this account pass through it."""
    if info.st_uid == uid:
        return bool(info.st_mode & stat.S_IXUSR)
    if info.st_gid in groups:
        return bool(info.st_mode & stat.S_IXGRP)
    return bool(info.st_mode & stat.S_IXOTH)


def _write_secret(path: Path, secret: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secret)
