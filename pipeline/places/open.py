"""The store that a URL names, with the credentials of the environment.

Credentials are never settings and never travel to Spark's workers: each process takes those of its own environment, as
the tools of the store's vendor do. S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, web
identity and instance roles; AWS_ENDPOINT_URL for a server that is not Amazon's, AWS_ALLOW_HTTP=true for one without
TLS. Azure: AZURE_STORAGE_ACCOUNT_KEY and what else obstore documents. HDFS: HADOOP_CONF_DIR (name services, Kerberos),
HADOOP_USER_NAME, or a Kerberos ticket.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

from pipeline.places.store import Store
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.places import Remote

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_REQUEST_MAX = "120s"  # one request, its bytes included: at most ONE_REQUEST_BYTES


@cache  # a client has its own connections
def open_store(place: Remote) -> Store:
    """The store at this place. Asks nothing of the server yet.

    Raises ConfigError, as where credentials are missing, or the library: who keeps local files does without it.
    """
    scheme, _, rest = place.partition("://")
    holder, _, prefix = rest.partition("/")
    try:
        return _hdfs(holder, prefix) if scheme == "hdfs" else _objects(place, scheme, holder, prefix)
    except ModuleNotFoundError as error:
        further = ", for HDFS: pip install 'replicated-notary[hdfs]'" if scheme == "hdfs" else ""
        raise ConfigError(f"not installed: {error.name}{further}", Code.PIPELINE_MISSING) from None


def _objects(place: Remote, scheme: str, holder: str, prefix: str) -> Store:
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, S3Store

    from pipeline.places.objects import ObjectsStore

    client: ClientConfig = {
        "timeout": _REQUEST_MAX,
        "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1"),
    }
    once: RetryConfig = {"max_retries": 0}
    try:
        if scheme.startswith("s3"):
            return ObjectsStore(
                S3Store(
                    holder,
                    prefix=prefix or None,
                    client_options=client,
                    retry_config=once,
                    checksum_algorithm="SHA256",  # a bucket with object lock wants one with each write
                )
            )
        container, _, host = holder.partition("@")
        account = host.partition(".")[0]
        azure = AzureStore(
            container, prefix=prefix or None, account_name=account, client_options=client, retry_config=once
        )
        return ObjectsStore(azure)
    except BaseError as error:
        raise ConfigError(f"{place}: {str(error).partition(chr(10))[0]}", Code.PLACE_ACCESS_DENIED) from None


def _hdfs(namenode: str, prefix: str) -> Store:
    from pipeline.places.hdfs import HdfsStore

    return HdfsStore(f"hdfs://{namenode}", f"/{prefix}")
