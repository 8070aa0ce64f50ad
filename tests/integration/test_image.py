"""The page of the compose file, played without an engine: the Containerfile's steps, and containers in namespaces."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from replica.local.kafka import KafkaCluster
from replica.local.machine import Machine
from replica.local.ports import PortReservation
from replica.local.postgres import PostgresServer
from replica.local.process import SoftwareMissing
from tests.certificates import Authority
from tests.faults.lab.namespaces import Namespaces
from tests.image import Container, Image, build, missing_programs
from tests.tokens import Issuer
from tests.unit.client.test_access import write
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy/container"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text())
REPLICAS = ("r1", "r2", "r3")
HAPROXY_USER = "99:99"  # of HAProxy's official image
PARTY = "O=Bank A,L=London,C=GB"
CONFIG = ("--config", "/etc/notary/notary.toml")
PAGE = (DEPLOY / "README.md").read_text().partition("## Three replicas by compose\n")[2]
LINES = re.findall(r"^ *(podman compose .*)$", PAGE, re.MULTILINE)
PREPARING = re.findall(r"^ *(ch(?:own|mod) .*)$", PAGE, re.MULTILINE)
BUILD_MAX_S, BEGIN_MAX_S, TOKEN_LIFE_S = 180.0, 90.0, 3_600.0

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]


@contextmanager
def network() -> Iterator[Namespaces]:
    """A machine for each container and for the servers; the test is left out, loudly, where that cannot be."""
    if lacking := missing_programs():
        pytest.skip(f"NO CONTAINER WAS TRIED: this needs {', '.join(lacking)}")
    made = Namespaces((*REPLICAS, "haproxy", "db", "broker"))
    try:
        made.start()
    except SoftwareMissing as error:
        pytest.skip(f"NO CONTAINER WAS TRIED: {error}")
    try:
        yield made
    finally:
        made.stop()


def built_image(folder: Path) -> Image:
    """The image, from a wheel of this clone."""
    context = folder / "context"
    context.mkdir()
    (context / "deploy").symlink_to(ROOT / "deploy")
    argv = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(context / "dist"), str(ROOT)]
    subprocess.run(argv, check=True, capture_output=True, timeout=BUILD_MAX_S)
    return build(DEPLOY / "Containerfile", context, folder / "image")


def cli(*words: str | Path) -> str:
    """A command of this clone, as an application's developer has it."""
    argv = [sys.executable, "-m", "replica.cli", *map(str, words)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=BEGIN_MAX_S, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


def prepare_site(site: Path, endpoint: str, database: tuple[str, int], brokers: str, password: str) -> None:
    """The folder of the compose file, with what the page leaves to the operator: addresses, keys, certificates."""
    shutil.copytree(DEPLOY, site)
    text = (site / "notary.toml").read_text()
    host, port = database
    for pattern, value in (
        (r'conninfo = ".*"', f'conninfo = "host={host} port={port} dbname=notary user=notary"'),
        (r'bootstrap_servers = ".*"', f'bootstrap_servers = "{brokers}"'),
        (r"security = \{.*\}", 'security = {protocol = "PLAINTEXT"}'),
        (r"sources = \[.*\]", f'sources = ["{endpoint}/32"]'),
    ):
        text, count = re.subn(pattern, value, text)
        assert count == 1, pattern
    (site / "notary.toml").write_text(text)
    (site / "database.password").write_text(password)
    cli("keys", "create", site / "notary.key")
    officer, bank = (cli("keys", "create", site / f"{name}.key").strip() for name in ("officer", "bank-a"))
    (site / "operators.toml").write_text(f'[[operators]]\nname = "anna"\npublic_key = "{officer}"\n')
    (site / "parties.toml").write_text(f'[parties]\n"{PARTY}" = ["{bank}"]\n')
    authority = Authority(site, "ca")
    authority.issue("api", endpoint)
    issuer = Issuer()
    issuer.write(site / "issuer.pem")
    write(site / "token", issuer.token(expires_at_s=time.time() + TOKEN_LIFE_S, notary={"act_as": [PARTY]}))
    for name in ("database-ca.pem", "kafka-ca.pem"):
        shutil.copy(authority.ca_file, site / name)
    assert len(PREPARING) == 2
    for line in PREPARING:
        subprocess.run(shlex.split(line), cwd=site, check=True)


def answers(url: str) -> int:
    """The status of an answer over HTTP; 0: none."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


class Deployment:
    """The compose file's services, each on a machine of its own."""

    def __init__(self, image: Image, site: Path, made: Namespaces) -> None:
        self.addresses = {name: made.machine(name).address for name in (*REPLICAS, "haproxy")}
        self.endpoint = (
            f"https://{self.addresses['haproxy']}:{COMPOSE['services']['haproxy']['ports'][0].split(':')[0]}"
        )
        self.site = site
        hosts = "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in self.addresses.items())

        def container(name: str) -> Container:
            return Container(image, COMPOSE, name, site, made.machine(name).enter, hosts)

        self.replicas = {name: container(name) for name in REPLICAS}
        self._load_balancer = partial(container, "haproxy")  # its configuration is rendered by a replica's image
        self._running = list[Container]()

    def kill(self) -> None:
        """End what still runs."""
        for one in self._running:
            one.kill()

    async def play(self, line: str) -> str:
        """A line of the page, as the engine would; what it printed. The active stands in for the page's."""
        match shlex.split(line):
            case ["podman", "compose", "run", "--rm", name, *words, ">", file]:
                (self.site / file).write_text(await asyncio.to_thread(self.replicas[name].once, *words))
                return ""
            case ["podman", "compose", "run", "--rm", name, *words]:
                return await asyncio.to_thread(self.replicas[name].once, *words)
            case ["podman", "compose", "exec", "-T", _, *words, "<", file]:
                active, given = self.replicas[await self.settled()], (self.site / file).read_bytes()
                return await asyncio.to_thread(active.execute, *words, given=given)
            case ["podman", "compose", "exec", _, *words]:
                return await asyncio.to_thread(self.replicas[await self.settled()].execute, *words)
            case ["podman", "compose", "up", "-d"]:
                await self.begin()
                return ""
        raise AssertionError(f"{line}: not a command that is known here")

    def active(self) -> str | None:
        """The replica that is active now; None: none, or more than one."""
        found = [name for name in REPLICAS if answers(f"http://{self.addresses[name]}:8082/health/active") == 200]
        return found[0] if len(found) == 1 else None

    async def begin(self) -> None:
        """As `podman compose up`; returns once every health check is good, and a replica is active."""
        balancer = self._load_balancer()
        self._running = [*self.replicas.values(), balancer]
        for replica in self.replicas.values():
            replica.start()
        balancer.start(["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"], HAPROXY_USER)
        for replica in self.replicas.values():
            await eventually(partial(asyncio.to_thread, replica.is_healthy), BEGIN_MAX_S)
        await self.settled()

    async def settled(self) -> str:
        """The active, once there is one and the others could take over."""
        ready = [f"http://{address}:8082/health/ready" for name, address in self.addresses.items() if name in REPLICAS]

        async def all_well() -> bool:
            return self.active() is not None and all([await asyncio.to_thread(answers, url) == 200 for url in ready])

        await eventually(all_well, BEGIN_MAX_S)
        return self.active() or ""

    async def try_it(self) -> None:
        """A transaction through the endpoint, its receipt, and the refusal of a second one."""
        words = ("--key", self.site / "bank-a.key", "--ca-file", self.site / "ca.pem", "--endpoint", self.endpoint)
        words += ("--token-file", self.site / "token")
        assert "STATE_CONFLICT" in await asyncio.to_thread(cli, "try", *words, "--party", PARTY)

    def logs(self) -> str:
        """The end of what each of them printed."""
        return "".join(f"--- {one.name}\n{one.log.read_text()[-3000:]}" for one in self._running if one.log.exists())


async def test_the_image_s_replicas_serve_and_hand_over(servers_folder: Path, ports: PortReservation) -> None:
    """Goal: containers that start, are called healthy when they are, serve, hand over and stop in order. Method: the
    Containerfile's steps; then the page's commands, each service in namespaces of its own, on real servers."""
    folder = servers_folder / "image"
    folder.mkdir()
    with network() as made:
        database = PostgresServer(folder / "db", ports.take(), machine=made.machine("db"))
        places: list[Machine] = [made.machine("broker")] * 3
        kafka = KafkaCluster(folder / "kafka", [ports.take() for _ in range(6)], machines=places)
        image = await asyncio.to_thread(built_image, folder)
        deployment = None
        try:
            await asyncio.gather(database.start(), kafka.start())
            await database.ensure_role("notary", "a password")
            await database.ensure_database("notary", "notary")
            site, where = folder / "site", (database.machine.address, database.port)
            prepare_site(site, made.machine("haproxy").address, where, kafka.bootstrap_servers, "a password")
            deployment = Deployment(image, site, made)
            printed = {line: await deployment.play(line) for line in LINES}
            assert "rules version 3" in printed[LINES[-1]]
            await deployment.try_it()
            await check_containers(deployment)
            await check_targets(deployment)
            await check_hand_over(deployment)
            assert [await asyncio.to_thread(one.stop) for one in deployment.replicas.values()] == [0, 0, 0]
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{error}\n{deployment.logs() if deployment else ''}") from error
        finally:
            if deployment is not None:
                deployment.kill()
            await asyncio.gather(kafka.remove(), database.remove())
    shutil.rmtree(folder, ignore_errors=True)


async def check_containers(deployment: Deployment) -> None:
    """Nobody's account, a root that cannot be written, and the host name that the health check asks at."""
    root = "bool(os.statvfs('/').f_flag & os.ST_RDONLY)"
    group = "grp.getgrgid(os.getgid()).gr_name"  # an account's files may be given to its group by name
    found = f"import grp, os, socket; print(os.getuid(), os.getgid(), {group}, {root}, socket.gethostname())"
    for name, replica in deployment.replicas.items():
        assert replica.execute("python", "-c", found).split() == ["10001", "10001", "notary", "True", name]


async def check_targets(deployment: Deployment) -> None:
    """Every target of the compose file's Prometheus is there."""
    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target for job in jobs for group in job["static_configs"] for target in group["targets"]]
    assert len(targets) == len(REPLICAS) + 1
    for name, _, port in (target.partition(":") for target in targets):
        assert await asyncio.to_thread(answers, f"http://{deployment.addresses[name]}:{port}/metrics") == 200, name


async def check_hand_over(deployment: Deployment) -> None:
    """The compose file's own command, in the active's container, which alone reaches its admin listener."""
    before = await deployment.settled()
    printed = await asyncio.to_thread(deployment.replicas[before].execute, "notary", "switchover", *CONFIG)
    assert f"took over from {before}" in printed
    assert await deployment.settled() != before
    await deployment.try_it()
