package org.replicatednotary.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;

/**
 * What became of one attempt; it never changes at its offset. {@code code} is NOTARISED, DEDUPLICATED (the command was accepted
 * before) or a code of the error catalogue.
 */
public record Completion(
        long offset,
        String userId,
        String commandId,
        List<String> actAs,
        String submissionId,
        String txId,
        String contentDigest,
        String code,
        long logOffset,
        Long notarisedOffset,
        String recordedAt,
        List<Answer.Conflict> conflicts)
        implements Published {
    /** Whether the attempt was a success: the transaction is notarised, by it or by an attempt before it. */
    public boolean succeeded() {
        return code.equals("NOTARISED") || code.equals("DEDUPLICATED");
    }

    static Completion of(JsonNode document) {
        List<Answer.Conflict> conflicts = new ArrayList<>();
        document.path("conflicts").forEach(one -> conflicts.add(Documents.conflict(one)));
        return new Completion(
                Documents.integer(document, "offset"),
                Documents.text(document, "user_id"),
                Documents.text(document, "command_id"),
                Documents.texts(document, "act_as"),
                Documents.text(document, "submission_id"),
                Documents.text(document, "tx_id"),
                Documents.text(document, "content_digest"),
                Documents.text(document, "code"),
                Documents.integer(document, "log_offset"),
                Documents.integerOrNull(document, "notarised_offset"),
                Documents.text(document, "recorded_at"),
                List.copyOf(conflicts));
    }
}
