package org.replicatednotary.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.stream.IntStream;
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
        Endpoints endpoints = new Endpoints(List.of("https://a:1,b:1"), Access.open());
        URI first = endpoints.current();
        Set<URI> asked = new HashSet<>();
        assertTrue(endpoints.nextOfRound(first, asked));
        assertEquals(List.of("https://b:1", "https://a:1"), endpoints.fromCurrent());
        assertFalse(endpoints.nextOfRound(endpoints.current(), asked));
        assertTrue(asked.isEmpty());
        assertTrue(Endpoints.turns(0, "") && Endpoints.turns(502, "<html>"));
        assertFalse(Endpoints.turns(200, "{}") || Endpoints.turns(400, ""));
    }

    @Test
    void aListNamesOneEachOfOneScheme() {
        assertEquals(List.of("https://a:1/n", "https://b:1"), Endpoints.parse(List.of("https://a:1/n/", "https://b:1")));
        assertEquals(List.of("https://a:1", "https://b:1"), Endpoints.parse(List.of("https://a:1,b:1")));
        for (List<String> bad : List.of(
                List.<String>of(), List.of("https://a", "http://b"), List.of("https://a", "https://b,c"), List.of("https://a", "https://a"))) {
            assertThrows(NotaryException.ConfigError.class, () -> Endpoints.parse(bad), bad.toString());
        }
    }

    @Test
    void aListAddsLiveEndpointsOfTheSameScheme() throws IOException {
        List<URI> given = List.of(URI.create("https://a:1"), URI.create("https://b:1"));
        JsonNode list = list(true, "https://d:1", "https://a:1", "http://d:1", "https://u@d:1", "https://e:1/x?y", "", "https://f:1");
        assertEquals(List.of(URI.create("https://d:1"), URI.create("https://f:1")), Endpoints.usable(list, given, true));
        assertEquals(List.of(), Endpoints.usable(list(false, "https://d:1"), given, false));
        String[] many = IntStream.range(0, 100).mapToObj(n -> "https://h" + n + ":1").toArray(String[]::new);
        assertEquals(14, Endpoints.usable(list(true, many), given, false).size()); // 16 with those that were given
        for (String nonsense : List.of("{}", "{\"endpoints\":7}", "{\"endpoints\":[null,7,{},{\"url\":7,\"live\":true}]}")) {
            assertEquals(List.of(), Endpoints.usable(Documents.parse(nonsense), given, true));
        }
    }

    @Test
    void aListOverPlainHttpGetsNoToken() throws IOException {
        List<URI> given = List.of(URI.create("http://127.0.0.1:1"));
        JsonNode list = list(true, "http://127.0.0.1:2");
        assertEquals(List.of(), Endpoints.usable(list, given, true));
        assertEquals(List.of(URI.create("http://127.0.0.1:2")), Endpoints.usable(list, given, false));
    }

    @Test
    void whatWasGivenStays() {
        Endpoints endpoints = new Endpoints(List.of("https://a:1,b:1"), Access.open());
        endpoints.takeList(List.of(URI.create("https://d:1")));
        endpoints.prefer(URI.create("https://elsewhere:1"));
        assertEquals(URI.create("https://a:1"), endpoints.current());
        endpoints.prefer(URI.create("https://d:1"));
        assertEquals(List.of("https://d:1", "https://a:1", "https://b:1"), endpoints.fromCurrent());
        endpoints.takeList(List.of());
        assertEquals(URI.create("https://a:1"), endpoints.current());
        assertEquals(2, endpoints.known().size());
        assertFalse(new Endpoints(List.of("https://a:1"), Access.open()).several());
    }

    @Test
    void theNewestActiveIsTheOneToTurnToAtABalancerAsWell() {
        URI a = URI.create("https://a:1");
        URI b = URI.create("https://b:1");
        URI c = URI.create("https://c:1");
        assertEquals(List.of(b), newestActive(a, about(7, true), b, about(8, true), c, null));
        assertEquals(List.of(a, c), newestActive(a, about(8, true), b, about(8, false), c, about(8, true)));
        assertEquals(List.of(), newestActive(a, about(7, false), b, null, c, Documents.parse("{\"active\":true}")));
    }

    private static List<URI> newestActive(Object... found) {
        Map<URI, Optional<JsonNode>> documents = new LinkedHashMap<>();
        for (int at = 0; at < found.length; at += 2) {
            documents.put((URI) found[at], Optional.ofNullable((JsonNode) found[at + 1]));
        }
        return Lookout.newestActive(documents);
    }

    private static JsonNode about(int epoch, boolean active) {
        return Documents.MAPPER.createObjectNode().put("epoch", epoch).put("active", active);
    }

    private static JsonNode list(boolean live, String... urls) {
        ObjectNode found = Documents.MAPPER.createObjectNode();
        ArrayNode entries = found.putArray("endpoints");
        List.of(urls).forEach(url -> entries.addObject().put("url", url).put("live", live));
        return found;
    }

    @Test
    void aCallTurnsAtOnceWithTheSameBytes() throws IOException {
        List<String> seen = new CopyOnWriteArrayList<>();
        HttpServer broken = serve(seen, 0);
        HttpServer other = serve(seen, 404);
        RetryPolicy slow = RetryPolicy.defaults().withTimeoutS(60).withDeadlineS(5).withAttemptMaxS(2);
        Party party = Party.fromSeed("O=Bank A,L=London,C=GB", "4c".repeat(16), "01".repeat(32));
        String string = "http://127.0.0.1:" + broken.getAddress().getPort() + ",127.0.0.1:" + other.getAddress().getPort();
        try (NotaryClient client = new NotaryClient(string, slow, Access.open())) {
            client.submit(party.sign(Transaction.of()));
            seen.removeIf(String::isEmpty); // of the list of endpoints
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
