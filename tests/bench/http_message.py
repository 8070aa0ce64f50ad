"""The little of HTTP that a lean load generator needs."""

from __future__ import annotations


def is_whole(message: bytes) -> bool:
    """Whether a message with a stated length is there to its end. Raises ValueError for one without."""
    head, separator, body = message.partition(b"\r\n\r\n")
    if not separator:
        return False
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return len(body) >= int(value)
    raise ValueError(f"a message without a length: {head!r:.500}")
