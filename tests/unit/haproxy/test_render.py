"""The rendered HAProxy configuration: the figures that an outage depends on, and nothing that could be smuggled in."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from haproxy.nodes import Node
from haproxy.render import Endpoint, HaproxySettings, ReplicaAddress, render, render_keepalived, render_lua

PAIR = {
    "virtual_address": "10.0.0.10/24",
    "interface": "eth0",
    "primary_address": "10.0.0.11",
    "backup_address": "10.0.0.12",
}


def settings_with(**changes: object) -> HaproxySettings:
    replicas = [
        ReplicaAddress(name=f"R{n}", host="127.0.0.1", api_port=8_000 + n, health_port=9_000 + n) for n in (1, 2, 3)
    ]
    return HaproxySettings.model_validate({"bind": Endpoint(port=7_000), "replicas": replicas, **changes})


def lines(settings: HaproxySettings) -> list[str]:
    return [line.strip() for line in render(settings).splitlines()]


def test_the_defaults_are_those_that_were_measured() -> None:
    """Goal: the recommended checks and timeouts, to the letter. Method: look for the lines."""
    text = lines(settings_with())
    assert "mode tcp" in text
    assert "http-check send meth GET uri /health/active ver HTTP/1.1 hdr Host notary hdr Connection close" in text
    assert "http-check expect status 200" in text
    assert (
        "default-server inter 200ms fastinter 20ms downinter 50ms fall 3 rise 1 on-marked-down shutdown-sessions"
    ) in text
    assert {"timeout check 1000ms", "timeout connect 100ms", "retries 4", "option redispatch 1"} <= set(text)


def test_where_all_serve_who_does_not_answer_is_looked_for_sooner() -> None:
    """Goal: the second backend has the quick checks, the first one the patient ones. Method: the lines, with and
    without; a replica that is silent for a second is still not cut."""
    settings = settings_with(take_out={}, exporter=Endpoint(port=9_404))
    text = lines(settings)
    assert {"default-path config", "lua-load take_out.lua", "timeout check 350ms"} <= set(text)
    assert [line for line in text if line.startswith("default-server")] == [
        "default-server inter 200ms fastinter 20ms downinter 50ms fall 3 rise 1 on-marked-down shutdown-sessions",
        "default-server inter 200ms fastinter 200ms downinter 50ms fall 2 rise 1",
    ]
    assert settings.take_out is not None
    assert (settings.take_out.cut_min_s, settings.mark_down_max_s) == (pytest.approx(1.2), pytest.approx(1.45))
    assert "local LOOK_MS, LOOKS = 50, 6" in (render_lua(settings) or "")
    plain = settings_with()
    assert render_lua(plain) is None and not any("lua" in line for line in lines(plain))


def test_each_replica_is_checked_on_its_health_port() -> None:
    """Goal: a flood on the API port cannot fail the check. Method: read the server lines."""
    servers = [line for line in lines(settings_with()) if line.startswith("server ")]
    assert servers == [f"server R{n} 127.0.0.1:{8_000 + n} check port {9_000 + n}" for n in (1, 2, 3)]


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_address_of_ipv6_is_taken_as_it_comes(host: str) -> None:
    """Goal: HAProxy and URLs get brackets. Method: an endpoint and a replica, with and without."""
    replica = ReplicaAddress(name="R1", host=host, api_port=8_001, health_port=9_001)
    shown = lines(settings_with(bind={"host": host, "port": 7_000}, replicas=[replica]))
    assert "bind [::1]:7000" in shown
    assert "server R1 [::1]:8001 check port 9001" in shown


def test_options_that_are_off_leave_no_trace() -> None:
    """Goal: no listener and no account that nobody asked for. Method: render with and without."""
    plain, full = settings_with(), settings_with(exporter=Endpoint(port=9_404), worker_user="haproxy")
    assert "frontend statistics" not in lines(plain)
    assert not any(line.startswith("user ") for line in lines(plain))
    assert {"frontend statistics", "bind 127.0.0.1:9404", "user haproxy", "group haproxy"} <= set(lines(full))


def test_names_are_looked_up_again_where_addresses_change() -> None:
    """Goal: a restarted container is found, and none is waited for. Method: the lines, with and without the setting."""
    often = lines(settings_with(look_up_names=True))
    assert {"resolvers names", "parse-resolv-conf", "hold valid 1s"} <= set(often)
    (servers,) = [line for line in often if line.startswith("default-server ")]
    assert servers.endswith(" on-marked-down shutdown-sessions resolvers names init-addr last,libc,none")
    assert not any("resolvers" in line for line in lines(settings_with()))


def test_the_waits_are_the_sum_of_the_checks() -> None:
    """Goal: the time budget of a fail-over comes from the rendered figures. Method: add them up by hand."""
    settings = settings_with(check_interval_s=1.0, check_interval_changing_s=0.1, check_timeout_s=0.5, fall=3, rise=2)
    assert settings.mark_down_max_s == pytest.approx(1.0 + 3 * 0.5 + 2 * 0.1)
    assert settings.mark_up_max_s == pytest.approx(0.05 + 0.1)


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": []},
        {"replicas": [{"name": "R1", "host": "h", "api_port": 1, "health_port": 2}] * 2},
        {"replicas": [{"name": "R1\n    server evil 10.0.0.1:1", "host": "h", "api_port": 1, "health_port": 2}]},
        {"replicas": [{"name": "R1", "host": "h:1 weight 5", "api_port": 1, "health_port": 2}]},
        {"stats_socket": "/run/a b"},
        {"stats_socket": "relative.sock"},
        {"state_file": "/run/x\nuser root"},
        {"bind": {"port": 0}},
        {"idle_timeout_s": 0.1},
        {"fall": 0},
        {"unknown": 1},
        {"keepalived": PAIR},  # nobody to ask without an exporter
        {"exporter": {"port": 9_404}, "keepalived": PAIR | {"backup_address": "10.0.0.11"}},
        {"exporter": {"port": 9_404}, "keepalived": PAIR | {"virtual_address": "10.0.0.10/24\n}"}},
        {"exporter": {"port": 9_404}, "keepalived": PAIR | {"interface": "eth0\n}"}},
    ],
)
def test_a_setting_that_would_break_the_file_is_refused(changes: dict[str, object]) -> None:
    """Goal: settings cannot add lines, and nonsense does not reach HAProxy. Method: one bad setting at a time."""
    with pytest.raises(ValidationError):
        settings_with(**changes)


def test_the_two_nodes_differ_in_priority_and_address_only() -> None:
    """Goal: one virtual address, one owner, each node configured with the other. Method: render both, compare the
    lines."""
    settings = settings_with(exporter=Endpoint(port=9_404), keepalived=PAIR)
    primary, backup = (
        [line.strip() for line in render_keepalived(settings, node).splitlines() if not line.startswith("#")]
        for node in Node
    )
    differing = [(one, other) for one, other in zip(primary, backup, strict=True) if one != other]
    assert differing == [
        ("router_id notary-primary", "router_id notary-backup"),
        ("priority 150", "priority 100"),
        ("unicast_src_ip 10.0.0.11", "unicast_src_ip 10.0.0.12"),
        ("10.0.0.12", "10.0.0.11"),
    ]
    assert "monitor-uri /alive" in lines(settings)


@pytest.mark.parametrize(("host", "asked"), [("*", "127.0.0.1"), ("10.0.0.11", "10.0.0.11")])
def test_a_node_asks_its_own_haproxy_at_an_address(host: str, asked: str) -> None:
    """Goal: the virtual address has an owner where HAProxy listens on every address. Method: the rendered script."""
    settings = settings_with(exporter=Endpoint(host=host, port=9_404), keepalived=PAIR)
    assert f" http://{asked}:9404/alive" in render_keepalived(settings, Node.PRIMARY)


def test_without_a_pair_there_is_nothing_to_render() -> None:
    """Goal: no half configuration. Method: ask for keepalived's without its settings."""
    with pytest.raises(ValueError, match=r"haproxy\.keepalived"):
        render_keepalived(settings_with(), Node.PRIMARY)


