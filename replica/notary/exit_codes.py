"""Exit codes of all our processes. A supervisor decides by them what to do next, and a script what happened."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1  # a supervisor starts it again; a command failed, or a check found something wrong
EXIT_CONFIGURATION = 2  # a person is needed first: a restart, or the same command again, changes nothing
