package org.replicatednotary.examples;

import java.nio.file.Path;
import org.replicatednotary.client.Answer;
import org.replicatednotary.client.NotaryClient;
import org.replicatednotary.client.Party;
import org.replicatednotary.client.Submission;
import org.replicatednotary.client.Transaction;

/** Notarises one transaction: {@code Notarise ENDPOINT NOTARY_KEY PARTY KEY_FILE}. */
public final class Notarise {
    private Notarise() {}

    public static void main(String[] words) {
        String notaryKey = words[1];
        String state = Transaction.of().txId() + ":0"; // in earnest: an output of an earlier transaction
        try (NotaryClient client = new NotaryClient(words[0])) {
            Party party = Party.fromFile(words[2], client.describe().ledgerId(), Path.of(words[3]));
            Submission submission = party.sign(Transaction.of(state).withUserId("treasury"));
            Answer.Notarised success = client.notarise(submission, notaryKey); // same ids each time, verifies the receipt
            System.out.println("notarised at offset " + success.logOffset());
            System.out.println("consumed by " + client.state(state).consumedByHash());
        }
    }
}
