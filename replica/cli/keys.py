"""`notary keys`: keys in PKCS#8 files, for the notary and for parties, and the notary's on a token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, out, print_json
from replica.cli.trailed import ReasonOption, acting
from replica.notary.errors import ConfigError
from replica.notary.signatures import Algorithm

if TYPE_CHECKING:
    from replica.active.signer import Signer
    from replica.config.model import Config
    from replica.settings import KmsSettings, Pkcs11Settings

Named = TypeVar("Named", Path, str)

app = typer.Typer(help="Make and show keys, for the notary or for a party.", no_args_is_help=True)

FileArgument = Annotated[Path | None, typer.Argument(help="PKCS#8 PEM file with the private key.", show_default=False)]
TokenOption = Annotated[
    bool, typer.Option("--pkcs11", help="The key on the token that [pkcs11] in the configuration names, not in a file.")
]
ServiceOption = Annotated[
    bool, typer.Option("--kms", help="The key in the service that [kms] in the configuration names, not in a file.")
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
    file: FileArgument = None,
    *,
    pkcs11: TokenOption = False,
    kms: ServiceOption = False,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Print the public key of a private key; a file that others can read is refused."""
    from replica.active.signer import open_signer

    where = _token(config) if pkcs11 else _service(config) if kms else _named(file)
    _show(open_signer(where).public_key, as_json)


@app.command()
def rotate(
    new: Annotated[
        str | None,
        typer.Argument(
            help="File for the new key, or with [pkcs11] its label: it is made. With [kms], id, ARN or alias of one "
            "that the service has.",
            show_default=False,
        ),
    ] = None,
    *,
    algorithm: AlgorithmOption = None,
    next_config: Annotated[
        Path | None,
        typer.Option(
            help="The replicas' next configuration, instead of NEW: the new key is the one that it names, which is "
            "there already. So the key moves between file, token and service.",
            show_default=False,
        ),
    ] = None,
    config: ConfigChoice = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a new key of the notary's to the public keys that verify, with the present one and its end. Makes it first,
    or has one that is made already sign once.

    Nothing signs with it yet. Then copy both files to every replica's machine, set notary_key_file (pkcs11.key_label
    for a key on a token, kms.key_id for one in a service) to the new key and notary_keys_file to the list, and restart
    the replicas one by one, passives first. Receipts of both keys verify. Without --algorithm the new key is of the
    present one's algorithm.
    """
    from datetime import UTC, datetime

    from replica.notary.keys import KEYS_NAME, read_keys, rotated, write_keys
    from replica.notary.signatures import algorithm_of

    if next_config is None:
        named = _named(new, "name the new key, or give --next-config FILE")
    elif new is None:
        named = str(next_config)
    else:
        raise ConfigError("the new key is either named, or the one of --next-config")
    file = find_config(config)
    settings = load(file)
    path = settings.notary_keys_file or (settings.notary_key_file or file).with_name(KEYS_NAME)
    keys = read_keys(path) if path.exists() else []
    old = settings.notary_signer().public_key
    kind = algorithm or algorithm_of(old)
    with acting(settings, "keys-rotate", {"new": named, "keys_file": path.name, "algorithm": kind}, reason) as act:
        key = _made(settings, named, kind) if next_config is None else _signs(load(next_config).notary_signer())
        write_keys(path, rotated(keys, old, key, datetime.now(UTC).replace(microsecond=0)))
        act.outcome = f"{key.hex()} follows {old.hex()}"
    if as_json:
        print_json({"public_key": key.hex(), "keys_file": str(path)})
    else:
        out.print(
            f"{key.hex()} is of {named}, and in {path} with those before; set notary_keys_file to it", markup=False
        )


def _made(settings: Config, new: str, kind: Algorithm) -> bytes:
    """The public key of a pair made in a file or on the token; or of one that is in the service, which signs once."""
    from replica.active.signer import create_key, open_signer

    if settings.kms is not None:
        return _signs(open_signer(settings.kms.model_copy(update={"key_id": new})))
    if settings.pkcs11 is not None:
        from replica.active.pkcs11 import create_token_key

        return create_token_key(settings.pkcs11.model_copy(update={"key_label": new}), kind)
    return create_key(Path(new), kind)


def _signs(signer: Signer) -> bytes:
    """Its public key, once a signature of it verified. Raises SignerUnavailable."""
    from replica.active.signer import check_signer

    check_signer(signer)
    return signer.public_key


def _service(config: Path | None) -> KmsSettings:
    service = load(find_config(config)).kms
    if service is None:
        raise ConfigError("the configuration has no table [kms]")
    return service


def _token(config: Path | None) -> Pkcs11Settings:
    token = load(find_config(config)).pkcs11
    if token is None:
        raise ConfigError("the configuration has no table [pkcs11]")
    return token


def _named(what: Named | None, otherwise: str = "name a file, or give --pkcs11 or, to show a key, --kms") -> Named:
    if what is None:
        raise ConfigError(otherwise)
    return what


def _show(public_key: bytes, as_json: bool) -> None:
    if as_json:
        print_json({"public_key": public_key.hex()})
    else:
        typer.echo(public_key.hex())
