"""Remembers where and when transactions were notarised of late, for receipts.

The index has the log offset of every notarisation, but neither its epoch nor its judged time. So a receipt that is made
again later has a place only while this memory has it. It never guesses.
"""

from __future__ import annotations

from collections import OrderedDict

from replica.following.apply import Applied
from replica.notary.counted import CountedRequest
from replica.notary.receipts import Place

PLACES_MAX = 65_536  # about 10 MB


class Places:
    """Fed with every run that this replica applies, in either role: a new active knows what its predecessor decided."""

    def __init__(self, places_max: int = PLACES_MAX) -> None:
        self._places_max = places_max
        self._places: OrderedDict[int, Place] = OrderedDict()  # by log offset

    def note(self, applied: Applied) -> None:
        """Remember what the run notarised for the first time.

        A record before the run's newest barrier in force is left out: its epoch is an earlier one.
        """
        position = applied.position
        if position.barrier is None:
            return
        epoch, since = position.barrier.epoch, position.barrier_offset
        for entry, verdict in applied.decided():
            if isinstance(entry, CountedRequest) and verdict is not None:
                offset = entry.offset
                if verdict.notarised_offset == offset and offset > since:
                    place = Place(position.topic_id, offset, epoch, entry.judged_us)
                    if place.encoded is not None:
                        self._places[offset] = place
        while len(self._places) > self._places_max:
            self._places.popitem(last=False)

    def of(self, notarised_offset: int | None) -> Place | None:
        """The place of the first notarisation at that log offset; None where it is not known."""
        return None if notarised_offset is None else self._places.get(notarised_offset)
