"""Ports that are reserved stay reserved, and only as long as somebody holds them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from replica.local import ports as ports_module
from replica.local.ports import LOOPBACK, PORT_FIRST, NoFreePort, PortReservation

OUTSIDE = PORT_FIRST - 1 - os.getpid() % 4_000  # no reservation's search reaches it: free again, it stays free


def test_no_port_is_given_twice() -> None:
    """Goal: two supervisors never meet on a port. Method: two reservations in turn, from the same start."""
    with PortReservation() as first, PortReservation() as second:
        taken = [reservation.take() for _ in range(20) for reservation in (first, second)]
        assert len(set(taken)) == len(taken)


def test_a_closed_reservation_gives_its_ports_back() -> None:
    """Goal: nothing leaks. Method: reserve one port, close, reserve it again."""
    with PortReservation() as first, PortReservation() as second:
        assert first.take_exactly(OUTSIDE)
        assert not second.take_exactly(OUTSIDE)
        first.close()
        assert second.take_exactly(OUTSIDE)


def test_a_port_that_somebody_listens_on_is_not_given() -> None:
    """Goal: strangers, who know nothing of reservations, are respected. Method: listen on a port, then ask for it."""
    with PortReservation() as reservation:
        with socket.socket() as listener:
            listener.bind((LOOPBACK, OUTSIDE))
            listener.listen()
            assert not reservation.take_exactly(OUTSIDE)
        assert reservation.take_exactly(OUTSIDE)


def test_the_kernel_frees_the_ports_of_a_process_that_ended() -> None:
    """Goal: a killed supervisor blocks nothing. Method: reserve in another process and let it end without closing."""
    script = (
        "from replica.local.ports import PortReservation\n"
        f"r = PortReservation(); print(r.take_exactly({OUTSIDE}), flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        with PortReservation() as mine:
            assert not mine.take_exactly(OUTSIDE)
            other.kill()
            other.wait()
            assert mine.take_exactly(OUTSIDE)


def test_ports_stay_out_of_the_range_of_outgoing_connections() -> None:
    """Goal: no outgoing connection of anybody takes the port first. Method: compare with the kernel's range."""
    with PortReservation() as reservation:
        assert ports_module.PORT_FIRST <= reservation.take() < ports_module._ephemeral_first()


def test_a_full_range_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no endless search. Method: a range of two ports, ask for a third."""
    monkeypatch.setattr(ports_module, "_ephemeral_first", lambda: ports_module.PORT_FIRST + 2)
    with PortReservation() as reservation, pytest.raises(NoFreePort):
        for _ in range(3):
            reservation.take()
