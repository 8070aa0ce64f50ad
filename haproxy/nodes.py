"""Names that tools need without rendering anything: HAProxy's two machines, and its backends."""

from __future__ import annotations

from enum import Enum

BACKEND = "replicas"
WATCHED = "watched"
"""The same replicas again, where all serve: their checks are looked at, and it gets no connection."""


class Node(Enum):
    """Which of the two machines that HAProxy runs on."""

    PRIMARY = "primary"
    BACKUP = "backup"
