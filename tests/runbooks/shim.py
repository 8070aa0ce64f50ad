"""Stands in for `systemctl` and `journalctl`: passes its arguments to the stage, and prints what comes back."""

from __future__ import annotations

import json
import os
import socket
import sys


def main() -> int:
    """Ask over the stage's socket; returns its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["STAGE_SOCKET"])
        connection.sendall(json.dumps(sys.argv[1:]).encode() + b"\n")
        with connection.makefile() as answer:
            said = json.loads(answer.readline())
    print(said["text"], end="", flush=True)
    return int(said["code"])


if __name__ == "__main__":
    sys.exit(main())
