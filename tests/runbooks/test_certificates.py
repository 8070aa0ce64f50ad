"""The runbook of certificates: another issuer for the database, then trust in it alone. See test_runbooks."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from replica.local.cluster import ClusterSettings
from tests.runbooks.conftest import all_well, staged, under_load
from tests.runbooks.stage import Stage

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1_200),
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

PAGE = "certificate-rotation"


class Issued(NamedTuple):
    """An issuer's certificate, and a server's with its key, as files."""

    authority: Path
    certificate: Path
    key: Path


def issue(folder: Path, name: str) -> Issued:
    """A new issuer and a certificate of it for loopback."""
    now = datetime.now(UTC)
    issuer_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        return made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=30))

    ca = builder(issuer, issuer_key).add_extension(x509.BasicConstraints(True, None), critical=True)
    loopback = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "database")])
    server = builder(subject, server_key).add_extension(loopback, critical=False)
    paths = Issued(*(folder / f"{name}-{part}.pem" for part in ("ca", "server", "key")))
    paths.authority.write_bytes(ca.sign(issuer_key, hashes.SHA256()).public_bytes(Encoding.PEM))
    paths.certificate.write_bytes(server.sign(issuer_key, hashes.SHA256()).public_bytes(Encoding.PEM))
    paths.key.write_bytes(server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return paths


async def test_certificate_rotation(folder: Path) -> None:
    """Goal: another issuer, without an outage. Method: TLS to the database, verified; play under load."""
    async with staged(ClusterSettings(folder=folder / "certificates")) as stage:
        old, new = issue(folder, "old"), issue(folder, "new")
        bundle = folder / "trusted.pem"
        bundle.write_bytes(old.authority.read_bytes())
        certificate, key = await speak_tls(stage, old, bundle)
        variables = {
            "CERTIFICATE": str(certificate),
            "KEY_FILE": str(key),
            "CA_BUNDLE": str(bundle),
            "NEW_CERTIFICATE": str(new.certificate),
            "NEW_KEY_FILE": str(new.key),
            "NEW_CA": str(new.authority),
            "REPLICAS": " ".join(stage.cluster.replicas),
        }
        steps = "Of the database, and of the brokers"
        async with under_load(stage, "certificate-rotation"):
            assert "CN = old" in await stage.play(PAGE, "Checks", "Of the database", **variables)
            await stage.play(PAGE, "Steps", steps, **variables)
            assert "CN = new" in await stage.play(PAGE, "Verification", "Of the database", **variables)
        variables |= await serve_tls(stage, old)
        assert "CN = old" in await stage.play(PAGE, "Checks", "Of the API", **variables)
        await stage.play(PAGE, "Steps", "Of the API", **variables)
        assert "CN = new" in await stage.play(PAGE, "Verification", "Of the API", **variables)
    stage.assert_all_played("certificate-rotation")


async def serve_tls(stage: Stage, issued: Issued) -> dict[str, str]:
    """Give the API a certificate; returns how the page calls its files."""
    folder = stage.cluster.folder
    paths = {"API_CERTIFICATE": folder / "api.pem", "API_KEY_FILE": folder / "api.key"}
    for path, content in zip(paths.values(), (issued.certificate, issued.key), strict=True):
        path.touch(0o600)
        path.write_bytes(content.read_bytes())
    with stage.cluster.config_path.open("a") as config:
        config.write('\n[api.tls]\ncertificate_file = "api.pem"\nkey_file = "api.key"\n')
    await restart(stage)
    return {name: str(path) for name, path in paths.items()}


async def restart(stage: Stage) -> None:
    for replica in stage.cluster.replicas.values():
        await replica.stop()
        replica.start()
    await all_well(stage)


async def speak_tls(stage: Stage, issued: Issued, bundle: Path) -> tuple[Path, Path]:
    """Give the database a certificate, and have the replicas ask for it; returns its files."""
    cluster = stage.cluster
    data = (cluster.postgres.folder / "data").resolve()
    owner = data.stat()
    paths = (data / "server.crt", data / "server.key")
    for path, content in zip(paths, (issued.certificate, issued.key), strict=True):
        path.write_bytes(content.read_bytes())
        path.chmod(0o600)
        os.chown(path, owner.st_uid, owner.st_gid)
    async with await psycopg.AsyncConnection.connect(stage.admin(), autocommit=True) as connection:
        await connection.execute(b"ALTER SYSTEM SET ssl = on")
        await connection.execute(b"SELECT pg_reload_conf()")
    config = cluster.config_path
    verified = f"sslmode=verify-full sslrootcert={bundle} dbname="
    config.write_text(config.read_text().replace("dbname=", verified, 1))
    await restart(stage)
    async with await psycopg.AsyncConnection.connect(stage.admin()) as connection:
        found = await connection.execute(
            b"SELECT FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'notary' AND NOT ssl"
        )
        assert found.rowcount == 0
    return paths
