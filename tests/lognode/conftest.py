"""The log node's tests start real processes and real links."""

from __future__ import annotations
