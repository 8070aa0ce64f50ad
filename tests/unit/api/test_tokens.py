"""Tokens: only asymmetric signatures of known keys, for us, in time; and they grant no more than they say."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from ledger_api.server.authentication import TokenAuthentication
from ledger_api.server.authorisation import Caller, check_may_submit, may_see
from ledger_api.server.rate import BUCKETS_MAX, RateExceeded, RateLimit, Rates
from ledger_api.server.settings import ApiSettings, TokenSettings
from ledger_api.server.tokens import (
    TRIED_MAX,
    KeyUnknown,
    TokenRefused,
    check_token,
    parse_keys,
    read_keys,
    token_in,
)
from ledger_api.wire.submissions import ANONYMOUS
from replica.link.interface import PeerSeen, serving
from replica.notary.codes import Code
from replica.notary.errors import BadRequest, ConfigError
from tests.certificates import Authority
from tests.tokens import AUDIENCE, NOW_S, Issuer

ISSUER = Issuer()
SETTINGS = TokenSettings(keys_file=Path("unused"), audience=AUDIENCE)
RIGHTS = {"act_as": ["O=A"], "read_as": ["O=B"]}


def check(token: str, settings: TokenSettings = SETTINGS, now_s: float = NOW_S) -> Caller:
    return check_token(token, parse_keys(ISSUER.jwks(), "test"), settings, now_s)


def test_a_token_grants_what_it_says_and_nothing_else() -> None:
    """Goal: rights per party. Method: a token with each right, one with none, one of an administrator."""
    assert check(ISSUER.token(notary=RIGHTS)) == Caller(
        subject="treasury",
        act_as=frozenset({"O=A"}),
        user_id="treasury",
        read_as=frozenset({"O=A", "O=B"}),
        expires_at_s=NOW_S + 60 + SETTINGS.leeway_s,
    )
    nobody = check(ISSUER.token())
    assert (nobody.act_as, nobody.read_as) == (frozenset(), frozenset())
    assert not may_see(nobody, "treasury", ["O=A"])
    admin = check(ISSUER.token(notary={"admin": True}))
    assert admin.act_as == frozenset()
    assert may_see(admin, "anybody", ["O=Z"])


@pytest.mark.parametrize(
    "token",
    [
        ISSUER.token(aud="other"),
        ISSUER.token(aud=None),
        ISSUER.token(sub=None),
        ISSUER.token(sub=""),
        ISSUER.token(sub=17),
        ISSUER.token(sub="x" * 256),
        ISSUER.token(sub="treasury\0"),
        ISSUER.token(exp=None),
        ISSUER.token(exp="soon"),
        ISSUER.token(exp=float("nan")),
        ISSUER.token(exp=10**400),
        ISSUER.token(expires_at_s=NOW_S - 60),
        ISSUER.token(nbf=int(NOW_S) + 600),
        ISSUER.token(notary={"act_as": "O=A"}),
        ISSUER.token(notary={"superuser": True}),
        Issuer("k1").token(),
        ISSUER.token()[:-2] + "AA",
        "a.b.c",
        "",
        "x" * 9_000,
        jwt.encode(
            {"alg": "HS256", "kid": "k1"}, {"sub": "x"}, OctKey.import_key("secret-secret-secret-secret-secret")
        ),
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.",
    ],
)
def test_what_is_not_for_us_is_refused(token: str) -> None:
    """Goal: no forged, foreign, old or malformed token counts, nor one without a signature. Method: one of each."""
    with pytest.raises(TokenRefused) as refused:
        check(token)
    assert refused.value.code is Code.TOKEN_INVALID
    assert token not in refused.value.detail or not token


def test_a_public_key_cannot_be_used_as_a_shared_secret() -> None:
    """Goal: the classic confusion of algorithms. Method: HMAC with the public key's own bytes."""
    claims = {"sub": "x", "aud": AUDIENCE, "exp": int(NOW_S) + 60}
    signed = b".".join(urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "HS256"}, claims))
    mac = hmac.digest(ISSUER.key.as_pem(private=False), signed, "sha256")
    forged = (signed + b"." + urlsafe_b64encode(mac).rstrip(b"=")).decode()
    with pytest.raises(TokenRefused):
        check(forged)


