package org.replicatednotary.client;

import java.util.List;

/**
 * A signed request and the command it is submitted under. Keep it, and send it again unchanged until its answer is final.
 * {@code canonical}, {@code publicKey} and {@code signature} are not to be changed.
 */
public record Submission(
        Request request,
        byte[] canonical,
        byte[] publicKey,
        byte[] signature,
        String userId,
        String commandId,
        List<String> actAs,
        String submissionId) {
    public String txId() {
        return request.txId();
    }

    /** Whether a success is the notary's, by its signature, and about exactly what was submitted. */
    public boolean isCertifiedBy(Answer.Notarised answer, String notaryKey) {
        Receipt receipt = answer.receipt();
        String digest = Bytes.toHex(Request.contentDigest(canonical));
        boolean sameId = txId().equalsIgnoreCase(receipt.txId()) && txId().equalsIgnoreCase(answer.txId());
        boolean sameContent = digest.equalsIgnoreCase(receipt.contentDigest()) && digest.equalsIgnoreCase(answer.contentDigest());
        return sameId && sameContent && receipt.verifies(notaryKey);
    }
}
