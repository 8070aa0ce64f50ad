"""`python -m ledger_api.server`, as the core starts it."""

import sys

from ledger_api.server.main import main

sys.exit(main())
