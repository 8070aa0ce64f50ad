"""Gathers every fact that the doctor judges, within a few seconds. Changes nothing, decides nothing, never raises."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import time_ns

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from haproxy.render import ReplicaAddress, write
from haproxy.runtime import HaproxyRuntime, RuntimeRefused
from ledger_api.server.authentication import fetch_jwks
from ledger_api.server.settings import TokenSettings
from ledger_api.server.tokens import parse_keys
from replica.acting.healths import fetch_health
from replica.config.model import Config
from replica.doctor.facts import BalancerFacts, ClockFacts, DatabaseFacts, Facts, LogFacts, ReplicaFacts
from replica.doctor.look_around import look_around
from replica.doctor.look_database import look_at_database
from replica.doctor.look_here import look_at_files, look_at_machine
from replica.health import ReplicaHealth
from replica.local.haproxy import check_config
from replica.local.process import ServerFailed, SoftwareMissing
from replica.log.interface import LogMissing
from replica.log.open import open_log_admin
from replica.notary.errors import ConfigError, NotaryError

ENDPOINT_MAX_S = 2.0
CONNECTIONS_PER_REPLICA = 2  # the lock session and the bulletin


async def look(config: Config) -> Facts:
    """Everything: the replicas first, then all other parts at the same time.

    A replica has a second to answer. The other parts load libraries and render files, which may take as long on a busy
    machine: no replica is called dead for that.
    """
    async with aiohttp.ClientSession() as session:
        replicas = await asyncio.gather(*(_look_at_replica(session, address) for address in config.replicas))
        (database, log), balancer, issuer_problem, around = await asyncio.gather(
            look_at_database_and_log(config),
            look_at_balancer(config, session),
            look_at_issuer(config.api.tokens),
            look_around(config, session),
        )
    files = look_at_files(config)
    if issuer_problem is not None:
        files = replace(files, problems={**files.problems, "token-keys": issuer_problem})
    return Facts(
        now=datetime.now(UTC),
        version=version("replicated-notary"),
        log_words=config.log.settings.words,
        development=config.log.settings.for_development,
        clock_skew_max_s=config.election.clock_skew_max_s,
        lock_sessions=(CONNECTIONS_PER_REPLICA + config.log.settings.words.database_sessions) * len(config.replicas),
        files=files,
        machine=look_at_machine(config),
        database=database,
        log=log,
        replicas=tuple(replicas),
        balancer=balancer,
        around=around,
        has_site=config.site is not None,
    )


def clock_shown(clock_us: int, asked_ns: int, answered_ns: int) -> ClockFacts:
    """A clock by an answer that was asked for and came at these times of our own; it was written somewhere between."""
    return ClockFacts(
        ahead_s=clock_us / 1e6 - (asked_ns + answered_ns) / 2e9, within_s=abs(answered_ns - asked_ns) / 2e9
    )


async def look_at_database_and_log(config: Config) -> tuple[DatabaseFacts, LogFacts]:
    """First what was published, then where the log ends: both move on, and a log that ended before what is published
    from it would count as truncated."""
    database = await look_at_database(config)
    return database, await look_at_log(config)


async def look_at_log(config: Config) -> LogFacts:
    """The log, its contract and offsets, and how many servers keep it."""
    admin = open_log_admin(config.log.settings)
    try:
        servers = await admin.server_count()
        try:
            found = await admin.survey()
        except LogMissing as error:
            return LogFacts(problem=error.detail, missing=True, servers=servers)
        return LogFacts(
            topic_id=found.log_id,
            violations=tuple(found.violations),
            first_offset=found.first_offset,
            end_offset=found.end_offset,
            servers=servers,
            deletable=found.deletable,
            appears=found.appears,
            database=found.database,
            oldest_snapshot=found.oldest_snapshot,
            spare=found.spare,
            silent=tuple(found.silent),
        )
    except NotaryError as error:
        return LogFacts(problem=error.detail)
    finally:
        await admin.close()


async def look_at_balancer(config: Config, session: aiohttp.ClientSession) -> BalancerFacts:
    """HAProxy's opinion of its configuration, whom it sends clients to, and whether the endpoint answers."""
    unchecked, refused = await _check_rendered(config)
    try:
        servers = await HaproxyRuntime(config.haproxy_settings().stats_socket).servers()
        answers, up = True, tuple(server.name for server in servers.values() if server.up)
    except (OSError, TimeoutError, RuntimeRefused):
        answers, up = False, ()
    problem = await _try_endpoint(config, session)
    return BalancerFacts(unchecked=unchecked, refused=refused, answers=answers, up=up, endpoint_problem=problem)


