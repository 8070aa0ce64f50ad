"""`notary keys`: Ed25519 keys in PKCS#8 files, for the notary and for parties."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replica.cli.common import JsonOption, print_json

app = typer.Typer(help="Make and show Ed25519 keys, for the notary or for a party.", no_args_is_help=True)

FileArgument = Annotated[Path, typer.Argument(help="PKCS#8 PEM file with the private key.")]


@app.command()
def create(file: FileArgument, as_json: JsonOption = False) -> None:
    """Make a new key, mode 0600, and print its public key. An existing file is never overwritten."""
    from replica.core.signer import create_key

    _tell(create_key(file), as_json)


@app.command()
def show(file: FileArgument, as_json: JsonOption = False) -> None:
    """Print the public key of a private key; a file that others can read is refused."""
    from replica.core.signer import load_signer

    _tell(load_signer(file).public_key, as_json)


def _tell(public_key: bytes, as_json: bool) -> None:
    if as_json:
        print_json({"public_key": public_key.hex()})
    else:
        typer.echo(public_key.hex())