def test_scope_and_issuer_are_checked_when_set() -> None:
    """Goal: tokens of another service or issuer. Method: with and without each."""
    settings = TokenSettings(keys_file=Path("unused"), scope="notarise", issuer="https://issuer")
    good = {"aud": None, "scope": "openid notarise", "iss": "https://issuer"}
    assert check(ISSUER.token(**good), settings).subject == "treasury"
    for change in (
        {"scope": "openid"},
        {"scope": None},
        {"scope": ["notarise"]},
        {"iss": "https://other"},
        {"iss": None},
    ):
        with pytest.raises(TokenRefused):
            check(ISSUER.token(**good | change), settings)


def test_keys_from_jwks_pem_and_certificate(tmp_path: Path) -> None:
    """Goal: what an issuer hands out is understood. Method: a key of each kind, and what is no public key."""
    certificate, private_key = Authority(tmp_path).issue("issuer")
    for text in (ISSUER.jwks(Issuer("k2")), ISSUER.key.as_pem(private=False).decode(), certificate.read_text()):
        assert parse_keys(text, "test").keys
    for kind in (RSAKey.generate_key(2048), OKPKey.generate_key("Ed25519")):
        assert parse_keys(kind.as_pem(private=False).decode(), "test").keys
    bad = [
        json.dumps({"keys": []}),
        json.dumps({"keys": [OctKey.generate_key(256).as_dict()]}),
        json.dumps({"keys": [ISSUER.key.as_dict(private=True)]}),
        json.dumps({"keys": "k"}),
        json.dumps([]),
        private_key.read_text(),
        "nothing",
        "{",
    ]
    for text in bad:
        with pytest.raises(ConfigError):
            parse_keys(text, "test")
    with pytest.raises(ConfigError):
        read_keys(tmp_path / "missing")


AKP = {"kty": "AKP", "alg": "ML-DSA-65", "kid": "pq", "pub": "A" * 100}  # RFC 9964
OTHERS: dict[str, dict[str, Any]] = {
    "post-quantum": AKP,
    "no kind": {"kid": "broken"},
    "weak": {"kty": "RSA", "e": "AQAB", "n": "sQ" * 85},
    "another curve": ECKey.generate_key("secp256k1").as_dict(private=False),
    "for encryption": RSAKey.generate_key(2048).as_dict(private=False) | {"use": "enc"},
    "X25519": OKPKey.generate_key("X25519").as_dict(private=False),
    "symmetric": OctKey.generate_key(256).as_dict(),
    "damaged": {"kty": "RSA", "n": "?", "e": 7},
}


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
@pytest.mark.parametrize("other", OTHERS.values(), ids=list(OTHERS))
def test_a_key_of_another_kind_takes_no_other_key_along(other: dict[str, Any]) -> None:
    """Goal: an issuer may publish what we do not know. Method: each beside ours, before and after it; alone."""
    for documents in ([other, ISSUER.key.as_dict(private=False)], [ISSUER.key.as_dict(private=False), other]):
        keys = parse_keys(json.dumps({"keys": documents}), "test")
        settings = TokenSettings(keys_file=Path("x"), audience=AUDIENCE)
        assert check_token(ISSUER.token(), keys, settings, NOW_S).subject == "treasury"
    if other.get("crv") not in {"secp256k1", "X25519"}:  # these are keys, but of no algorithm that is taken
        with pytest.raises(ConfigError):
            parse_keys(json.dumps({"keys": [other]}), "test")


def test_a_token_that_names_no_key_is_checked_by_those_that_fit() -> None:
    """Goal: kid is optional (RFC 7515). Method: two keys without kid of one kind, a third of another; an unknown one;
    more keys than are tried."""
    keys = [RSAKey.generate_key(2048), RSAKey.generate_key(2048), ECKey.generate_key("P-256")]
    claims = {"sub": "treasury", "aud": AUDIENCE, "exp": int(NOW_S) + 60}
    settings = TokenSettings(keys_file=Path("x"), audience=AUDIENCE)

    def published(*some: Any) -> Any:
        return parse_keys(json.dumps({"keys": [key.as_dict(private=False) for key in some]}), "test")

    for key, algorithm in zip(keys, ("RS256", "RS256", "ES256"), strict=True):
        token = jwt.encode({"alg": algorithm}, claims, key)
        assert check_token(token, published(*keys), settings, NOW_S).subject == "treasury"
        with pytest.raises(KeyUnknown):
            check_token(token, published(*(one for one in keys if one is not key)), settings, NOW_S)
    with pytest.raises(KeyUnknown):
        many = [ECKey.generate_key("P-256") for _ in range(TRIED_MAX)]
        check_token(jwt.encode({"alg": "ES256"}, claims, keys[2]), published(*many, keys[2]), settings, NOW_S)


