"""The mutants that the simulator notices, with the first seed that does."""

from __future__ import annotations

from pathlib import Path

import msgspec

PINS_FILE = Path(__file__).parent / "pins.json"


def pins() -> dict[str, int]:
    """Name of a mutant -> seed."""
    return msgspec.json.decode(PINS_FILE.read_bytes(), type=dict[str, int]) if PINS_FILE.exists() else {}
