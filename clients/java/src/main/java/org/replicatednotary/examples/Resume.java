package org.replicatednotary.examples;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.replicatednotary.client.Bookmark;
import org.replicatednotary.client.Completion;
import org.replicatednotary.client.Feed;
import org.replicatednotary.client.NotaryClient;
import org.replicatednotary.client.NotaryException;

/**
 * Reads COUNT completions, from a kept bookmark on: {@code Resume ENDPOINT NOTARY_KEY PARTY KEY_FILE COUNT [BOOKMARK]}. One JSON
 * document a line: each completion with its bookmark, or that the bookmark is of another ledger.
 */
public final class Resume {
    private static final String USER = "resume";
    private static final ObjectMapper JSON = new ObjectMapper();

    private Resume() {}

    public static void main(String[] words) throws Exception {
        if (!words[4].matches("[1-9][0-9]{0,8}")) {
            System.err.println("COUNT is how many completions to read, 1 or more, not '" + words[4] + "'");
            System.exit(1);
        }
        int count = Integer.parseInt(words[4]);
        try (NotaryClient client = new NotaryClient(words[0]);
                Feed<Completion> completions = words.length > 5
                        ? client.completions(Bookmark.parse(words[5]), USER, List.of())
                        : client.completions(0, USER, List.of())) {
            for (int at = 0; at < count; at++) {
                Completion found = completions.next();
                tell("kind", "completion", "offset", found.offset(), "tx_id", found.txId(), "bookmark", Bookmark.of(found).toString());
            }
        } catch (NotaryException.StreamEnded ended) {
            tell("kind", "ended", "code", ended.code());
        }
    }

    private static void tell(Object... fields) throws JsonProcessingException {
        Map<Object, Object> line = new LinkedHashMap<>();
        for (int at = 0; at < fields.length; at += 2) {
            line.put(fields[at], fields[at + 1]);
        }
        System.out.println(JSON.writeValueAsString(line));
    }
}
