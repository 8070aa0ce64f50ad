"""`python -m replica.cli` is the command `notary`."""

from replica.cli.main import main

main()
