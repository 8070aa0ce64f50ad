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

    private void closeBody() {
        try {
            in.close();
        } catch (IOException error) {
            // it is over either way
        }
    }
}
