package org.replicatednotary.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import org.junit.jupiter.api.Test;

/** Connection strings, and turning from one endpoint to the next. */
class EndpointsTest {
    @Test
    void aConnectionStringNamesItsEndpoints() {
        assertEquals(List.of("https://a:8080", "https://b:8080"), Endpoints.parse("https://a:8080,b:8080/"));
        assertEquals(List.of("http://[::1]:1/n", "http://127.0.0.1:2/n"), Endpoints.parse("http://[::1]:1,127.0.0.1:2/n/"));
    }

    @Test
    void aMistakeIsNamedAndNoPasswordRepeated() {
        for (String bad : List.of(
                "", "a:1", "https://a:1,https://b:1", "https://a,,b", "https://a,", "https://a, b", "https://a:x", "https://a:70000",
                "https://a:0", "https://a,a", "https://a?x", "https://a#x", "ftp://a")) {
            assertThrows(NotaryException.ConfigError.class, () -> Endpoints.parse(bad), bad);
        }
        NotaryException error =
                assertThrows(NotaryException.ConfigError.class, () -> Endpoints.parse("https://user:secret@a:1"));
        assertFalse(error.getMessage().contains("secret"));
    }

    @Test
    void aRoundAsksEachOnce() {
        Endpoints endpoints = new Endpoints("https://a:1,b:1", Access.open());
        URI first = endpoints.current();
        Set<URI> asked = new HashSet<>();
        assertTrue(endpoints.nextOfRound(first, asked));
        assertEquals("https://b:1,a:1", endpoints.fromCurrent());
        assertFalse(endpoints.nextOfRound(endpoints.current(), asked));
        assertTrue(asked.isEmpty());
        assertTrue(Endpoints.turns(0, "") && Endpoints.turns(502, "<html>"));
        assertFalse(Endpoints.turns(200, "{}") || Endpoints.turns(400, ""));
    }

    @Test
    void aCallTurnsAtOnceWithTheSameBytes() throws IOException {
        List<String> seen = new CopyOnWriteArrayList<>();
        HttpServer broken = serve(seen, 0);
        HttpServer other = serve(seen, 404);
        RetryPolicy slow = RetryPolicy.defaults().withTimeoutS(60).withDeadlineS(5).withAttemptMaxS(2);
        Party party = Party.fromSeed("O=Bank A,L=London,C=GB", "01".repeat(32));
        String string = "http://127.0.0.1:" + broken.getAddress().getPort() + ",127.0.0.1:" + other.getAddress().getPort();
        try (NotaryClient client = new NotaryClient(string, slow, Access.open())) {
            client.submit(party.sign(Transaction.of()));
            assertEquals(2, seen.size());
            assertEquals(seen.get(0), seen.get(1));
        } finally {
            broken.stop(0);
            other.stop(0);
        }
    }

    /** Status 0 breaks the connection. */
    private static HttpServer serve(List<String> seen, int status) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/", exchange -> {
            seen.add(new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8));
            if (status != 0) {
                exchange.sendResponseHeaders(status, -1);
            }
            exchange.close();
        });
        server.start();
        return server;
    }
}
