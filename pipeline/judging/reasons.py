"""Why a request is not notarised at its own offset; the lowest that applies is its verdict, as in `rules`."""

from __future__ import annotations

import numpy as np

DEDUPLICATED, NO_KEY, KEY_CLOSED, OTHER_COMMAND, DUPLICATE, REUSED, CONFLICT, WINDOW = range(8)
"""NO_KEY: the party has not registered the key; KEY_CLOSED: not for that time.
OTHER_COMMAND: the command was accepted with another transaction or content."""

ACCEPTING = (None, DUPLICATE)
"""Verdicts that are an acceptance of the request's command; None: notarised at its own offset."""

EXCEPTION = np.dtype([("offset", "i8"), ("reason", "u1"), ("notarised_offset", "i8")])
"""A reason against a request; `notarised_offset` only means something for a DUPLICATE and for a DEDUPLICATED."""
