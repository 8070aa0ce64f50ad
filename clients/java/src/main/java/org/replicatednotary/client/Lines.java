package org.replicatednotary.client;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** Whole lines of a body as they come, and a limit after which the body is closed, whoever reads it. */
final class Lines implements AutoCloseable {
    private static final int LINE_MAX_BYTES = 16 << 20;
    private final InputStream in;
    private final ScheduledThreadPoolExecutor timer;
    private final byte[] chunk = new byte[16_384];
    private int at;
    private int end;
    private volatile boolean isClosed;
    private ScheduledFuture<?> closing;

    Lines(InputStream in, ScheduledThreadPoolExecutor timer) {
        this.in = in;
        this.timer = timer;
    }

    /** Close the body in so many seconds; the last limit counts. */
    void limit(double seconds) {
        cancel();
        closing = timer.schedule(this::closeBody, (long) (Math.max(0, seconds) * 1000), TimeUnit.MILLISECONDS);
    }

    void cancel() {
        if (closing != null) {
            closing.cancel(false);
        }
    }

    /** All of the body, of so many bytes at most. Throws AnswerUnreadable, or IOException for one that was closed before its end. */
    String whole(int bytesMax) throws IOException {
        ByteArrayOutputStream found = new ByteArrayOutputStream();
        for (int size = in.read(chunk); size >= 0; size = in.read(chunk)) {
            found.write(chunk, 0, size);
            if (found.size() > bytesMax) {
                throw new NotaryException.AnswerUnreadable("an answer has at most " + bytesMax + " bytes");
            }
        }
        if (isClosed) { // which reads as its end
            throw new IOException("no answer in time");
        }
        return found.toString(StandardCharsets.UTF_8);
    }

    /** The next line; null at the end. What the last one lacks is lost with the connection. Throws AnswerUnreadable. */
    String next() throws IOException {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        while (true) {
            if (at == end) {
                at = 0;
                end = Math.max(0, in.read(chunk));
                if (end == 0) {
                    return null;
                }
            }
            int from = at;
            while (at < end && chunk[at] != '\n') {
                at++;
            }
            line.write(chunk, from, at - from);
            if (at < end) {
                at++;
                return line.toString(StandardCharsets.UTF_8);
            }
            if (line.size() > LINE_MAX_BYTES) {
                throw new NotaryException.AnswerUnreadable("a line has at most " + LINE_MAX_BYTES + " bytes");
            }
        }
    }

    @Override
    public void close() {
        cancel();
        closeBody();
    }

    /** End the body under whoever reads it. May be repeated. */
    void closeBody() {
        isClosed = true;
        try {
            in.close();
        } catch (IOException error) {
            // it is over either way
        }
    }
}
