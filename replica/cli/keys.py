"""`notary keys`: keys in PKCS#8 files, for the notary and for parties, and the notary's on a token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, out, print_json
from replica.cli.trailed import ReasonOption, acting
from replica.notary.errors import ConfigError
from replica.notary.signatures import Algorithm

if TYPE_CHECKING:
    from replica.settings import Pkcs11Settings

app = typer.Typer(help="Make and show keys, for the notary or for a party.", no_args_is_help=True)

FileArgument = Annotated[Path | None, typer.Argument(help="PKCS#8 PEM file with the private key.", show_default=False)]
TokenOption = Annotated[
    bool, typer.Option("--pkcs11", help="The key on the token that [pkcs11] in the configuration names, not in a file.")
]
AlgorithmOption = Annotated[
    Algorithm | None,
    typer.Option(
        "--algorithm", help="ed25519, or p256 (ECDSA), which is for the notary alone: parties sign with Ed25519."
    ),
]


@app.command()
def create(
    file: FileArgument = None,
    *,
    algorithm: AlgorithmOption = None,
    pkcs11: TokenOption = False,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new key and print its public key: a file of mode 0600, or a pair that never leaves the token.

    What exists is never overwritten. Without --algorithm it is an Ed25519 key.
    """
    from replica.active.signer import create_key

    if pkcs11:
        from replica.active.pkcs11 import create_token_key

        _show(create_token_key(_token(config), algorithm or "ed25519"), as_json)
    else:
        _show(create_key(_named(file), algorithm or "ed25519"), as_json)


@app.command()
def show(
    file: FileArgument = None, *, pkcs11: TokenOption = False, config: ConfigChoice = None, as_json: JsonOption = False
) -> None:
    """Print the public key of a private key; a file that others can read is refused."""
    from replica.active.signer import load_notary_signer, open_signer

    signer = open_signer(None, _token(config)) if pkcs11 else load_notary_signer(_named(file))
    _show(signer.public_key, as_json)


@app.command()
def rotate(
    new: Annotated[str, typer.Argument(help="File for the new key, or with [pkcs11] its label; it is made.")],
    *,
    algorithm: AlgorithmOption = None,
    config: ConfigChoice = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new key for the notary, and add it to the public keys that verify, with the present one and its end.

    Nothing signs with it yet. Then copy both files to every replica's machine, set notary_key_file (pkcs11.key_label
    for a key on a token) to the new key and notary_keys_file to the list, and restart the replicas one by one, passives
    first. Receipts of both keys verify. Without --algorithm the new key is of the present one's algorithm.
    """
    from datetime import UTC, datetime

    from replica.active.signer import create_key
    from replica.notary.keys import KEYS_NAME, read_keys, rotated, write_keys
    from replica.notary.signatures import algorithm_of

    file = find_config(config)
    settings = load(file)
    path = settings.notary_keys_file or (settings.notary_key_file or file).with_name(KEYS_NAME)
    keys = read_keys(path) if path.exists() else []
    old = settings.notary_signer().public_key
    kind = algorithm or algorithm_of(old)
    with acting(settings, "keys-rotate", {"new": new, "keys_file": path.name, "algorithm": kind}, reason) as act:
        if settings.pkcs11 is None:
            key = create_key(Path(new), kind)
        else:
            from replica.active.pkcs11 import create_token_key

            key = create_token_key(settings.pkcs11.model_copy(update={"key_label": new}), kind)
        write_keys(path, rotated(keys, old, key, datetime.now(UTC).replace(microsecond=0)))
        act.outcome = f"{key.hex()} follows {old.hex()}"
    if as_json:
        print_json({"public_key": key.hex(), "keys_file": str(path)})
    else:
        out.print(f"{key.hex()} is in {new}, and in {path} with those before; set notary_keys_file to it", markup=False)


def _token(config: Path | None) -> Pkcs11Settings:
    token = load(find_config(config)).pkcs11
    if token is None:
        raise ConfigError("the configuration has no table [pkcs11]")
    return token


def _named(file: Path | None) -> Path:
    if file is None:
        raise ConfigError("name a file, or give --pkcs11")
    return file


def _show(public_key: bytes, as_json: bool) -> None:
    if as_json:
        print_json({"public_key": public_key.hex()})
    else:
        typer.echo(public_key.hex())
