"""Where runbooks are played: a real local cluster, and the words of their commands led to it.

`notary`, `psql`, `curl`, `jq` and Kafka's tools are the real ones. There is no service manager on a test machine, so
`systemctl` and `journalctl` are stand-ins that start, stop and signal the cluster's own processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from replica.config.load import load_config
from replica.local.cluster import LocalCluster
from replica.local.kafka import find_java, find_libs
from replica.local.postgres import PostgresServer, find_binaries
from replica.local.process import ServerFailed
from replica.local.replica import ReplicaProcess
from replica.log.raft.links import close_server
from tests.closing import ended
from tests.runbooks.pages import Block, read_page

BLOCK_MAX_S = 180.0
_ROOT = Path(__file__).parents[2]
_KAFKA_TOOLS_JARS = _ROOT / ".tools" / "kafka-tools" / "libs"
_KAFKA_TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-dump-log.sh": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-leader-election.sh": "org.apache.kafka.tools.LeaderElectionCommand",
}
_UNITS = (
    "notary@",
    "notary-log@",
    "kafka@",
    "postgresql@",
    "haproxy",
    "notary-archive",
    "notary-log-copy",
    "notary-tables",
)
_FOLLOWERS = {  # units, and the commands that they run
    "notary-archive": ("archive", "run"),
    "notary-log-copy": ("log", "copy"),
    "notary-tables": ("tables", "run", "--engine", "process"),  # a JVM would start at each step; the page is the same
}
Said = tuple[int, str]


class Stage:
    """Use it as `async with Stage(cluster, folder) as stage`, then `play` the sections of a runbook."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.variables: dict[str, str] = {}
        self.databases: dict[str, PostgresServer] = {"15-main": cluster.postgres}
        if cluster.postgres_standby is not None:
            self.databases["15-standby"] = cluster.postgres_standby
        self.played: set[tuple[str, int]] = set()
        self._folder = folder
        self._bin = folder / "bin"
        self._server: asyncio.Server | None = None
        self._followers: dict[str, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> Stage:
        self._bin.mkdir(parents=True, exist_ok=True)
        python = f"{sys.executable} -S" if sys.flags.no_site else sys.executable
        for name in ("systemctl", "journalctl"):
            self._script(name, f'exec {python} {_ROOT}/tests/runbooks/shim.py {name} "$@"')
        self._script("notary", f'exec {python} -m replica.cli "$@"')
        for name, main in _KAFKA_TOOLS.items() if self.cluster.log_kind == "kafka" else ():
            java = f"{find_java()} -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
            self._script(name, f'exec {java} -cp "{_KAFKA_TOOLS_JARS}/*:{find_libs()}/*" {main} "$@"')
        self._server = await asyncio.start_unix_server(self._answer, self._folder / "stage.sock")
        return self

    async def __aexit__(self, *_: object) -> None:
        for unit in list(self._followers):
            await self._stop_follower(unit)
        if self._server is not None:
            await close_server(self._server)

    async def play(self, page: str, section: str, part: str | None = None, **variables: str) -> str:
        """Run the commands of a section, or of one part of it, in order; returns what they printed.

        Raises AssertionError with the output when a block ends with a code that the page does not name.
        """
        return "".join([await self.run(page, block, variables) for block in self.blocks(page, section, part)])

    def blocks(self, page: str, section: str, part: str | None = None) -> list[Block]:
        """The commands of a section, or of one part of it. Raises AssertionError where there are none."""
        found = [
            block
            for block in read_page(page).blocks
            if block.section == section and (part is None or block.part == part)
        ]
        assert found, f"{page}.md has no commands in {section} {part or ''}"
        return found

    def admin(self) -> str:
        """Connection string of the administrator, to the notary's database."""
        return self.cluster.postgres.dsn("notary")

    def assert_all_played(self, page: str, elsewhere: str = "") -> None:
        """No command of a runbook is left untested; a part that excludes another one is played by another test."""
        due = [block for block in read_page(page).blocks if not elsewhere or block.part != elsewhere]
        left = [block for block in due if (page, block.line) not in self.played]
        assert not left, f"{page}.md: nothing runs the commands of line {left[0].line}:\n{left[0].text}"

    async def run(self, page: str, block: Block, variables: dict[str, str]) -> str:
        """Run one block, where a page's steps are for several machines; see `play`."""
        self.played.add((page, block.line))
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", block.text),
            env=self.environment(variables),
            cwd=self.cluster.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(BLOCK_MAX_S):
                printed, _ = await process.communicate()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await ended(process)
            raise AssertionError(
                f"{page}.md, line {block.line}: no end within {BLOCK_MAX_S:g} s\n{block.text}"
            ) from None
        text = printed.decode(errors="replace")
        where = f"{page}.md, line {block.line}"
        assert process.returncode in block.exit_codes, f"{where}: code {process.returncode}\n{block.text}\n---\n{text}"
        print(f"--- {where}\n{block.text}\n{text}")
        return text

    def environment(self, variables: dict[str, str]) -> dict[str, str]:
        """What a command of a runbook finds in its environment."""
        cluster = self.cluster
        database = conninfo_to_dict(cluster.postgres.dsn())
        return {
            **{name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR", "PYTHONPATH") if name in os.environ},
            "PATH": f"{self._bin}:{find_binaries()}:{os.environ['PATH']}",
            "STAGE_SOCKET": str(self._folder / "stage.sock"),
            "PGHOST": str(database["host"]),
            "PGPORT": str(database["port"]),
            "PGUSER": str(database["user"]),
            "PGPASSWORD": str(database["password"]),
            "PGDATABASE": "notary",
            "DATA": str(cluster.config.data_dir),
            "ENDPOINT": cluster.endpoint,
            "KAFKA": cluster.kafka.bootstrap_servers if cluster.log_kind == "kafka" else "",
            "TOPIC": cluster.topic,
            "HAPROXY_CFG": str(cluster.haproxy.config_path),
            **self.variables,
            **variables,
        }

    def _script(self, name: str, text: str) -> None:
        path = self._bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    # ---- the service manager ----

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tool, *words = json.loads(await reader.readline())
        try:
            code, text = await (self._systemctl(words) if tool == "systemctl" else self._journalctl(words))
        except Exception as error:  # the script gets the error, and fails there
            code, text = 1, f"{error}\n"
        writer.write(json.dumps({"code": code, "text": text}).encode() + b"\n")
        writer.close()

    async def _systemctl(self, words: list[str]) -> Said:
        options = {word.split("=")[0]: word for word in words if word.startswith("-")}
        verb, *units = [word for word in words if not word.startswith("-")]
        for unit in units:
            if not unit.startswith(_UNITS):
                return 5, f"Unit {unit}.service not found.\n"
            act = self._actions(unit).get(verb)
            if act is None:
                return 1, f"{unit} knows no {verb}\n"
            if verb == "kill" and options.get("--signal") != "--signal=SIGKILL":
                return 1, "only --signal=SIGKILL is played here\n"
            code, text = await act()
            if code:
                return code, text
        return 0, ""

    def _actions(self, unit: str) -> dict[str, Callable[[], Awaitable[Said]]]:
        kind, _, name = unit.partition("@")
        if kind == "notary":
            return self._replica_actions(name)
        if kind == "notary-log":
            return self._log_node_actions(name)
        if kind == "haproxy":
            return self._haproxy_actions()
        if kind in _FOLLOWERS:
            return {
                "restart": _done(lambda: self._restart_follower(kind)),
                "stop": _done(lambda: self._stop_follower(kind)),
            }
        if kind == "kafka":
            broker = next(one for one in self.cluster.kafka.brokers if str(one.node_id) == name)
            return {"start": _done(lambda: _start_broker(broker)), "stop": _done(lambda: broker.process.stop(20.0))}
        server = self.databases[name]
        return {"start": _done(server.start), "stop": _done(server.stop), "is-active": _is(_runs(server))}

    def _replica_actions(self, name: str) -> dict[str, Callable[[], Awaitable[Said]]]:
        async def start() -> None:
            self._replica(name).start()

        async def stop() -> None:
            await self._replica(name).stop()

        async def kill() -> None:
            self._replica(name).kill_group()

        async def reload() -> None:
            os.kill(self._replica(name).pid, signal.SIGHUP)

        async def restart() -> None:
            await stop()
            await start()

        return {
            "start": _done(start),
            "stop": _done(stop),
            "restart": _done(restart),
            "kill": _done(kill),
            "reload": _done(reload),
            "is-active": _is(lambda: self._replica(name).running),
        }

    def _log_node_actions(self, name: str) -> dict[str, Callable[[], Awaitable[Said]]]:
        node = self.cluster.log_nodes[name]

        async def start() -> None:
            node.start()

        return {"start": _done(start), "stop": _done(node.stop), "is-active": _is(lambda: node.running)}

    def _haproxy_actions(self) -> dict[str, Callable[[], Awaitable[Said]]]:
        haproxy = self.cluster.haproxy

        async def restart() -> None:
            await haproxy.stop()
            await haproxy.start()

        return {
            "start": _done(haproxy.start),
            "stop": _done(haproxy.stop),
            "restart": _done(restart),
            "reload": _done(haproxy.take_over),
            "is-active": _is(lambda: haproxy.process.running),
        }

    async def _restart_follower(self, unit: str) -> None:
        await self._stop_follower(unit)
        with self._follower_log(unit).open("ab") as log:
            self._followers[unit] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "replica.cli", *_FOLLOWERS[unit], "--follow"),
                cwd=self.cluster.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _stop_follower(self, unit: str) -> None:
        running = self._followers.pop(unit, None)
        if running is not None:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(running.pid, signal.SIGKILL)  # Spark's Java as well
            await ended(running)

    def _follower_log(self, unit: str) -> Path:
        return self._folder / f"{unit}.log"

    def _replica(self, name: str) -> ReplicaProcess:
        """The replica, also one that was added to the configuration since."""
        cluster = self.cluster
        if name not in cluster.replicas:
            cluster.config = load_config(cluster.config_path)
            address = cluster.config.replica(name)
            folder = cluster.config.replica_dir(name)
            cluster.replicas[name] = ReplicaProcess(address, cluster.config_path, folder, lambda part, text: None)
        return cluster.replicas[name]

    async def _journalctl(self, words: list[str]) -> Said:
        unit = words[words.index("-u") + 1]
        kind, _, name = unit.partition("@")
        if kind == "haproxy":
            return 0, self.cluster.haproxy.process.log_tail() + "\n"
        if kind in _FOLLOWERS:
            log = self._follower_log(kind)
            return 0, log.read_text() if log.exists() else ""
        return 0, self._replica(name).log_tail() + "\n"


def _done(act: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Said]]:
    async def run() -> Said:
        await act()
        return 0, ""

    return run


def _is(holds: Callable[[], bool]) -> Callable[[], Awaitable[Said]]:
    async def run() -> Said:
        return (0, "active\n") if holds() else (3, "inactive\n")

    return run


def _runs(server: PostgresServer) -> Callable[[], bool]:
    def running() -> bool:
        try:
            return server.process.running
        except ServerFailed:
            return False

    return running


async def _start_broker(broker: Any) -> None:
    """As a unit starts: nobody waits for it, because a broker is ready only once a second one runs."""
    if not broker.process.running:
        broker.process.start()
