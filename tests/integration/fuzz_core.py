"""`notary replica` whose link takes front ends that know `GENERATION`: a fuzzer has to get in to be let loose."""

from __future__ import annotations

import secrets

GENERATION = "generation that the fuzzer knows!"

if __name__ == "__main__":
    from replica.cli.main import main

    secrets.token_hex = lambda nbytes=None: GENERATION  # the replica's one use of it
    main()
