"""What a figure depends on: machine, versions, settings, load. Printed and written with every run."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import psycopg

from replica.local.cluster import LocalCluster
from replica.local.haproxy import find_haproxy
from replica.local.kafka import find_java, find_libs
from replica.native.signatures import checks_together
from tests.bench.report import Report

POSTGRES_FACTS = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
PACKAGES = ("confluent-kafka", "rocksdict", "psycopg", "aiohttp", "uvloop", "msgspec", "pynacl")


def add_machine(report: Report, packages: Sequence[str]) -> dict[str, str]:
    """The machine, its load, and versions by name, which the figures keep; returns the versions."""
    report.section("Conditions")
    load = [round(value, 2) for value in os.getloadavg()]
    memory_gib = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    report.add("cores", os.cpu_count(), "cores, memory", f"{os.cpu_count()}, {memory_gib:g} GiB, {_processor()}")
    report.add("load_average_at_start", load, "load average at the start", " ".join(map(str, load)))
    own = {
        "linux": platform.release(),
        "python": platform.python_version(),
        "java": _first_line(str(find_java()), "-version"),
    }
    for name, text in own.items():
        report.line(name, text)
    versions = own | {package: version(package) for package in packages}
    report.add("versions", versions, "packages", ", ".join(f"{package} {versions[package]}" for package in packages))
    return versions


async def add_conditions(cluster: LocalCluster, report: Report) -> None:
    """Machine, versions and settings of the runs on this cluster."""
    versions = add_machine(report, PACKAGES)
    postgres = await _postgres_facts(cluster.postgres.dsn())
    servers = {
        "postgres": postgres["server_version"],
        "kafka": _kafka_version(),
        "haproxy": _first_line(str(find_haproxy()), "-v"),
        "wrk": _first_line("wrk", "-v"),
    }
    report.figures["versions"] = versions | servers
    for name, text in servers.items():
        report.line(name, text)
    durable = ", ".join(f"{name} {value}" for name, value in postgres.items() if name != "server_version")
    report.add("postgres_settings", postgres, "Postgres", durable)
    lanes = checks_together()
    report.add("signatures_in_lanes", lanes, "signatures", "eight at a time" if lanes else "one by one")


def tell_deployment(cluster: LocalCluster, report: Report) -> None:
    """What the cluster consists of."""
    config, brokers = cluster.config, len(cluster.kafka.brokers)
    where = "the broker's page cache" if brokers == 1 else "the page caches of all that are in sync"
    report.line("Kafka", f"brokers: {brokers}, acks=all; an acknowledged record is in {where}")
    report.line("Postgres", "with a synchronous standby" if cluster.postgres_standby else "without a standby")
    report.line("replicas", f"{len(config.replicas)}, {config.api_workers} front ends each, {config.core.standby}")


async def _postgres_facts(conninfo: str) -> dict[str, str]:
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        cursor = await connection.execute(
            "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name", (list(POSTGRES_FACTS),)
        )
        return {str(name): str(value) for name, value in await cursor.fetchall()}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _kafka_version() -> str:
    return next(find_libs().glob("kafka_*.jar")).stem


def _first_line(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    return (done.stdout + done.stderr).splitlines()[0].strip()
