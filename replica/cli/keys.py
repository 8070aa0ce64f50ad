"""`notary keys`: Ed25519 keys in PKCS#8 files, for the notary and for parties."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, out, print_json

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


@app.command()
def rotate(
    new: Annotated[Path, typer.Argument(help="File for the new key; it is made, mode 0600.")],
    *,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new key for the notary, and add it to the public keys that verify, with the present one and its end.

    Nothing signs with it yet. Then copy both files to every replica's machine, set notary_key_file to the new key and
    notary_keys_file to the list, and restart the replicas one by one, passives first. Receipts of both keys verify.
    """
    from datetime import UTC, datetime

    from replica.core.signer import create_key, load_signer
    from replica.notary.keys import KEYS_NAME, read_keys, rotated, write_keys

    file = find_config(config)
    settings = load(file)
    path = settings.notary_keys_file or settings.notary_key_file.with_name(KEYS_NAME)
    keys = read_keys(path) if path.exists() else []
    old = load_signer(settings.notary_key_file).public_key
    key = create_key(new)
    write_keys(path, rotated(keys, old, key, datetime.now(UTC).replace(microsecond=0)))
    if as_json:
        print_json({"public_key": key.hex(), "keys_file": str(path)})
    else:
        out.print(f"{key.hex()} is in {new}, and in {path} with those before; set notary_keys_file to it", markup=False)


def _tell(public_key: bytes, as_json: bool) -> None:
    if as_json:
        print_json({"public_key": public_key.hex()})
    else:
        typer.echo(public_key.hex())
