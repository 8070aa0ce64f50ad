package org.replicatednotary.client;

import java.security.SecureRandom;
import java.util.List;

/** What a party wants notarised, and under which command. Each {@code with…} gives a changed copy. Null: the default. */
public record Transaction(
        String txId,
        List<String> inputs,
        List<String> references,
        TimeWindow window,
        String commandId,
        String userId,
        List<String> actAs,
        String submissionId) {
    private static final SecureRandom RANDOM = new SecureRandom();
    static final String ANONYMOUS = "anonymous";

    /** A transaction that consumes these states, under a random id. */
    public static Transaction of(String... inputs) {
        return new Transaction(random(32), List.of(inputs), List.of(), null, null, ANONYMOUS, null, null);
    }

    public Transaction withTxId(String id) {
        return new Transaction(id, inputs, references, window, commandId, userId, actAs, submissionId);
    }

    public Transaction withInputs(List<String> states) {
        return new Transaction(txId, states, references, window, commandId, userId, actAs, submissionId);
    }

    public Transaction withReferences(List<String> states) {
        return new Transaction(txId, inputs, states, window, commandId, userId, actAs, submissionId);
    }

    public Transaction withWindow(TimeWindow found) {
        return new Transaction(txId, inputs, references, found, commandId, userId, actAs, submissionId);
    }

    /** Default: the transaction id, so that the same transaction is the same command. */
    public Transaction withCommandId(String id) {
        return new Transaction(txId, inputs, references, window, id, userId, actAs, submissionId);
    }

    public Transaction withUserId(String id) {
        return new Transaction(txId, inputs, references, window, commandId, id, actAs, submissionId);
    }

    /** Default: the party that signs. */
    public Transaction withActAs(List<String> parties) {
        return new Transaction(txId, inputs, references, window, commandId, userId, parties, submissionId);
    }

    /** Default: a random one. */
    public Transaction withSubmissionId(String id) {
        return new Transaction(txId, inputs, references, window, commandId, userId, actAs, id);
    }

    static String random(int bytes) {
        byte[] raw = new byte[bytes];
        RANDOM.nextBytes(raw);
        return Bytes.toHex(raw);
    }
}
