"""An issuer of tokens for tests."""

from __future__ import annotations

import json
from pathlib import Path

from joserfc import jwt
from joserfc.jwk import ECKey

AUDIENCE = "notary"
NOW_S = 1_800_000_000.0


class Issuer:
    """Signs tokens with one key, whose public half is in its JWKS."""

    def __init__(self, kid: str = "k1") -> None:
        self.key = ECKey.generate_key("P-256", {"kid": kid})

    def jwks(self, *others: Issuer) -> str:
        """The public keys of this issuer and of others."""
        return json.dumps({"keys": [issuer.key.as_dict(private=False) for issuer in (self, *others)]})

    def write(self, path: Path) -> Path:
        """The JWKS in a file."""
        path.write_text(self.jwks())
        return path

    def token(self, *, expires_at_s: float = NOW_S + 60, **claims: object) -> str:
        """A token for treasury; claims given here replace what it has, None leaves one out."""
        everything = {"sub": "treasury", "aud": AUDIENCE, "exp": int(expires_at_s)} | claims
        kept = {name: value for name, value in everything.items() if value is not None}
        return jwt.encode({"alg": "ES256", "kid": self.key.kid}, kept, self.key)
