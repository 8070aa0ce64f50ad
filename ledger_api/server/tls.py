"""TLS of the API: it ends in the front end, so that the load balancer holds no keys."""

from __future__ import annotations

import ssl

from cryptography.x509 import load_pem_x509_certificates

from ledger_api.server.settings import TlsSettings
from replica.notary.errors import ConfigError
from replica.notary.secret_files import check_readable, check_secret

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def expires_s(settings: TlsSettings) -> float:
    """When the certificate expires that was just loaded, Unix time."""
    return load_pem_x509_certificates(settings.certificate_file.read_bytes())[0].not_valid_after_utc.timestamp()


def make_tls(settings: TlsSettings) -> ssl.SSLContext:
    """The server's side of TLS. Raises ConfigError, with KEY_UNSAFE when others can read the key."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = _VERSIONS[settings.version_min]
    context.set_alpn_protocols(["http/1.1"])
    load_certificates(context, settings)
    return context


def load_certificates(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Read the files, at the start or again: connections made from now on use what they hold. Raises ConfigError.

    Authorities are added, never taken away: to stop trusting one, start the front ends again.
    """
    check_secret(settings.key_file)
    for path in (settings.certificate_file, settings.client_ca_file):
        if path is not None:
            check_readable(path)  # OpenSSL does not name the file that is missing
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.certificate_file, settings.key_file)
        context.load_cert_chain(
            settings.certificate_file, settings.key_file
        )  # a pair that fits, so that it stays whole
        if settings.client_ca_file is not None:
            context.load_verify_locations(settings.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the API's certificates cannot be used: {error}") from None
