"""Why a request is not notarised at its own offset; the lowest that applies is its verdict, as in `rules`."""

from __future__ import annotations

import numpy as np

DEDUPLICATED, OTHER_COMMAND, DUPLICATE, REUSED, CONFLICT, WINDOW = range(6)
"""The first two are of rules 2. OTHER_COMMAND: the command was accepted with another transaction or content."""

ACCEPTING = (None, DUPLICATE)
"""Verdicts that are an acceptance of the request's command; None: notarised at its own offset."""

EXCEPTION = np.dtype([("offset", "i8"), ("reason", "u1"), ("notarised_offset", "i8")])
"""A reason against a request; `notarised_offset` only means something for a DUPLICATE and for a DEDUPLICATED."""
