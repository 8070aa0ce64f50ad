"""Keeps the tables registered beside a job that appends to them: a catalogue that fails never stops the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NoReturn

from pipeline.follow import retry_delay_s
from pipeline.tables.catalogue.rules import Registration, registrations
from replica.notary.errors import NotaryError
from replica.notary.places import Place


class Changes:
    """What is to be registered of the tables in a folder: whoever appends tells, `keep_registered` hears of changes."""

    def __init__(self, folder: Place) -> None:
        self.queue: SimpleQueue[list[Registration]] = SimpleQueue()
        self._folder = folder
        self._last: list[Registration] = []

    def tell(self, schemas: Mapping[str, str]) -> None:
        """Note the tables' columns, by their names, in Delta's JSON."""
        wanted = registrations(self._folder, schemas)
        if wanted != self._last:
            self.queue.put(wanted)
            self._last = wanted


def keep_registered(
    register: Callable[[list[Registration]], object],
    changes: Changes,
    look_s: float,
    failed: Callable[[NotaryError, float], None],
) -> NoReturn:
    """Register what `changes` brings: at once; again every `look_s`, as registrations may be dropped; after a failure
    later and later. For a thread of its own, so that a catalogue that hangs holds nobody up.

    `failed` gets each error, also one that needs a person, and the seconds until the next attempt.
    """
    wanted, failures = changes.queue.get(), 0
    while True:
        try:
            register(wanted)
        except NotaryError as error:
            failures += 1
            delay_s = retry_delay_s(failures)
            failed(error, delay_s)
        else:
            failures, delay_s = 0, look_s
        with suppress(Empty):
            wanted = changes.queue.get(timeout=delay_s)
