package org.replicatednotary.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.DoubleConsumer;
import javax.net.ssl.SSLContext;

/** Calls over HTTP: one exchange with its token, its limits, and the estimates that may come before its answer. */
final class Connection implements AutoCloseable {
    /** Status 0: there was no answer, and the body says why. */
    record Exchange(int status, String body) {}

    private static final String LINES = "application/x-ndjson";
    static final int ANSWER_MAX_BYTES = 256 << 20;

    final Endpoints endpoints;
    final RetryPolicy policy;
    final Access access;
    final Bearer bearer;
    final HttpClient http;
    final ScheduledThreadPoolExecutor timer = timer();
    private final Lookout lookout; // null: with one endpoint

    Connection(List<String> given, RetryPolicy policy, Access access) {
        this.endpoints = new Endpoints(given, access);
        this.policy = policy;
        this.access = access;
        this.bearer = new Bearer(access.token());
        HttpClient.Builder builder = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .followRedirects(HttpClient.Redirect.NEVER)
                .connectTimeout(duration(policy.attemptMaxS()));
        SSLContext tls = access.tls();
        if (tls != null) {
            builder.sslContext(tls);
        }
        this.http = builder.build();
        this.lookout = endpoints.several() ? new Lookout(endpoints, bearer, http, timer) : null;
    }

    @Override
    public void close() {
        if (lookout != null) {
            lookout.close();
        }
        timer.shutdownNow();
    }

    /**
     * Status and body of an answer. Asks the endpoint in use, and turns to the next one where {@link Endpoints#turns} says so, each
     * endpoint once at most. What is sent is the same, its ids too, so one that is asked second answers as the first did or would have.
     */
    Exchange call(String method, String path, String body, DoubleConsumer onWait) {
        Set<URI> asked = new HashSet<>();
        Exchange unknown = null; // something may have been done, and nobody said what
        while (true) {
            URI endpoint = endpoints.current();
            Exchange answer = call(endpoint, method, path, body, onWait);
            if (!Endpoints.turns(answer.status(), answer.body())) {
                // a token refused now does not settle an earlier attempt, whose outcome stays unknown
                return unknown != null && answer.status() == 401 ? unknown : answer;
            }
            if (Documents.problemIn(answer.body()).isEmpty()) {
                unknown = answer;
            }
            if (!endpoints.nextOfRound(endpoint, asked)) {
                return unknown == null ? answer : unknown;
            }
        }
    }

    /** One endpoint's answer. A token that is refused is asked for anew, once. */
    private Exchange call(URI endpoint, String method, String path, String body, DoubleConsumer onWait) {
        String token = bearer.token();
        Exchange answer = exchange(endpoint, method, path, body, token, onWait);
        if (answer.status() == 401 && token != null) {
            Optional<Answer.Problem> problem = Documents.problemIn(answer.body());
            if (problem.isPresent() && problem.get().isOfToken() && bearer.renew(token)) {
                return exchange(endpoint, method, path, body, bearer.token(), onWait);
            }
        }
        return answer;
    }

    /** The document at a path, asked for until a replica serves it. Throws RequestRejected, NotActive, AnswerUnreadable. */
    JsonNode fetch(String path) {
        double deadlineS = clockS() + policy.deadlineS();
        for (int attempt = 0; ; attempt++) {
            Exchange answer = call("GET", path, null, estimate -> {});
            if (answer.status() == 200) {
                return Documents.parse(answer.body());
            }
            Answer.Problem problem = Documents.problemIn(answer.body()).orElse(null);
            double delayS = policy.delayS(attempt, problem == null ? 0 : problem.retryAfterS(), random());
            if ((problem != null && problem.retry() == Code.Retry.NO) || clockS() + delayS > deadlineS) {
                throw whyNot(answer.body(), problem);
            }
            sleepS(delayS);
        }
    }

    /** Have it given up when another replica turns out to be active, until {@link #unwatch}. */
    Waiting watch(URI endpoint) {
        Waiting waiting = new Waiting(endpoint);
        if (lookout != null) {
            lookout.add(waiting);
        }
        return waiting;
    }

    void unwatch(Waiting waiting) {
        if (lookout != null) {
            lookout.remove(waiting);
        }
    }

