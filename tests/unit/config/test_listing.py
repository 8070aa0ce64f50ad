"""The addresses that GET /v1/endpoints lists: what may be configured, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from replica.cli.replica import replica_settings
from replica.config.load import make_config
from replica.config.model import Config
from replica.notary.errors import ConfigError
from tests.unit.config.test_exposure import values

URLS = ["https://a.example:8080", "https://b.example:8080", "https://c.example:8080"]


def config_of(base: Path, urls: list[str | None], **changes: Any) -> Config:
    given = values(**changes)
    replicas = [dict(given["replicas"][0], name=f"r{n}", host=f"127.0.0.{n}") for n in range(1, len(urls) + 1)]
    given["replicas"] = [
        replica | ({"api_url": url} if url else {}) for replica, url in zip(replicas, urls, strict=True)
    ]
    return make_config(given, base, "test")


def test_what_is_configured_reaches_the_front_end(tmp_path: Path) -> None:
    """Goal: the list is of the configuration and nothing else. Method: none, the replicas' own, a balancer's."""
    assert replica_settings(config_of(tmp_path, [None] * 3), "r1").listing == {"replicas": [], "balanced": None}
    own = replica_settings(config_of(tmp_path, list(URLS)), "r1").listing
    assert own == {"replicas": [{"name": f"r{n}", "url": url} for n, url in enumerate(URLS, 1)], "balanced": None}
    balanced = config_of(tmp_path, [None] * 3, public_url="https://notary.example:8080")
    assert replica_settings(balanced, "r1").listing == {"replicas": [], "balanced": "https://notary.example:8080"}


@pytest.mark.parametrize(
    ("urls", "public_url", "why"),
    [
        ([URLS[0], None, URLS[2]], None, "for all replicas, one of its own each, or for none"),
        ([URLS[0], URLS[0], URLS[2]], None, "for all replicas, one of its own each"),
        ([URLS[0], URLS[1], "http://c.example:8080"], None, "all of them http, or all of them https"),
        (URLS, "https://notary.example", "either public_url or replicas.api_url"),
        ([None] * 3, "https://user:secret@notary.example", "public_url"),
        ([None] * 3, "https://notary.example/v1", "public_url"),
        ([None] * 3, "notary.example:8080", "public_url"),
        ([None] * 3, "https://notary.example:8080\n", "public_url"),
    ],
)
def test_what_would_mislead_is_refused(
    tmp_path: Path, urls: list[str | None], public_url: str | None, why: str
) -> None:
    """Goal: a list that applications cannot use is found before they get it. Method: each fault alone."""
    changes = {} if public_url is None else {"public_url": public_url}
    with pytest.raises(ConfigError, match=why):
        config_of(tmp_path, list(urls), **changes)
