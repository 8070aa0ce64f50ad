package org.replicatednotary.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** The repository's own files; Maven runs tests in clients/java. */
final class Golden {
    static final ObjectMapper MAPPER = new ObjectMapper();

    private Golden() {}

    static String text(String path) {
        try {
            return Files.readString(Path.of("../..").resolve(path));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static JsonNode json(String path) {
        try {
            return MAPPER.readTree(text("tests/golden/" + path));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static List<String> texts(JsonNode list) {
        List<String> found = new ArrayList<>();
        list.forEach(one -> found.add(one.asText()));
        return found;
    }
}
