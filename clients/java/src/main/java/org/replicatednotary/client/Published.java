package org.replicatednotary.client;

/** What has a ledger offset: 1, 2, 3, …, the same whichever replica serves it. */
public sealed interface Published permits Completion, Update {
    long offset();

    String txId();

    String contentDigest();

    long logOffset();

    String recordedAt();
}