def test_clients_have_shares_and_are_named_where_front_ends_listen_for_it() -> None:
    """Goal: no address takes all of HAProxy, and front ends know the addresses. Method: the lines, with and without
    ports for it; statistics keep connections of their own."""
    text = lines(settings_with(connections_max=400, source_connects_per_s=2.5))
    assert {
        "maxconn 500",
        "maxconn 400",
        "stick-table type ipv6 size 100k expire 1m store conn_cur,conn_rate(10s)",
        "tcp-request connection track-sc0 src,ipmask(32,64)",
        "tcp-request connection reject if { fe_conn,add(sess.own) gt 400 } { sc0_conn_cur gt 1 }",
        "tcp-request connection reject if { sc0_conn_rate gt 25 }",
        "tcp-request inspect-delay 5000ms",
    } <= set(text)
    assert not any("send-proxy" in line for line in text)
    address = ReplicaAddress(name="R1", host="10.0.0.1", api_port=1, proxy_port=2, health_port=3)
    text = lines(settings_with(replicas=[address], take_out={}))
    assert [line for line in text if line.startswith("server ")] == [
        "server R1 10.0.0.1:2 send-proxy-v2 check port 3",
        "server R1 10.0.0.1:1 check port 3",
    ]


def test_statistics_on_loopback_are_for_no_foreign_page() -> None:
    def denies(host: str) -> bool:
        return any("deny_status 403" in line for line in lines(settings_with(exporter=Endpoint(host=host, port=9_404))))

    assert [denies(host) for host in ("127.0.0.1", "localhost", "[::1]", "*", "10.0.0.1")] == [True] * 3 + [False] * 2


def test_haproxy_s_own_addresses_may_name_clients() -> None:
    exporter = Endpoint(port=9_404)
    assert settings_with().proxies == ("127.0.0.0/8", "::1/128")
    assert settings_with(sources=["10.1.0.0/16"]).proxies == ("10.1.0.0/16",)
    assert settings_with(keepalived=PAIR, exporter=exporter).proxies[-2:] == ("10.0.0.11", "10.0.0.12")
    with pytest.raises(ValidationError):
        settings_with(sources=["everywhere"])
