package org.replicatednotary.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.WebSocket;
import java.net.http.WebSocketHandshakeException;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;
import org.msgpack.core.MessagePackException;
import org.msgpack.core.MessageUnpacker;
import org.msgpack.value.Value;

/**
 * Call {@link #submit} many times at once. What has no final answer is sent again by itself, with the same ids, also when the
 * connection breaks and the next replica is active; after the policy's deadline, or the server's estimate when that is longer,
 * the answer is a NotNow. For any number of threads.
 */
public final class SubmissionStream implements AutoCloseable {
    private static final String PATH = "/v1/submissions/stream";
    private static final String PROTOCOL = "notary.v1";
    private static final int WELCOME = 0;
    private static final int SUBMISSIONS = 1;
    private static final int ANSWERS = 2;
    private static final int WAITS = 3;
    private static final int CLOSING = 4;
    private static final int FRAME_SUBMISSIONS = 100;
    private static final int FRAME_REQUEST_BYTES = 1 << 19;
    private static final int FRAME_MAX_BYTES = 64 << 20;
    private static final int UNDER_WAY_MAX = 10_000;
    private static final long SWEEP_MS = 250;
    private static final long PING_S = 20;
    private static final String REPLACED = "another replica is active";

    private static final class Asked {
        final Submission submission;
        final CompletableFuture<Answer> future = new CompletableFuture<>();
        double deadlineS;
        int attempts;
        Answer.NotNow last;

        Asked(Submission submission, double deadlineS) {
            this.submission = submission;
            this.deadlineS = deadlineS;
        }
    }

    private final Connection connection;
    private boolean useful; // this connection: it brought an answer
    private final boolean asynchronous;
    private final Deduplication deduplication;
    private final Semaphore room = new Semaphore(UNDER_WAY_MAX);
    private final Thread worker;
    // All below are guarded by this object's monitor.
    private final Map<Long, Asked> asked = new HashMap<>();
    private final TreeSet<Long> sent = new TreeSet<>(); // on this connection, and without an answer
    private final Deque<Long> queue = new ArrayDeque<>();
    private long numbers;
    private int window; // 0 before the welcome
    private int frameMax = FRAME_SUBMISSIONS;
    private boolean broken; // this connection
    private Waiting waiting; // for answers on it, or to be let in
    private boolean closed;
    private String trouble = "no answer in time"; // why there is no connection
    private Answer.Problem refusedToken;
    private double goodAtS = Double.NEGATIVE_INFINITY;
    private int connectionsCount;

    SubmissionStream(List<String> given, RetryPolicy policy, Access access, boolean asynchronous, Deduplication deduplication) {
        this.connection = new Connection(given, policy, access);
        this.asynchronous = asynchronous;
        this.deduplication = deduplication;
        this.worker = new Thread(this::keepConnected, "notary stream");
        worker.setDaemon(true);
        worker.start();
        connection.timer.scheduleWithFixedDelay(this::sweep, SWEEP_MS, SWEEP_MS, TimeUnit.MILLISECONDS);
    }

    /** What has no answer yet is given up: its outcome is unknown. */
    @Override
    public void close() {
        synchronized (this) {
            closed = true;
            List.copyOf(asked.keySet()).forEach(this::giveUp);
            notifyAll();
        }
        worker.interrupt();
        connection.close();
    }

    /** Connections made so far: all but the first are reconnections. */
    public synchronized int connectionsCount() {
        return connectionsCount;
    }

    /**
     * The answer to one submission, once there is one. Blocks while 10,000 are under way. Throws BadRequest for one that was signed
     * for another deduplication period than the stream's, if it has one.
     */
    public CompletableFuture<Answer> submit(Submission submission) {
        submission.checkPeriod(deduplication);
        try {
            room.acquire();
        } catch (InterruptedException error) {
            throw Connection.interrupted();
        }
        synchronized (this) {
            Asked one = new Asked(submission, Connection.clockS() + connection.policy.deadlineS());
            if (closed) {
                room.release();
                return CompletableFuture.completedFuture(Answer.NotNow.unknown("the stream is closed"));
            }
            asked.put(numbers, one);
            queue.addLast(numbers++);
            notifyAll();
            return one.future;
        }
    }

    // ---- the connection ----

    private void keepConnected() {
        Set<URI> failed = new HashSet<>(); // endpoints, in this round
        try {
            for (int failures = 0; ; failures++) {
                String token = null;
                URI endpoint = connection.endpoints.current();
                try {
                    token = connection.bearer.token();
                    if (converse(endpoint, token)) {
                        failures = 0;
                    }
                } catch (ExecutionException | TimeoutException | NotaryException error) {
                    note(error, token); // connect again, and send again what has no answer
                }
                afterConnection(token);
                synchronized (this) {
                    if (closed) {
                        return;
                    }
                    if (useful) {
                        failed.clear();
                    }
                }
                if (connection.endpoints.nextOfRound(endpoint, failed)) {
                    continue;
                }
                Thread.sleep((long) (1000 * connection.policy.delayS(failures, 0, Connection.random())));
            }
        } catch (InterruptedException error) {
            // closed
        }
    }

