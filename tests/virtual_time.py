"""Tests on virtual time: hours of waiting take no time, and a deadlock is an error."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from tests.simulation.virtual import run_virtually

_P = ParamSpec("_P")


def on_virtual_time(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """A test that is a coroutine, run by `run_virtually`."""

    @wraps(test)
    def run(*arguments: _P.args, **fixtures: _P.kwargs) -> None:
        run_virtually(test(*arguments, **fixtures))

    return run
