package org.replicatednotary.client;

import java.util.List;

/**
 * A signed request and the command it is submitted under. Keep it, and send it again unchanged until its answer is final.
 * {@code canonical}, {@code publicKey} and {@code signature} are not to be changed. {@code signedPeriod}: the deduplication
 * period; null: none was asked for.
 */
public record Submission(
        Request request,
        byte[] canonical,
        byte[] publicKey,
        byte[] signature,
        String userId,
        String commandId,
        List<String> actAs,
        String submissionId,
        Deduplication signedPeriod) {
    public String txId() {
        return request.txId();
    }

    /** Refuse a period other than the one that was signed for; null is none. Throws BadRequest. */
    void checkPeriod(Deduplication asked) {
        if (asked != null && !asked.equals(signedPeriod)) {
            throw new NotaryException.BadRequest("the submission was signed for another deduplication period");
        }
    }

    /** Whether a success is the notary's, by its signature, and about exactly what was submitted. */
    public boolean isCertifiedBy(Answer.Notarised answer, String notaryKey) {
        Receipt receipt = answer.receipt();
        String digest = Bytes.toHex(Request.contentDigest(canonical));
        boolean sameId = txId().equalsIgnoreCase(receipt.txId()) && txId().equalsIgnoreCase(answer.txId());
        boolean sameContent = digest.equalsIgnoreCase(receipt.contentDigest()) && digest.equalsIgnoreCase(answer.contentDigest());
        boolean samePlace = receipt.place() == null || receipt.place().logOffset() == answer.logOffset();
        return sameId && sameContent && samePlace && receipt.verifies(notaryKey);
    }
}