    private synchronized void note(Exception error, String token) {
        Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
        trouble = Connection.toldBy(cause);
        if (cause instanceof WebSocketHandshakeException refused && refused.getResponse().statusCode() == 401) {
            Code code = token == null ? Code.TOKEN_MISSING : Code.TOKEN_INVALID;
            refusedToken = Answer.Problem.of(code.name(), "the API does not accept this client's token", 401);
        }
    }

    /** What was sent without an answer goes first; a token that was refused needs another one. */
    private void afterConnection(String token) {
        Answer.Problem refused;
        synchronized (this) {
            sent.descendingSet().forEach(queue::addFirst);
            sent.clear();
            window = 0;
            refused = refusedToken;
            refusedToken = null;
        }
        if (refused == null) {
            return;
        }
        boolean renewed = connection.bearer.renew(token);
        synchronized (this) {
            boolean wasGood = Connection.clockS() - goodAtS < connection.policy.deadlineS();
            if (renewed || (wasGood && connection.bearer.canRenew())) {
                return;
            }
            trouble = refused.detail();
            for (long number : List.copyOf(asked.keySet())) { // of what was sent before nothing is known
                if (asked.get(number).attempts == 0) {
                    finish(number, refused);
                }
            }
        }
    }

    /** One connection, from its beginning to its end; true when it was let in. */
    private boolean converse(URI endpoint, String token) throws InterruptedException, ExecutionException, TimeoutException {
        Waiting waiting = connection.watch(endpoint);
        synchronized (this) {
            this.waiting = waiting;
        }
        try {
            return converse(waiting, token);
        } catch (CancellationException error) {
            throw new NotaryException.AnswerUnreadable(REPLACED);
        } finally {
            connection.unwatch(waiting);
        }
    }

    private boolean converse(Waiting waiting, String token) throws InterruptedException, ExecutionException, TimeoutException {
        long limitMs = (long) (1000 * connection.policy.attemptMaxS());
        synchronized (this) {
            broken = false;
            useful = false;
        }
        WebSocket.Builder builder = connection
                .http
                .newWebSocketBuilder()
                .subprotocols(PROTOCOL)
                .connectTimeout(Connection.duration(connection.policy.attemptMaxS()));
        if (token != null) {
            builder.header("Authorization", "Bearer " + token);
        }
        Listener listener = new Listener();
        URI uri = URI.create(waiting.endpoint.toString().replaceFirst("^http", "ws") + PATH);
        CompletableFuture<WebSocket> connecting = builder.buildAsync(uri, listener);
        waiting.endedBy(() -> connecting.cancel(true));
        WebSocket socket = connecting.get(2 * limitMs, TimeUnit.MILLISECONDS);
        waiting.endedBy(() -> {
            listener.end(REPLACED);
            socket.abort(); // a frame may be on its way
        });
        try {
            sendUntilBroken(socket, listener, limitMs);
        } finally {
            listener.isOver = true;
            socket.abort();
        }
        synchronized (this) {
            return window > 0;
        }
    }

    private void sendUntilBroken(WebSocket socket, Listener listener, long limitMs)
            throws InterruptedException, ExecutionException, TimeoutException {
        long welcomeByNs = System.nanoTime() + limitMs * 1_000_000;
        long pingedNs = System.nanoTime();
        while (true) {
            byte[] frame;
            synchronized (this) {
                frame = broken || closed ? null : nextFrame();
                if (frame == null) {
                    if (broken || closed || (window == 0 && System.nanoTime() > welcomeByNs)) {
                        return;
                    }
                    wait(SWEEP_MS);
                }
            }
            if (frame != null) {
                socket.sendBinary(ByteBuffer.wrap(frame), true).get(limitMs, TimeUnit.MILLISECONDS);
            }
            if (System.nanoTime() - pingedNs > TimeUnit.SECONDS.toNanos(PING_S)) {
                if (!listener.isAlive) {
                    throw new NotaryException.AnswerUnreadable("the server does not answer a ping");
                }
                listener.isAlive = false;
                pingedNs = System.nanoTime();
                socket.sendPing(ByteBuffer.allocate(0)).get(limitMs, TimeUnit.MILLISECONDS);
            }
        }
    }