def request(header: str | None) -> Any:
    """As much of an HTTP request as an authentication looks at."""
    headers = {} if header is None else {"Authorization": header}
    return SimpleNamespace(headers=headers, protocol=object())


class World:
    """A doorkeeper whose clock and whose issuer's page are moved by the test."""

    def __init__(self, keys_file: Path | None = None) -> None:
        self.now_s, self.age_s, self.page, self.fetches = NOW_S, 0.0, ISSUER.jwks(), 0
        source: dict[str, Any] = {"keys_file": keys_file} if keys_file else {"jwks_url": "https://issuer/keys"}
        self.authentication = TokenAuthentication(
            TokenSettings(**source, audience=AUDIENCE),
            now_s=lambda: self.now_s,
            fetch=self._fetch,
            age_s=lambda: self.age_s,
        )

    async def _fetch(self, url: str) -> str:
        self.fetches += 1
        return self.page


async def test_a_token_is_checked_once_and_forgotten_in_time(tmp_path: Path) -> None:
    """Goal: no cost per request, and no rights after the end. Method: ask twice, expire, replace the keys."""
    world = World(ISSUER.write(tmp_path / "keys.json"))
    asked = request("Bearer " + ISSUER.token(notary=RIGHTS))
    assert world.authentication.remembered(asked) is None
    caller = await world.authentication.identify(asked)
    assert world.authentication.remembered(asked) is caller
    world.now_s = caller.expires_at_s
    assert world.authentication.remembered(asked) is None
    with pytest.raises(TokenRefused):
        await world.authentication.identify(asked)
    world.now_s = NOW_S
    Issuer("k2").write(tmp_path / "keys.json")
    world.authentication.reload()
    assert world.authentication.remembered(asked) is None
    with pytest.raises(KeyUnknown):
        await world.authentication.identify(asked)


async def test_a_rotated_key_is_fetched_when_it_is_met(tmp_path: Path) -> None:
    """Goal: rotation without a restart, and no flood of fetches, wherever the clock goes. Method: a new key on the page
    after the clock stepped back by an hour, then unknown ones."""
    world = World()
    old, new = request("Bearer " + ISSUER.token()), Issuer("k2")
    assert (await world.authentication.identify(old)).subject == "treasury"
    world.page, world.now_s, world.age_s = new.jwks(ISSUER), NOW_S - 3_600, 10.0
    assert (await world.authentication.identify(request("Bearer " + new.token()))).subject == "treasury"
    assert world.fetches == 2
    for _ in range(20):
        with pytest.raises(KeyUnknown):
            await world.authentication.identify(request("Bearer " + Issuer("k3").token()))
    assert world.fetches == 2


async def test_a_single_token_is_revoked_by_its_id(tmp_path: Path) -> None:
    """Goal: a stolen token ends without a new key. Method: list its id and reload; others go on; no list."""
    revoked_file = tmp_path / "revoked"
    revoked_file.write_text("# stolen\n\n")
    settings = TokenSettings(
        keys_file=ISSUER.write(tmp_path / "keys.json"), audience=AUDIENCE, revoked_file=revoked_file
    )
    authentication = TokenAuthentication(settings, now_s=lambda: NOW_S)
    stolen, other = (request("Bearer " + ISSUER.token(jti=jti)) for jti in ("a-1", "a-2"))
    caller = await authentication.identify(stolen)
    assert (await authentication.identify(other)).left_s(NOW_S) > 0
    assert caller.left_s(NOW_S) > 0
    with pytest.raises(TokenRefused, match="no id"):
        await authentication.identify(request("Bearer " + ISSUER.token()))
    revoked_file.write_text("# stolen\na-1\n")
    authentication.reload()
    assert caller.left_s(NOW_S) < 0  # so its open streams end
    with pytest.raises(TokenRefused, match="was revoked"):
        await authentication.identify(stolen)
    assert (await authentication.identify(other)).left_s(NOW_S) > 0
    revoked_file.unlink()
    with pytest.raises(ConfigError):
        authentication.reload()
    with pytest.raises(TokenRefused):
        await authentication.identify(stolen)


