"""Tables of the lake as their owner changes them."""

from __future__ import annotations

from deltalake import DeltaTable

EXPIRED = {"delta.checkpointInterval": "2", "delta.logRetentionDuration": "interval 0 days"}


def expiring(uri: str) -> DeltaTable:
    """A table whose every other commit is followed by a checkpoint, and whose log entries expire at once; by default
    it is every hundredth, and they expire after 30 days."""
    table = DeltaTable(uri)
    table.alter.set_table_properties(EXPIRED)
    return table
