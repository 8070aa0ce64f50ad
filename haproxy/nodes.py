"""The two machines that HAProxy runs on; a module of its own because the command line's help names them."""

from __future__ import annotations

from enum import Enum


class Node(Enum):
    """Which of the two machines that HAProxy runs on."""

    PRIMARY = "primary"
    BACKUP = "backup"