async def look_at_issuer(tokens: TokenSettings | None) -> str | None:
    """Why the keys for callers' tokens cannot be fetched; None when they can, or are in a file."""
    if tokens is None or tokens.jwks_url is None:
        return None
    try:
        parse_keys(await fetch_jwks(tokens.jwks_url), tokens.jwks_url)
    except ConfigError as error:
        return error.detail
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return f"{tokens.jwks_url} gives no keys: {error or type(error).__name__}"
    return None


async def _check_rendered(config: Config) -> tuple[str | None, str | None]:
    """Why HAProxy could not check the configuration, and its objection to it."""
    try:
        with tempfile.TemporaryDirectory(prefix="notary-doctor-") as folder:
            path = Path(folder) / "haproxy.cfg"
            write(config.haproxy_settings(), path)
            await check_config(path, Path(folder) / "check.log")
    except SoftwareMissing:
        return "HAProxy is not installed here", None
    except ServerFailed as error:
        return None, error.detail
    except OSError as error:
        return f"HAProxy could not be asked: {error}", None
    return None, None


async def _try_endpoint(config: Config, session: aiohttp.ClientSession) -> str | None:
    host = "127.0.0.1" if config.endpoint.host == "*" else config.endpoint.host
    if config.api.tls is not None:
        return await _try_tls(host, config.endpoint.port, config.api.tls.certificate_file)
    url = f"http://{host}:{config.endpoint.port}/v1/notary"
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=ENDPOINT_MAX_S)) as answer:
            return None if answer.status == 200 else f"{url} answers {answer.status}"
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return f"{url} does not answer: {error or type(error).__name__}"


async def _try_tls(host: str, port: int, certificate_file: Path) -> str | None:
    """Whether the endpoint presents the configured certificate: no certificate of our own is needed to see that."""
    address = f"{host}:{port}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # compared below: that says more than a chain
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # it asks for the client's certificate after this handshake only
    try:
        async with asyncio.timeout(ENDPOINT_MAX_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), port, ssl=context)
    except (OSError, TimeoutError) as error:
        return f"{address} does not answer: {error or type(error).__name__}"
    presented = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    own = _first_certificate(certificate_file)
    if own is None or presented == own:
        return None
    return f"{address} presents another certificate than api.tls.certificate_file: SIGHUP the replicas if it is new"


def _first_certificate(path: Path) -> bytes | None:
    """The first certificate in DER; None when it cannot be read, which another check reports."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0].public_bytes(Encoding.DER)
    except (OSError, ValueError):
        return None


def _why_not(health: ReplicaHealth) -> str:
    """Why a replica does not serve that should, as all do; empty: it does, or need not."""
    if health.serving != "all" or health.active:
        return ""
    return health.not_serving_detail or "it gives no reason"


async def _look_at_replica(session: aiohttp.ClientSession, address: ReplicaAddress) -> ReplicaFacts:
    asked_ns = time_ns()
    health = await fetch_health(session, address)
    answered_ns = time_ns()
    if health is None:
        return ReplicaFacts(name=address.name, answers=False, may_lead=address.may_lead)
    return ReplicaFacts(
        name=address.name,
        answers=True,
        active=health.leads,
        serves=health.active,
        not_serving=_why_not(health),
        ready=health.ready,
        may_lead=address.may_lead,
        version=health.version,
        front_ends=health.front_ends,
        front_ends_silent=health.front_ends_silent,
        index_digests=health.index_digests,
        epoch=health.epoch,
        granted_by=health.granted_by,
        rules_in_force=health.rules_in_force,
        site=health.site,
        site_detail=health.site_detail,
        marks_problems=health.marks_problems,
        clock=None if health.clock_us is None else clock_shown(health.clock_us, asked_ns, answered_ns),
    )
