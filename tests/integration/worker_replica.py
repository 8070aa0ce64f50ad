"""The command line of a replica that serves whoever holds the lock, which `notary config check` refuses as yet:
`python -m tests.integration.worker_replica replica --config FILE --name NAME`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from replica.cli.common import load
from replica.cli.replica import replica_settings
from replica.process import run_replica

if __name__ == "__main__":
    _, _, _, config, _, name = sys.argv
    sys.exit(run_replica(replace(replica_settings(load(Path(config)), name), serving="all")))
