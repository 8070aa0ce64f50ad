"""Which network the lab has: what is asked for, or what this machine allows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replica.local.process import SoftwareMissing
from tests.faults.lab import network
from tests.faults.lab.namespaces import Namespaces
from tests.faults.lab.network import CHOICE, chosen, kind_of_network, network_of
from tests.faults.lab.proxied import Proxied


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is asked for, and nothing was found out yet."""
    monkeypatch.delenv(CHOICE, raising=False)
    chosen.cache_clear()
    yield
    chosen.cache_clear()


@pytest.mark.parametrize(("asked", "kind"), [("proxy", Proxied), ("namespaces", Namespaces)])
def test_a_choice_is_kept(monkeypatch: pytest.MonkeyPatch, asked: str, kind: type) -> None:
    """Goal: either can be tried out on one machine. Method: ask for it in the environment."""
    monkeypatch.setenv(CHOICE, asked)
    assert isinstance(network_of(["a"]), kind)


def test_a_wrong_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a typing error is no choice. Method: a value that does not exist."""
    monkeypatch.setenv(CHOICE, "proxies")
    with pytest.raises(SoftwareMissing, match="namespaces, proxy"):
        network_of(["a"])


@pytest.mark.parametrize("refusal", [SoftwareMissing("not root"), PermissionError("/proc/sys")])
def test_without_privileges_there_is_a_proxy_and_a_word(monkeypatch: pytest.MonkeyPatch, refusal: Exception) -> None:
    """Goal: no scenario is left out, and the report shows it. Method: namespaces that cannot be made."""

    def refused(_: Namespaces) -> None:
        raise refusal

    monkeypatch.setattr(network.Namespaces, "start", refused)
    with pytest.warns(UserWarning, match="faults go through a proxy"):
        assert isinstance(network_of(["a"]), Proxied)
    assert kind_of_network() == "fault proxy"