def test_the_rate_of_a_user_is_bounded_unless_it_is_asked_otherwise(tmp_path: Path) -> None:
    """Goal: one caller cannot take a front end, as configured by nobody. Method: the default, as long as a burst."""
    settings = ApiSettings()
    rates, user = Rates(settings, lambda: 0.0, lambda: 1), Caller(subject="treasury")
    rates.charge(user, request(None), settings.rate_burst)
    with pytest.raises(RateExceeded):
        rates.charge(user, request(None), 1)
    rates.charge(Caller(subject="other"), request(None), settings.rate_burst)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc"])
def test_a_call_without_a_token_says_so(header: str | None) -> None:
    """Goal: the code leads to what to do. Method: headers without a token."""
    with pytest.raises(BadRequest) as refused:
        token_in(header)
    assert refused.value.code is Code.TOKEN_MISSING


def test_a_caller_submits_as_himself_for_his_parties() -> None:
    """Goal: nobody acts for another. Method: other users, other parties, in the request and in act_as."""
    caller = check(ISSUER.token(notary=RIGHTS))
    check_may_submit(caller, "treasury", "O=A", ())
    check_may_submit(caller, "treasury", "O=A", ["O=A"])
    for user_id, party, act_as in (
        ("cashier", "O=A", ()),
        ("treasury", "O=B", ()),
        ("treasury", "O=A", ("O=A", "O=B")),
    ):
        with pytest.raises(BadRequest) as refused:
            check_may_submit(caller, user_id, party, act_as)
        assert refused.value.code is Code.PERMISSION_DENIED
    check_may_submit(Caller(), "u", "O=Z", ())


def test_who_signs_for_another_user_than_the_tokens_is_told_both() -> None:
    """Goal: the remedy is in the answer. Method: a request signed without a user, and a token of treasury."""
    with pytest.raises(BadRequest) as refused:
        check_may_submit(check(ISSUER.token(notary=RIGHTS)), ANONYMOUS, "O=A", ())
    assert refused.value.detail == (
        "the request is of user 'anonymous', the token of user 'treasury': sign it with user_id 'treasury', "
        "or send it with a token of 'anonymous'"
    )


def test_a_bucket_gives_its_rate_and_no_more() -> None:
    """Goal: bounded rate, bounded burst, bounded memory. Method: empty it, wait, and meet very many callers."""
    limit = RateLimit(10.0, 20)
    assert [limit.take("a", 20, 0.0), limit.take("a", 1, 0.0), limit.take("b", 20, 0.0)] == [0.0, 0.1, 0.0]
    assert limit.take("a", 10, 1.0) == 0.0
    assert limit.take("a", 1, 1.0) == pytest.approx(0.1)
    for number in range(BUCKETS_MAX + 10):
        limit.take(number, 1, 100.0 + number)
    assert len(limit._buckets) <= BUCKETS_MAX


def test_replicas_that_serve_share_a_rate(tmp_path: Path) -> None:
    """Goal: a user has rate and burst once in the cluster. Method: two limits that know of one another, and of one that
    went away; whom a replica counts."""
    one, two = RateLimit(10.0, 20), RateLimit(10.0, 20)
    for limit in (one, two):
        assert limit.take("a", 10, 0.0, 2) == 0.0
        assert limit.take("a", 6, 1.0, 2) == pytest.approx(0.2)
        assert limit.take("a", 5, 1.0, 2) == 0.0
    assert one.take("a", 10, 2.0, 1) == 0.0
    assert one.take("b", 20, 2.0, 1) == 0.0
    assert two.take("c", 1, 2.0, 1) == two.take("c", 10, 2.0, 2) == 0.0  # it held 20 until others served as well
    assert two.take("c", 1, 2.0, 2) == pytest.approx(0.2)
    peers = [
        PeerSeen("r2", active=True, epoch=1, seen_us=1, answers=True),
        PeerSeen("r3", active=True, epoch=1, seen_us=1, answers=False),
        PeerSeen("r4", active=False, epoch=1, seen_us=1, answers=True),
    ]
    assert serving(peers) == 2
    settings, now_s = ApiSettings(rate_per_s=10, rate_burst=10, batch_max=10), [0.0]
    rates, user = Rates(settings, lambda: now_s[0], lambda: serving(peers)), Caller(subject="treasury")
    rates.charge(user, request(None), 5)
    now_s[0] = 0.9
    with pytest.raises(RateExceeded):
        rates.charge(user, request(None), 5)
    now_s[0] = 1.0
    rates.charge(user, request(None), 10)  # a batch of more than this replica's part: from a full bucket
    now_s[0] = 1.9
    with pytest.raises(RateExceeded) as refused:
        rates.charge(user, request(None), 1)
    assert refused.value.retry_after_s == pytest.approx(0.3)  # what was overdrawn is paid first
    now_s[0] = 1.0
    connection = request(None)
    rates.charge(Caller(), connection, 10)
    now_s[0] = 1.9
    rates.charge(Caller(), connection, 9)  # nothing shares a connection's bucket


