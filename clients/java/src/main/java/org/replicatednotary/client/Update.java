package org.replicatednotary.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;

/** A transaction at the moment it was notarised. */
public record Update(
        long offset, String txId, String contentDigest, List<String> actAs, long logOffset, String recordedAt)
        implements Published {
    static Update of(JsonNode document) {
        return new Update(
                Documents.integer(document, "offset"),
                Documents.text(document, "tx_id"),
                Documents.text(document, "content_digest"),
                Documents.texts(document, "act_as"),
                Documents.integer(document, "log_offset"),
                Documents.text(document, "recorded_at"));
    }
}
