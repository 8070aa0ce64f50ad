package org.replicatednotary.examples;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import org.replicatednotary.client.Answer;
import org.replicatednotary.client.NotaryClient;
import org.replicatednotary.client.Party;
import org.replicatednotary.client.Transaction;

/**
 * Submits COUNT transactions, asks for their places in the log at once, and then what became of each:
 * {@code Early ENDPOINT NOTARY_KEY PARTY KEY_FILE COUNT}, where the log is on log nodes. One JSON document a line.
 */
public final class Early {
    private static final int LOOK_MS = 10;
    private static final ObjectMapper JSON = new ObjectMapper();

    private Early() {}

    public static void main(String[] words) throws Exception {
        try (NotaryClient client = new NotaryClient(words[0])) {
            Party party = Party.fromFile(words[2], client.describe().ledgerId(), Path.of(words[3]));
            for (int at = 0; at < Integer.parseInt(words[4]); at++) {
                String state = Transaction.of().txId() + ":0";
                Answer answer = client.submitEarly(party.sign(Transaction.of(state).withUserId("early")), null);
                if (!(answer instanceof Answer.AcceptedEarly early)) {
                    throw new IllegalStateException("not early: " + answer);
                }
                NotaryClient.LogTransaction found = client.logTransaction(early.transactionId());
                while (found.status() != NotaryClient.LogStatus.INVALID && found.logOffset() == null) {
                    Thread.sleep(LOOK_MS);
                    found = client.logTransaction(early.transactionId());
                }
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("kind", found.status().name());
                line.put("place", early.transactionId());
                line.put("log_offset", found.logOffset());
                System.out.println(JSON.writeValueAsString(line));
            }
        }
    }
}
