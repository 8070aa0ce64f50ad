"""Files that change while a front end runs: a renewed certificate is presented without a signal."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

from structlog.testing import capture_logs

from ledger_api.server.reloading import Part, Reloading
from ledger_api.server.settings import TlsSettings
from ledger_api.server.tls import expires_s, load_certificates, make_tls
from replica.notary.errors import ConfigError
from replica.telemetry.counts import ApiCounts, metric_families
from tests.certificates import Authority

DAY_S = 86_400


def test_what_has_changed_is_read_again_and_nothing_else(tmp_path: Path) -> None:
    """Goal: as the kubelet swaps a link to a folder, or an editor a file. Method: each; no change; a bad file, which is
    tried again once it has changed; a signal."""
    read: list[str] = []
    (tmp_path / "d1").mkdir()
    (tmp_path / "d2").mkdir()
    for folder in ("d1", "d2"):
        (tmp_path / folder / "file").write_text(folder)
    link, plain = tmp_path / "current", tmp_path / "plain"
    link.symlink_to("d1")
    plain.write_text("good")

    def load_plain() -> None:
        read.append("plain")
        if plain.read_text() == "bad":
            raise ConfigError("bad")

    reloading = Reloading(
        [
            Part("link", [link / "file"], lambda: read.append("link")),
            Part("plain", [plain, tmp_path / "no"], load_plain),
        ]
    )
    reloading.changed()
    assert read == []
    (tmp_path / "next").symlink_to("d2")
    (tmp_path / "next").replace(link)
    reloading.changed()
    assert read == ["link"]
    plain.write_text("bad")
    with capture_logs() as lines:
        reloading.changed()
        reloading.changed()
    assert [line["event"] for line in lines] == ["reload_refused"]
    plain.write_text("good again")
    reloading.changed()
    assert read == ["link", "plain", "plain"]
    reloading.all()
    assert read == ["link", "plain", "plain", "link", "plain"]


def test_a_pair_that_does_not_fit_leaves_the_one_that_is_presented(tmp_path: Path) -> None:
    """Goal: certificate and key are replaced one after the other. Method: read in between."""
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    certificate, key = authority.issue("api")
    settings = TlsSettings(certificate_file=certificate, key_file=key)
    context = make_tls(settings)
    certificate.write_bytes(other.issue("api")[0].read_bytes())
    try:
        load_certificates(context, settings)
    except ConfigError:
        pass
    else:
        raise AssertionError("a certificate was taken with the key of another")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(authority.ca_file))
    server = context.wrap_bio(incoming, outgoing, server_side=True)
    asking = client.wrap_bio(outgoing, incoming, server_hostname="localhost")
    for _ in range(4):
        for side in (asking, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert asking.getpeercert()["subject"]  # type: ignore[index]


def test_the_metric_shows_what_is_presented(tmp_path: Path) -> None:
    """Goal: an alert before the end, by what is loaded. Method: two front ends, one with an older certificate."""
    certificate, key = Authority(tmp_path).issue("api")
    end_s = expires_s(TlsSettings(certificate_file=certificate, key_file=key))
    total = ApiCounts()
    assert not any("certificate" in family.name for family in metric_families(total))
    for counts in (ApiCounts(certificate_expires_s=end_s), ApiCounts(certificate_expires_s=end_s - 100), ApiCounts()):
        total.add(counts)
    (family,) = [family for family in metric_families(total) if "certificate" in family.name]
    assert DAY_S / 4 < family.samples[0].value <= end_s - 100 - time.time() + 10
