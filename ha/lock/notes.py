"""The text of a release note, which a holder sends to its peers on the lock's channel. Pure.

Any login of the database may send on that channel, and the lock's own session receives it. So no text that is sent may
raise.
"""

from __future__ import annotations

import json
import re

from ha.lock.interface import ReleaseNote

NOTE_MAX_CHARACTERS = 400  # two names and their brackets; the server would carry 8,000
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # what the configuration allows


def encode_note(note: ReleaseNote) -> str:
    """The text that `decode_note` reads."""
    return json.dumps({"by": note.by, "to": note.to})


def decode_note(text: str) -> ReleaseNote | None:
    """The note in a text; None for anything else. A peer that is two releases older sends only its name."""
    if len(text) > NOTE_MAX_CHARACTERS:
        return None
    if _NAME.fullmatch(text):
        return ReleaseNote(text, None)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.keys() != {"by", "to"}:
        return None
    by, to = found["by"], found["to"]
    return ReleaseNote(by, to) if _is_name(by) and (to is None or _is_name(to)) else None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
