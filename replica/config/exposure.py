"""Finds what of a configuration is open beyond this machine, in the clear or to everybody, and what to set. Pure.

The health listener is exempt: it has no secrets, changes nothing, and load balancers query it in plain HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator

from replica.config.model import Config
from replica.notary.libpq import is_local
from replica.notary.loopback import is_loopback
from replica.store.open import kind_of


def plaintext_connections(config: Config) -> list[str]:
    """What would be sent unprotected beyond a loopback address, each with the setting that protects it."""
    return [
        *_api(config),
        *config.log.settings.plaintext_connections(),
        *_database(config.database.conninfo),
        *_witness(config),
        *_tracing(config),
        *_kms(config),
        *_catalogue(config),
    ]


def open_listeners(config: Config) -> list[str]:
    """Where callers on other machines reach the API without a token, and so read the whole ledger."""
    return [] if config.api.tokens is not None else _beyond_loopback(config)


def _beyond_loopback(config: Config) -> list[str]:
    """The listeners of the API that other machines reach: replicas, and the endpoint, which passes everything on."""
    listeners = {replica.name: replica.host for replica in config.replicas} | {"the endpoint": config.endpoint.host}
    return [name for name, host in listeners.items() if not is_loopback(host)]


def _api(config: Config) -> Iterator[str]:
    exposed = _beyond_loopback(config)
    if exposed and config.api.tls is None:
        yield f"the API of {', '.join(exposed)} is not on a loopback address: set api.tls"


def _witness(config: Config) -> Iterator[str]:
    if config.site is not None and not all(
        map(is_local, kind_of(config.site.witness).hosts_in_clear(config.site.witness))
    ):
        yield "a witness beyond this machine: site.witness needs sslmode=verify-full and sslrootcert"


def _tracing(config: Config) -> Iterator[str]:
    url = config.tracing.endpoint
    if url is not None and url.scheme != "https" and not is_local(url.host or ""):
        yield "a collector of traces beyond this machine: tracing.endpoint needs https"


def _kms(config: Config) -> Iterator[str]:
    url = None if config.kms is None else config.kms.endpoint
    if url is not None and url.scheme != "https" and not is_local(url.host or ""):
        yield "a key management service beyond this machine: kms.endpoint needs https"


def _catalogue(config: Config) -> Iterator[str]:
    given = config.tables.catalogue
    if given is not None and given.ca_file is None and not is_local(given.host):
        yield "a catalogue beyond this machine: set tables.catalogue.ca_file"


def _database(conninfo: str) -> Iterator[str]:
    kind = kind_of(conninfo)
    if not all(map(is_local, kind.hosts_in_clear(conninfo))):
        yield kind.PROTECTED_BY
