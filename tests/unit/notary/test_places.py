"""Names of places: what is a local path, and what is refused because nothing here writes to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.places import Remote, local_path, no_url, place_of


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("archive", "archive"),
        ("/srv/archive", "/srv/archive"),
        ("/srv/s3a:/bucket", "/srv/s3a:/bucket"),  # how a local folder of that name is named
        ("12:30/archive", "12:30/archive"),  # a scheme begins with a letter
        ("10:00", "10:00"),
        ("file:/srv/archive", "/srv/archive"),
        ("file:///srv/archive", "/srv/archive"),
        ("file://localhost/srv/archive", "/srv/archive"),
        ("FILE:///srv/archive", "/srv/archive"),
        ("file:///srv/my%20archive", "/srv/my archive"),
    ],
)
def test_a_local_place_is_its_path(text: str, path: str) -> None:
    """Goal: `file:` and plain paths name the same files. Method: both forms."""
    assert local_path(text) == Path(path)


@pytest.mark.parametrize(
    "text",
    [
        "s3a://bucket/archive",
        "s3a:/bucket/archive",  # what is left of a URL that was a path for a moment
        "s3://bucket",
        "hdfs://namenode:8020/archive",
        "abfs://container@account.dfs.core.windows.net/archive",
        "S3A://bucket/archive",
        "file://elsewhere/archive",
        "x+y.z-1://archive",
    ],
)
def test_another_scheme_is_refused_with_a_stable_code(text: str) -> None:
    """Goal: a URL never becomes a local folder named by its scheme. Method: each scheme, and a host of files."""
    with pytest.raises(ConfigError) as refused:
        local_path(text)
    assert refused.value.code is Code.PLACE_UNKNOWN
    assert text in refused.value.detail


@pytest.mark.parametrize("url", ["s3a://bucket/archive", "file://elsewhere/archive", "file:///srv/archive"])
def test_a_path_that_was_a_url_is_refused(url: str) -> None:
    """Goal: a lost host is never passed over. Method: URLs that became paths, which is when the host is lost."""
    with pytest.raises(ConfigError) as refused:
        no_url(Path(url))
    assert refused.value.code is Code.PLACE_UNKNOWN
    assert no_url(Path("/srv/archive")) == Path("/srv/archive")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s3a://bucket", "s3a://bucket"),
        ("s3a://bucket/", "s3a://bucket"),
        ("s3://my.bucket-1/notary/archive_1/y=2026", "s3://my.bucket-1/notary/archive_1/y=2026"),
        ("s3a://bucket/archive/", "s3a://bucket/archive"),
        (
            "abfss://container@account.dfs.core.windows.net/archive",
            "abfss://container@account.dfs.core.windows.net/archive",
        ),
        ("hdfs://namenode:8020/archive/", "hdfs://namenode:8020/archive"),
        ("hdfs://lake/notary/archive", "hdfs://lake/notary/archive"),
    ],
)
def test_a_store_of_objects_is_named_by_its_url(text: str, place: str) -> None:
    """Goal: one name for one place. Method: each scheme, with and without prefix and last slash."""
    found = place_of(text)
    assert (type(found), found) == (Remote, place)


@pytest.mark.parametrize("text", ["archive", "/srv/s3a:/bucket", "file:///srv/archive"])
def test_a_place_may_be_local(text: str) -> None:
    """Goal: what was a folder stays one. Method: plain paths and a `file:` URL."""
    assert place_of(text) == local_path(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3a:/bucket",
        "s3a://",
        "s3a:///archive",
        "s3a://key:secret@bucket/archive",  # credentials belong in the environment
        "s3a://bucket//archive",
        "s3a://bucket/../other",
        "s3a://bucket/./archive",
        "s3a://bucket/archive?versionId=1",
        "s3a://bucket/archive#1",
        "s3a://bucket/my%20archive",
        "S3A://bucket/archive",
        "hdfs://namenode:8020",
        "hdfs:///archive",
        "hdfs://user@namenode/archive",
        "HDFS://namenode/archive",
        "gs://bucket/archive",
        "abfs://container/archive",
        "file://elsewhere/archive",
    ],
)
def test_what_no_store_is_named_by_is_refused(text: str) -> None:
    """Goal: nothing is guessed. Method: unknown schemes, and URLs with parts that would be passed over."""
    with pytest.raises(ConfigError) as refused:
        place_of(text)
    assert refused.value.code is Code.PLACE_UNKNOWN


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("s3a://b/x", "a bucket's name has 3 to 63 "),
        ("s3a://My_bucket/x", "a bucket's name has 3 to 63 "),
        (f"s3://{'b' * 64}/x", "a bucket's name has 3 to 63 "),
        ("s3a://key:secret@bucket/archive", "credentials are taken from the environment"),
        ("s3a://bucket/my%20archive", "what follows are names between single slashes"),
        ("s3a://bucket/../other", "what follows are names between single slashes"),
        ("abfs://container/archive", "give abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX"),
        ("hdfs://namenode:8020/", "give hdfs://NAMENODE:PORT/PREFIX"),
        ("hdfs://namenode/my%20archive", "give hdfs://NAMENODE:PORT/PREFIX"),
        ("gs://bucket/archive", "files are not read from or written to this URL"),
    ],
)
def test_the_rule_that_a_url_breaks_is_named(text: str, rule: str) -> None:
    """Goal: nobody looks for a fault in the scheme where the bucket's name is too short. Method: one URL per rule."""
    with pytest.raises(ConfigError) as refused:
        place_of(text)
    assert refused.value.detail.startswith(f"{text}: {rule}")
    assert place_of("s3a://buc/x") == "s3a://buc/x"
