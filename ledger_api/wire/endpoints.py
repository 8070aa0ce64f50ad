"""The document that lists where applications reach a notary."""

from __future__ import annotations

from typing import Literal

import msgspec


class EndpointDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One address of the API.

    `role` is that of its `replica` when the answering replica last saw it, at `seen_at`; null: of the answering one
    itself, at this moment; `active` is one that serves. `balanced`: the address leads to whichever replica serves.
    `live`: it answered the last look, at most two seconds ago. Where the answering replica's core is silent, none is
    live, its own neither: nobody looks.
    """

    url: str
    replica: str | None = None
    role: Literal["active", "passive", "unknown", "balanced"]
    live: bool
    seen_at: str | None = None


class EndpointsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses at which applications reach this notary, as the replica that answers knows them.

    `active` is the address of the replica that is active now; null: none is known. Where all replicas serve, it is the
    one that answers, if it serves, else another one that does. Without configured addresses the list is empty, and
    clients keep what they were given.
    """

    replica: str
    endpoints: list[EndpointDocument]
    active: str | None = None
