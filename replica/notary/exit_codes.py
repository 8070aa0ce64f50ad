"""Exit codes of every process of ours: what a supervisor does next, or what a script may conclude."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1  # a supervisor starts it again; a command failed, or a check found something wrong
EXIT_CONFIGURATION = 2  # a person is needed first: starting it again, or typing the same command, changes nothing