    /** A frame of what waits, as far as there is room in the window; null for none. Holds the monitor. */
    private byte[] nextFrame() {
        Map<Long, Submission> batch = new java.util.LinkedHashMap<>();
        int size = 0;
        while (!queue.isEmpty() && batch.size() < frameMax && sent.size() < window && size < FRAME_REQUEST_BYTES) {
            long number = queue.removeFirst();
            Asked one = asked.get(number);
            if (one != null) { // not given up meanwhile
                one.attempts++;
                sent.add(number);
                batch.put(number, one.submission);
                size += one.submission.canonical().length;
            }
        }
        if (batch.isEmpty()) {
            return null;
        }
        waiting.nowAsWell();
        return encode(batch);
    }

    private byte[] encode(Map<Long, Submission> batch) {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            packer.packArrayHeader(5).packInt(SUBMISSIONS).packArrayHeader(batch.size());
            for (Map.Entry<Long, Submission> entry : batch.entrySet()) {
                packer.packArrayHeader(2).packLong(entry.getKey());
                pack(packer, entry.getValue());
            }
            packer.packBoolean(asynchronous);
            if (deduplication == null || deduplication.durationS() == null) {
                packer.packNil();
            } else {
                packer.packDouble(deduplication.durationS());
            }
            packer.packLong(deduplication == null || deduplication.afterOffset() == null ? 0 : deduplication.afterOffset());
            return packer.toByteArray();
        } catch (IOException error) {
            throw new UncheckedIOException(error); // it writes to memory
        }
    }

    /** As it is logged: the array of seven of docs/formats.md. */
    static void pack(MessageBufferPacker packer, Submission submission) throws IOException {
        packer.packArrayHeader(7);
        for (byte[] raw : List.of(submission.canonical(), submission.publicKey(), submission.signature())) {
            packer.packBinaryHeader(raw.length).writePayload(raw);
        }
        packer.packString(submission.userId()).packString(submission.commandId());
        packer.packArrayHeader(submission.actAs().size());
        for (String party : submission.actAs()) {
            packer.packString(party);
        }
        packer.packString(submission.submissionId());
    }

    private final class Listener implements WebSocket.Listener {
        private final ByteArrayOutputStream message = new ByteArrayOutputStream();
        volatile boolean isAlive = true;
        volatile boolean isOver;

        @Override
        public CompletionStage<?> onBinary(WebSocket socket, ByteBuffer data, boolean last) {
            isAlive = true;
            byte[] part = new byte[data.remaining()];
            data.get(part);
            message.writeBytes(part);
            try {
                if (message.size() > FRAME_MAX_BYTES) {
                    throw new NotaryException.AnswerUnreadable("a frame has at most " + FRAME_MAX_BYTES + " bytes");
                }
                if (last && !isOver) {
                    JsonNode frame = frameIn(message.toByteArray());
                    message.reset();
                    if (!takeAndWait(frame)) {
                        end(null);
                    }
                }
            } catch (NotaryException error) {
                end(error.detail());
            }
            socket.request(1);
            return null;
        }

        @Override
        public CompletionStage<?> onText(WebSocket socket, CharSequence data, boolean last) {
            end("a stream has binary messages only");
            return null;
        }

        @Override
        public CompletionStage<?> onPong(WebSocket socket, ByteBuffer data) {
            isAlive = true;
            socket.request(1);
            return null;
        }

        @Override
        public CompletionStage<?> onClose(WebSocket socket, int status, String reason) {
            end(null);
            return null;
        }

        @Override
        public void onError(WebSocket socket, Throwable error) {
            end(Connection.toldBy(error));
        }

        private void end(String why) {
            synchronized (SubmissionStream.this) {
                if (!isOver) {
                    broken = true;
                    trouble = why == null ? trouble : why;
                    SubmissionStream.this.notifyAll();
                }
            }
        }
    }

    // ---- answers ----

    private synchronized boolean takeAndWait(JsonNode frame) {
        boolean stays = take(frame);
        if (sent.isEmpty()) {
            waiting.forNothing();
        } else {
            waiting.now();
        }
        return stays;
    }

    /** Act on a frame; false when it is better to connect again, perhaps to another replica. Holds the monitor. */
    private boolean take(JsonNode frame) {
        int kind = frame.path(0).asInt(-1);
        if (window == 0 && kind != WELCOME) {
            throw new NotaryException.AnswerUnreadable("the stream does not begin with a welcome");
        }
        goodAtS = Connection.clockS();
        return switch (kind) {
            case WELCOME -> {
                if (frame.path(2).asInt(0) < 1 || frame.path(3).asInt(0) < 1) {
                    throw new NotaryException.AnswerUnreadable("a welcome names its window");
                }
                connectionsCount++;
                window = frame.path(2).asInt();
                frameMax = Math.min(FRAME_SUBMISSIONS, frame.path(3).asInt());
                trouble = "no answer in time";
                notifyAll();
                yield true;
            }
            case ANSWERS -> takeAnswers(frame.path(1));
            case WAITS -> {
                double deadlineS = Connection.clockS() + connection.policy.believedS(frame.path(2).asDouble(0));
                frame.path(1).forEach(number -> {
                    Asked one = asked.get(number.asLong());
                    if (one != null) {
                        one.deadlineS = Math.max(one.deadlineS, deadlineS);
                    }
                });
                yield true;
            }
            case CLOSING -> {
                if (frame.path(1).asText().equals(Code.TOKEN_INVALID.name())) {
                    refusedToken = Answer.Problem.of(Code.TOKEN_INVALID.name(), frame.path(2).asText(), 401);
                }
                yield false;
            }
            default -> true; // of a later release
        };
    }

    private boolean takeAnswers(JsonNode batch) {
        boolean stays = true;
        for (JsonNode entry : batch) {
            long number = entry.path(0).asLong();
            Answer answer = Documents.answerInFrame(entry.path(1));
            sent.remove(number);
            Asked one = asked.get(number);
            if (one == null) {
                continue;
            }
            if (answer instanceof Answer.NotNow notNow) {
                stays = stays && !notNow.code().equals(Code.NOT_ACTIVE.name());
                later(number, one, notNow);
            } else {
                useful = true;
                finish(number, answer);
            }
        }
        notifyAll();
        return stays;
    }

    private void later(long number, Asked one, Answer.NotNow answer) {
        one.last = answer;
        if (connection.endpoints.several() && answer.code().equals(Code.NOT_ACTIVE.name())) {
            sent.add(number); // for the next endpoint, with all that has no answer here
            return;
        }
        double toldS = connection.policy.believedS(answer.retryAfterS());
        one.deadlineS = Math.max(one.deadlineS, Connection.clockS() + toldS);
        double delayS = connection.policy.delayS(one.attempts - 1, answer.retryAfterS(), Connection.random());
        if (!connection.timer.isShutdown()) {
            connection.timer.schedule(() -> again(number), (long) (delayS * 1000), TimeUnit.MILLISECONDS);
        }
    }

    private synchronized void again(long number) {
        queue.addLast(number);
        notifyAll();
    }

    /** Holds the monitor; what depends on the answer runs elsewhere. */
    private void finish(long number, Answer answer) {
        Asked one = asked.remove(number);
        room.release();
        one.future.completeAsync(() -> answer);
    }

    private void giveUp(long number) {
        Answer.NotNow last = asked.get(number).last;
        finish(number, last == null ? Answer.NotNow.unknown(trouble) : last);
    }

    private synchronized void sweep() {
        double nowS = Connection.clockS();
        for (long number : List.copyOf(asked.keySet())) {
            if (asked.get(number).deadlineS <= nowS) {
                giveUp(number);
            }
        }
    }

    // ---- frames ----

    /** The frame in a message as a tree, byte strings in hexadecimal. Throws AnswerUnreadable. */
    static JsonNode frameIn(byte[] message) {
        try (MessageUnpacker unpacker = MessagePack.newDefaultUnpacker(message)) {
            JsonNode found = tree(unpacker.unpackValue());
            if (found.isArray()) {
                return found;
            }
        } catch (IOException | MessagePackException error) {
            throw new NotaryException.AnswerUnreadable("a message is no MessagePack");
        }
        throw new NotaryException.AnswerUnreadable("a frame is an array");
    }

    private static JsonNode tree(Value value) {
        JsonNodeFactory nodes = JsonNodeFactory.instance;
        return switch (value.getValueType()) {
            case NIL, EXTENSION -> nodes.nullNode();
            case BOOLEAN -> nodes.booleanNode(value.asBooleanValue().getBoolean());
            case INTEGER -> nodes.numberNode(value.asIntegerValue().asLong());
            case FLOAT -> nodes.numberNode(value.asFloatValue().toDouble());
            case STRING -> nodes.textNode(value.asStringValue().asString());
            case BINARY -> nodes.textNode(Bytes.toHex(value.asBinaryValue().asByteArray()));
            case ARRAY -> {
                ArrayNode found = nodes.arrayNode();
                List<JsonNode> children = new ArrayList<>();
                value.asArrayValue().forEach(one -> children.add(tree(one)));
                yield found.addAll(children);
            }
            case MAP -> {
                ObjectNode found = nodes.objectNode();
                value.asMapValue().map().forEach((name, one) -> found.set(name.asRawValue().asString(), tree(one)));
                yield found;
            }
        };
    }
}
