package org.replicatednotary.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Set;
import java.util.function.Function;

/**
 * What is published after a ledger offset, without a gap or a duplicate, live once caught up, for ever: it connects again by
 * itself. Close it to end it, from any thread. Otherwise it is for one thread.
 *
 * <p>Whoever keeps the offset of the last one goes on behind it later, on any replica. Whoever keeps its {@link Bookmark}, and
 * follows with the same filter, also learns that the ledger is another one: StreamEnded with LEDGER_CHANGED. {@link #next} throws
 * StreamEnded when going on is of no use: pruned, not to be seen, or, told until the policy's deadline, an offset behind the
 * ledger's end; AnswerUnreadable when what is there speaks something else until the deadline.
 */
public final class Feed<T extends Published> implements Iterator<T>, AutoCloseable {
    private static final double SILENCE_MAX_S = 30; // above the interval of the server's checkpoints
    private final Connection connection;
    private final String path;
    private final String kind;
    private final Function<JsonNode, T> read;
    private final String filter;
    private long after;
    private Bookmark kept; // to be compared with the entry at its offset; null once it was
    private int failures;
    private double toldS;
    private String token;
    private URI endpoint;
    private boolean stays; // the problem is of the active replica
    private final Set<URI> failed = new HashSet<>(); // endpoints without a stream for us, in this round
    private double goodAtS = Double.NEGATIVE_INFINITY; // of the last good line
    private double unreadableAtS = Double.POSITIVE_INFINITY; // of the first bad one behind it
    private double aheadAtS = Double.POSITIVE_INFINITY; // first told that the ledger ends before our offset
    private volatile Lines lines;
    private volatile Waiting waiting;
    private volatile boolean closed;

    Feed(Connection connection, String path, String kind, Function<JsonNode, T> read, long after, String userId, List<String> parties) {
        Bytes.checkOffset("after", after);
        this.connection = connection;
        this.path = path;
        this.kind = kind;
        this.read = read;
        this.after = after;
        StringBuilder query = new StringBuilder();
        parties.forEach(party -> query.append("&party=").append(encode(party)));
        this.filter = query + (userId == null ? "" : "&user_id=" + encode(userId)) + "&follow=true";
    }

    /** Reads the entry at the bookmark again, compares it, and goes on after it. */
    Feed(Connection connection, String path, String kind, Function<JsonNode, T> read, Bookmark kept, String userId, List<String> parties) {
        this(connection, path, kind, read, kept.offset() - 1, userId, parties);
        this.kept = kept;
    }

    @Override
    public boolean hasNext() {
        return !closed;
    }

    @Override
    public T next() {
        while (!closed) {
            try {
                Lines current = lines == null ? connect() : lines;
                T found = current == null ? null : take(current);
                if (found != null && !isAtBookmark(found)) {
                    return found;
                }
            } catch (NotaryException.AnswerUnreadable error) {
                aheadAtS = Double.POSITIVE_INFINITY;
                unreadableAtS = Math.min(unreadableAtS, Connection.clockS());
                if (Connection.clockS() - unreadableAtS >= connection.policy.deadlineS()) {
                    throw error;
                }
                leave();
            } catch (IOException error) {
                aheadAtS = Double.POSITIVE_INFINITY;
                leave(); // whatever went wrong: connect again, and go on after the last offset
            } catch (InterruptedException error) {
                leave();
                throw Connection.interrupted();
            }
            if (lines == null && !closed && (stays || !connection.endpoints.nextOfRound(endpoint, failed))) {
                Connection.sleepS(connection.policy.delayS(failures++, toldS, Connection.random()));
            }
        }
        throw new NoSuchElementException("the feed is closed");
    }

    @Override
    public void close() {
        closed = true;
        leave();
    }

    private void leave() {
        Lines current = lines;
        lines = null;
        if (current != null) {
            current.close();
        }
        if (waiting != null) {
            connection.unwatch(waiting);
        }
    }

    /** The lines behind our offset; null when a problem came instead. */
    private Lines connect() throws IOException, InterruptedException {
        toldS = 0;
        stays = false;
        endpoint = connection.endpoints.current();
        token = connection.bearer.token();
        waiting = connection.watch(endpoint);
        HttpResponse<InputStream> response =
                connection.open(waiting, "GET", path + "?after=" + after + filter, null, token, "application/x-ndjson");
        Lines found = new Lines(response.body(), connection.timer);
        waiting.endedBy(found::closeBody);
        if (response.statusCode() == 200) {
            waiting.usually(Lookout.QUIET_MAX_S);
            lines = found;
            return found;
        }
        try (found) {
            found.limit(connection.policy.attemptMaxS());
            Documents.problemIn(found.whole(Connection.ANSWER_MAX_BYTES)).ifPresent(this::heed);
        } finally {
            connection.unwatch(waiting);
        }
        return null;
    }

    /** The entry in the next line; null for none. */
    private T take(Lines current) throws IOException {
        current.limit(SILENCE_MAX_S);
        waiting.now();
        String line = current.next();
        waiting.forNothing();
        current.cancel();
        if (line == null) {
            leave();
            return null;
        }
        JsonNode document = Documents.parse(line);
        String found = Documents.text(document, "kind");
        if (found.equals("end")) {
            leave();
            heed(Documents.problem(document.path("problem")));
            return null;
        }
        boolean isEntry = found.equals(kind);
        long offset = Documents.integer(document, "offset");
        if ((!isEntry && !found.equals("checkpoint")) || offset < after + (isEntry ? 1 : 0)) {
            throw new NotaryException.AnswerUnreadable("'" + found + "' of offset " + offset + " came behind " + after);
        }
        T entry = isEntry ? read.apply(document) : null;
        after = offset;
        failures = 0;
        failed.clear();
        unreadableAtS = aheadAtS = Double.POSITIVE_INFINITY;
        goodAtS = Connection.clockS();
        return entry;
    }

    /** Whether this entry was dealt with before: the one that the bookmark was made of. */
    private boolean isAtBookmark(T entry) {
        if (kept == null) {
            return false;
        }
        if (!Bookmark.of(entry).equals(kept)) {
            leave();
            String detail = "what this ledger shows at offset " + kept.offset() + " is not what was read there";
            throw new NotaryException.StreamEnded(Answer.Problem.of(Code.LEDGER_CHANGED.name(), detail, 0), kept.offset());
        }
        kept = null;
        return true;
    }

    private void heed(Answer.Problem problem) {
        boolean isOnlyBookmarkPruned = kept != null
                && problem.code().equals(Code.OFFSET_PRUNED.name())
                && Long.valueOf(kept.offset()).equals(problem.prunedTo());
        if (isOnlyBookmarkPruned) {
            after = kept.offset();
            kept = null;
            return;
        }
        double nowS = Connection.clockS();
        double deadlineS = connection.policy.deadlineS();
        if (problem.retry() == Code.Retry.NO) {
            boolean wasGood = nowS - goodAtS < deadlineS;
            boolean outlives = problem.isOfToken()
                    && (connection.bearer.renew(token) || (wasGood && connection.bearer.canRenew()));
            if (!outlives) {
                throw new NotaryException.StreamEnded(problem, after);
            }
        }
        aheadAtS = problem.code().equals(Code.OFFSET_AFTER_END.name()) ? Math.min(aheadAtS, nowS) : Double.POSITIVE_INFINITY;
        if (nowS - aheadAtS >= deadlineS) {
            throw new NotaryException.StreamEnded(problem, after);
        }
        toldS = problem.retryAfterS();
        stays = !problem.code().equals(Code.NOT_ACTIVE.name());
    }

    private static String encode(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8);
    }
}
