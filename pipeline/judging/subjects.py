"""Which requests a trace is about: those under a transaction id, those that name a state, those of a party. Pure.

Of lost records only the index entries are known: nobody's party, and no state that was only referred to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pipeline.judging.columns import Columns
from pipeline.judging.cursor import Array
from replica.notary.rules import STATE_KEY, TX_KEY


class Subject(NamedTuple):
    """`pick`: of the requests picked (indexes into `Columns.rows`), those that are of interest. `key`: that of the
    index, by which a lost record is of interest; None: what is known of those does not show it."""

    pick: Callable[[Columns, Array], Array]
    key: bytes | None


def of_tx(tx_id: bytes) -> Subject:
    """Requests under a transaction id."""

    def pick(columns: Columns, among: Array) -> Array:
        same = np.all(columns.tx_ids()[among].view(np.uint8).reshape(-1, 32) == np.frombuffer(tx_id, np.uint8), axis=1)
        return among[same]

    return Subject(pick, TX_KEY + tx_id)


def of_state(ref: bytes) -> Subject:
    """Requests that consume a state or refer to it."""

    def pick(columns: Columns, among: Array) -> Array:
        naming = np.zeros(len(among), np.bool_)
        for references in (False, True):
            owner, refs = columns.refs(among, references=references)
            same = np.all(refs.view(np.uint8).reshape(-1, 36) == np.frombuffer(ref, np.uint8), axis=1)
            naming[owner[same]] = True
        return among[naming]

    return Subject(pick, STATE_KEY + ref)


def of_party(name: str) -> Subject:
    """Requests of the party with this X.500 name."""
    wanted = np.frombuffer(name.encode(), np.uint8)

    def pick(columns: Columns, among: Array) -> Array:
        starts, sizes = columns.parties(among)
        near = sizes == len(wanted)
        mine: Array = among[near]
        if len(wanted):
            found = columns.at(starts[near], len(wanted)).view(np.uint8).reshape(-1, len(wanted))
            mine = mine[np.all(found == wanted, axis=1)]
        return mine

    return Subject(pick, None)