def test_a_shared_bucket_is_not_forgotten_before_it_is_full() -> None:
    """Goal: nobody gains by others' calls. Method: a bucket that is filled by half the rate, and very many callers."""
    limit = RateLimit(10.0, 20)
    assert limit.take("a", 10, 0.0, 2) == 0.0
    for number in range(BUCKETS_MAX):
        limit.take(number, 10, 1.5, 2)
    assert limit.take("a", 8, 1.5, 2) == pytest.approx(0.1)
    assert limit.take("a", 7, 1.5, 2) == 0.0


def test_users_are_charged_by_name_and_others_by_connection(tmp_path: Path) -> None:
    """Goal: a user cannot have more by opening connections. Method: two connections, with and without a name."""
    settings = ApiSettings(rate_per_s=1, rate_burst=10, batch_max=10)
    rates, user = Rates(settings, lambda: 0.0, lambda: 1), Caller(subject="treasury")
    one, other = request(None), request(None)
    rates.charge(user, one, 10)
    with pytest.raises(RateExceeded) as refused:
        rates.charge(user, other, 1)
    assert refused.value.retry_after_s == 1.0
    rates.charge(Caller(), one, 10)
    rates.charge(Caller(), other, 10)
    with pytest.raises(RateExceeded):
        rates.charge(Caller(), one, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"audience": "a"},
        {"keys_file": "k"},
        {"keys_file": "k", "jwks_url": "https://x", "audience": "a"},
        {"jwks_url": "http://x", "audience": "a"},
        {"keys_file": "k", "audience": "a", "algorithms": "RS256,HS256"},
        {"keys_file": "k", "audience": "a", "algorithms": "none"},
    ],
)
def test_settings_that_would_let_others_in_are_refused(wrong: dict[str, object]) -> None:
    """Goal: no symmetric algorithm, no plain fetch of keys, no token for another service. Method: each setting."""
    with pytest.raises(ValueError, match="validation error"):
        TokenSettings.model_validate(wrong)


def test_an_elliptic_key_signs_for_its_own_curve_only() -> None:
    """Goal: `alg` is checked against the key. Method: a P-384 key's token before an issuer of P-256."""
    other = ECKey.generate_key("P-384", {"kid": "k1"})
    token = jwt.encode(
        {"alg": "ES384", "kid": "k1"}, {"sub": "x", "aud": AUDIENCE, "exp": int(NOW_S) + 60}, other, ["ES384"]
    )
    with pytest.raises(TokenRefused):
        check(token)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("document", ["secret-secret-secret", 7, None, [], {"kty": "oct", "k": "c2VjcmV0"}, {}])
def test_what_is_no_public_key_in_a_key_set_is_refused_unread(document: object) -> None:
    """Goal: a text in a key set is not taken for a symmetric key. Method: elements of every wrong kind; no warning."""
    with pytest.raises(ConfigError):
        parse_keys(json.dumps({"keys": [document]}), "jwks.json")


def test_a_rate_is_bounded_unless_somebody_says_otherwise() -> None:
    """Goal: no caller has the notary alone by an oversight. Method: the defaults: neither 0 nor huge."""
    rate = ApiSettings.model_fields["rate_per_s"].default
    assert 1 <= rate <= 10_000
    assert rate <= ApiSettings.model_fields["rate_burst"].default <= 10 * rate
