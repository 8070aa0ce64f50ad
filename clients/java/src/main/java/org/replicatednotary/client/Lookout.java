package org.replicatednotary.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Looks around while calls wait: whether another replica became active, and which endpoints there are. A thread beside a client that
 * has several endpoints.
 *
 * <p>A replica that is frozen or cut off ends no connection. So once a call has waited for a while, all endpoints are asked which
 * replica is active, and what waits for one that was replaced is given up. It is sent to the new active with the same ids.
 */
final class Lookout implements AutoCloseable {
    private static final double TICK_S = 0.25;
    static final double WAIT_MAX_S = 1; // of a call, until its client looks around; and between two looks
    static final double QUIET_MAX_S = 12; // of a feed: the server's checkpoints come every 10 s (`api.checkpoint_s`)
    private static final double ASK_MAX_S = 1;
    private static final double REFRESH_EVERY_S = 30;
    private static final double REFRESH_AGAIN_S = 5; // after one that failed
    private static final int DOCUMENT_MAX_BYTES = 65_536;

    private final Endpoints endpoints;
    private final Bearer bearer;
    private final HttpClient http;
    private final ScheduledThreadPoolExecutor timer;
    private final Thread thread = new Thread(this::run, "notary client lookout");
    private final Set<Waiting> waiting = ConcurrentHashMap.newKeySet();
    private double lookedAtS = Double.NEGATIVE_INFINITY;
    private double refreshAtS = Double.NEGATIVE_INFINITY;

    Lookout(Endpoints endpoints, Bearer bearer, HttpClient http, ScheduledThreadPoolExecutor timer) {
        this.endpoints = endpoints;
        this.bearer = bearer;
        this.http = http;
        this.timer = timer;
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    public void close() {
        thread.interrupt();
    }

    /** Watch over this one, until {@link #remove}. */
    void add(Waiting one) {
        waiting.add(one);
    }

    /** Its wait is over. May be repeated. */
    void remove(Waiting one) {
        waiting.remove(one);
    }

    /**
     * The endpoints that lead to the active replica, by what each answered, in their order: several, where one is of a balancer. A
     * deposed replica that has not noticed has an older epoch.
     */
    static List<URI> newestActive(Map<URI, Optional<JsonNode>> found) {
        Map<URI, Long> epochs = new LinkedHashMap<>();
        found.forEach((endpoint, document) -> document
                .filter(one -> one.path("active").asBoolean(false) && one.path("epoch").isIntegralNumber())
                .ifPresent(one -> epochs.put(endpoint, one.path("epoch").asLong())));
        long newest = epochs.values().stream().mapToLong(Long::longValue).max().orElse(0);
        return epochs.keySet().stream().filter(one -> epochs.get(one) == newest).toList();
    }

    private void run() {
        try {
            while (true) {
                double nowS = Connection.clockS();
                boolean overdue = waiting.stream().anyMatch(one -> nowS - one.sinceS() >= one.usualS());
                if (overdue && nowS - lookedAtS >= WAIT_MAX_S) {
                    lookedAtS = nowS;
                    look();
                }
                if (nowS >= refreshAtS) {
                    boolean done = refresh();
                    refreshAtS = Connection.clockS() + (done ? REFRESH_EVERY_S : REFRESH_AGAIN_S);
                }
                Thread.sleep((long) (1000 * TICK_S));
            }
        } catch (InterruptedException error) {
            // closed
        }
    }

    /** Turn to the active, and give up what waits elsewhere. This call needs no token, and gets none. */
    private void look() throws InterruptedException {
        Map<URI, CompletableFuture<Optional<JsonNode>>> asked = new LinkedHashMap<>();
        endpoints.known().forEach(one -> asked.put(one, ask(one + "/v1/notary", null)));
        Map<URI, Optional<JsonNode>> found = new LinkedHashMap<>();
        double untilS = Connection.clockS() + ASK_MAX_S;
        for (Map.Entry<URI, CompletableFuture<Optional<JsonNode>>> one : asked.entrySet()) {
            found.put(one.getKey(), answer(one.getValue(), untilS));
        }
        List<URI> active = newestActive(found);
        if (active.isEmpty()) {
            return;
        }
        if (!active.contains(endpoints.current())) {
            endpoints.prefer(active.get(0));
        }
        double givenUpS = Connection.clockS() - WAIT_MAX_S;
        for (Waiting one : waiting) {
            if (active.contains(one.endpoint)) {
                one.heard(lookedAtS);
            } else if (one.sinceS() <= givenUpS) {
                one.giveUp();
            }
        }
    }

    /** Ask for the list of endpoints; false when it was not given. The one before stays in force then. */
    private boolean refresh() throws InterruptedException {
        String token;
        try {
            token = bearer.token();
        } catch (NotaryException error) {
            return false; // of the token's source
        }
        Optional<JsonNode> list = answer(ask(endpoints.current() + "/v1/endpoints", token), Connection.clockS() + ASK_MAX_S);
        if (list.isEmpty() || Endpoints.seesNobody(list.get())) {
            return false;
        }
        endpoints.takeList(Endpoints.usable(list.get(), endpoints.configured(), token != null));
        return true;
    }

    private CompletableFuture<Optional<JsonNode>> ask(String url, String token) {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url)).timeout(Connection.duration(ASK_MAX_S));
        if (token != null) {
            request.header("Authorization", "Bearer " + token);
        }
        return http.sendAsync(request.build(), HttpResponse.BodyHandlers.ofInputStream()).thenApply(this::document);
    }

    /** The document of an answer; empty when it is something else. */
    private Optional<JsonNode> document(HttpResponse<InputStream> response) {
        try (Lines body = new Lines(response.body(), timer)) {
            body.limit(ASK_MAX_S);
            String found = body.whole(DOCUMENT_MAX_BYTES);
            return response.statusCode() == 200 ? Optional.of(Documents.parse(found)) : Optional.empty();
        } catch (IOException | NotaryException.AnswerUnreadable error) {
            return Optional.empty();
        }
    }

    /** Empty when there is none in time. */
    private static Optional<JsonNode> answer(CompletableFuture<Optional<JsonNode>> asked, double untilS)
            throws InterruptedException {
        try {
            return asked.get((long) (1000 * Math.max(0, untilS - Connection.clockS())), TimeUnit.MILLISECONDS);
        } catch (ExecutionException | TimeoutException error) {
            asked.cancel(true);
            return Optional.empty();
        }
    }
}