    /** An answer whose body is read as it comes; its head must be there within {@code attemptMaxS}. */
    HttpResponse<InputStream> open(Waiting waiting, String method, String path, String body, String token, String accept)
            throws IOException, InterruptedException {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(waiting.endpoint + path))
                .timeout(duration(policy.attemptMaxS()))
                .header("Accept", accept);
        if (body != null) {
            request.header("Content-Type", "application/json");
        }
        if (token != null) {
            request.header("Authorization", "Bearer " + token);
        }
        request.method(
                method,
                body == null ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofString(body));
        CompletableFuture<HttpResponse<InputStream>> answer =
                http.sendAsync(request.build(), HttpResponse.BodyHandlers.ofInputStream());
        waiting.endedBy(() -> answer.cancel(true));
        return headOf(answer);
    }

    private static HttpResponse<InputStream> headOf(CompletableFuture<HttpResponse<InputStream>> answer)
            throws IOException, InterruptedException {
        try {
            return answer.get();
        } catch (InterruptedException error) {
            answer.cancel(true);
            throw error;
        } catch (CancellationException error) {
            throw new IOException("another replica is active");
        } catch (ExecutionException error) {
            throw error.getCause() instanceof IOException cause ? cause : new IOException(toldBy(error.getCause()));
        }
    }

    private Exchange exchange(
            URI endpoint, String method, String path, String body, String token, DoubleConsumer onWait) {
        Waiting waiting = watch(endpoint);
        try {
            HttpResponse<InputStream> response = open(waiting, method, path, body, token, "application/json, " + LINES);
            try (Lines lines = new Lines(response.body(), timer)) {
                waiting.endedBy(lines::closeBody);
                lines.limit(policy.attemptMaxS());
                if (response.headers().firstValue("Content-Type").orElse("").startsWith(LINES)) {
                    return lastLine(lines, onWait);
                }
                return new Exchange(response.statusCode(), lines.whole(ANSWER_MAX_BYTES));
            }
        } catch (InterruptedException error) {
            throw interrupted();
        } catch (IOException | NotaryException.AnswerUnreadable error) {
            return new Exchange(0, toldBy(error));
        } finally {
            unwatch(waiting);
        }
    }

    /** The answer behind the estimates, each of which moves the limit. */
    private Exchange lastLine(Lines lines, DoubleConsumer onWait) throws IOException {
        double lastS = clockS() + policy.estimateMaxS();
        for (String line = lines.next(); line != null; line = lines.next()) {
            JsonNode head = Documents.parse(line);
            if (!head.path("kind").asText("").equals("wait")) {
                return new Exchange(head.path("status").asInt(200), line);
            }
            double estimateS = policy.believedS(head.path("estimate_s").asDouble(0));
            onWait.accept(estimateS);
            lines.limit(Math.min(Math.max(estimateS, policy.attemptMaxS()), lastS - clockS()));
        }
        return new Exchange(0, "no answer behind the estimates");
    }

    /** The error of an answer that is not the document that was asked for. */
    static NotaryException whyNot(String body, Answer.Problem problem) {
        boolean isAhead = problem != null && problem.code().equals(Code.OFFSET_AFTER_END.name());
        if (problem != null && (isAhead || problem.retry() == Code.Retry.NO)) {
            return new NotaryException.RequestRejected(problem);
        }
        return new NotaryException.NotActive("no replica answers: " + body.substring(0, Math.min(200, body.length())));
    }

    /** What to tell of a failed exchange. */
    static String toldBy(Throwable error) {
        String said = error.getMessage() == null ? error.getClass().getSimpleName() : error.getMessage();
        return said.substring(0, Math.min(200, said.length()));
    }

    /** The thread was told to stop: what it submitted has no known outcome. Its flag is set again. */
    static NotaryException interrupted() {
        Thread.currentThread().interrupt();
        return new NotaryException.OutcomeUnknown(Answer.NotNow.unknown("the thread was interrupted"));
    }

    static void sleepS(double delayS) {
        try {
            Thread.sleep((long) (delayS * 1000));
        } catch (InterruptedException error) {
            throw interrupted();
        }
    }

    static Duration duration(double seconds) {
        return Duration.ofNanos((long) (seconds * 1e9));
    }

    /** Seconds of a clock that never goes back. */
    static double clockS() {
        return System.nanoTime() / 1e9;
    }

    static double random() {
        return ThreadLocalRandom.current().nextDouble(); // spreads retries; no secret
    }

    static ScheduledThreadPoolExecutor timer() {
        ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1, work -> {
            Thread thread = new Thread(work, "notary client timer");
            thread.setDaemon(true);
            return thread;
        });
        timer.setRemoveOnCancelPolicy(true);
        return timer;
    }
}
