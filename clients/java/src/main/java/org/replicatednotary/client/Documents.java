package org.replicatednotary.client;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.DateTimeException;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.function.ToLongFunction;

/** The JSON documents of the ledger API; frames of a stream are turned into the same tree, byte strings in hexadecimal. */
final class Documents {
    static final ObjectMapper MAPPER = new ObjectMapper().enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);

    private Documents() {}

    // ---- what is sent ----

    static ObjectNode submission(Submission submission, Deduplication asked) {
        submission.checkPeriod(asked);
        Deduplication deduplication = submission.signedPeriod();
        ObjectNode found = MAPPER.createObjectNode();
        ObjectNode request = found.putObject("request");
        request.put("ledger_id", submission.request().ledgerId());
        request.put("tx_id", submission.txId());
        submission.request().inputs().forEach(request.putArray("inputs")::add);
        submission.request().references().forEach(request.putArray("references")::add);
        TimeWindow window = submission.request().window();
        if (window != null) {
            ObjectNode ends = request.putObject("time_window");
            if (window.fromUs() != null) {
                ends.put("from", TimeWindow.format(window.fromUs()));
            }
            if (window.untilUs() != null) {
                ends.put("until", TimeWindow.format(window.untilUs()));
            }
        }
        request.put("party", submission.request().party());
        request.put("public_key", Bytes.toHex(submission.publicKey()));
        request.put("signature", Bytes.toHex(submission.signature()));
        found.put("command_id", submission.commandId());
        found.put("user_id", submission.userId());
        submission.actAs().forEach(found.putArray("act_as")::add);
        found.put("submission_id", submission.submissionId());
        if (deduplication != null) {
            ObjectNode period = found.putObject("deduplication");
            if (deduplication.durationS() != null) {
                period.put("duration_s", deduplication.durationS());
            } else {
                period.put("after_offset", deduplication.afterOffset());
            }
        }
        return found;
    }

    static String batch(List<ObjectNode> documents) {
        ObjectNode found = MAPPER.createObjectNode();
        found.putArray("submissions").addAll(documents);
        return found.toString();
    }

    // ---- what comes back ----

    /** A JSON object. Throws AnswerUnreadable. */
    static JsonNode parse(String body) {
        try {
            JsonNode found = MAPPER.readTree(body);
            if (found != null && found.isObject()) {
                return found;
            }
        } catch (JsonProcessingException error) {
            // says more of the text than we want to repeat
        }
        throw new NotaryException.AnswerUnreadable("no JSON object: " + body.substring(0, Math.min(200, body.length())));
    }

    /** The answer in a body; whatever does not come from the notary leaves the outcome unknown. */
    static Answer answer(int status, String body) {
        try {
            return answer(status, parse(body));
        } catch (NotaryException error) {
            return Answer.NotNow.unknown("no answer: " + status + " " + body);
        }
    }

    private static Answer answer(int status, JsonNode document) {
        return switch (status) {
            case 200 -> notarised(document);
            case 202 -> accepted(document);
            default -> result(document);
        };
    }

    /** As {@link #answer}, of a call that asked for early acceptance. */
    static Answer early(int status, String body) {
        try {
            JsonNode document = parse(body);
            if (status == 202 && document.path("code").asText().equals("ACCEPTED_EARLY")) {
                return new Answer.AcceptedEarly(
                        text(document, "submission_id"), document.path("estimate_s").asDouble(0), text(document, "transaction_id"));
            }
        } catch (NotaryException error) {
            return Answer.NotNow.unknown("no answer: " + status + " " + body);
        }
        return answer(status, body);
    }

    /** What an answer says of the outcome. */
    static Answer.Result decision(Answer answer) {
        if (answer instanceof Answer.Accepted accepted) {
            return new Answer.NotNow("ACCEPTED", "recorded; the outcome is a completion", accepted.estimateS());
        }
        return (Answer.Result) answer;
    }

    /** The problem that a body is, if it is one. */
    static Optional<Answer.Problem> problemIn(String body) {
        try {
            return Optional.of(problem(parse(body)));
        } catch (NotaryException error) {
            return Optional.empty();
        }
    }

    static Answer.Problem problem(JsonNode document) {
        String retry = text(document, "retry");
        if (!retry.equals("no") && !retry.equals("same")) {
            throw new NotaryException.AnswerUnreadable("retry '" + retry + "'");
        }
        return new Answer.Problem(
                text(document, "code"),
                (int) integer(document, "status"),
                text(document, "title"),
                text(document, "detail"),
                text(document, "remedy"),
                retry.equals("no") ? Code.Retry.NO : Code.Retry.SAME,
                document.path("request_id").asText(""),
                document.path("retry_after_s").asDouble(0),
                integerOrNull(document, "pruned_to"));
    }

    /** An answer in a frame of a stream. Throws AnswerUnreadable. */
    static Answer answerInFrame(JsonNode map) {
        return switch (text(map, "type")) {
            case "notarised" -> notarised(map);
            case "accepted" -> accepted(map);
            case "rejected" -> Answer.Problem.of(text(map, "code"), text(map, "detail"), 400);
            case "not_now" -> notNow(text(map, "code"), text(map, "detail"), map.path("retry_after_s").asDouble(0));
            case "refused" -> refusedInFrame(map);
            default -> throw new NotaryException.AnswerUnreadable("an answer of another type");
        };
    }

    private static Answer result(JsonNode document) {
        Answer.Problem problem = problem(document);
        if (problem.retry() == Code.Retry.SAME) {
            return notNow(problem.code(), problem.detail(), problem.retryAfterS());
        }
        if (Code.of(problem.code()).isEmpty() || document.path("tx_id").asText("").isEmpty()) {
            return problem;
        }
        String judgedAt = document.path("judged_at").asText("");
        List<Answer.Conflict> conflicts = new ArrayList<>();
        document.path("conflicts").forEach(one -> conflicts.add(conflict(one)));
        JsonNode longest = document.path("deduplication_max_s");
        JsonNode earliest = document.path("pruned_to");
        return refused(
                problem.code(),
                problem.detail(),
                document,
                conflicts,
                judgedAt.isEmpty() ? null : time(judgedAt),
                window(document.path("time_window"), "from", "until", end -> time(end.asText())),
                longest.isNumber() && earliest.isNumber() ? new Answer.Bound(longest.asDouble(), earliest.asLong()) : null);
    }

    private static Answer refusedInFrame(JsonNode map) {
        String code = text(map, "code");
        if (Code.of(code).isEmpty()) {
            return Answer.Problem.of(code, code, 400);
        }
        List<Answer.Conflict> conflicts = new ArrayList<>();
        for (JsonNode one : map.path("conflicts")) {
            String state = Request.formatState(Bytes.fromHex("a state", one.path(0).asText(), 36));
            conflicts.add(new Answer.Conflict(state, one.path(1).asText(), usage(one.path(2))));
        }
        JsonNode judged = map.path("judged_us");
        JsonNode bound = map.path("bound");
        return refused(
                code,
                code,
                map,
                conflicts,
                judged.isIntegralNumber() ? judged.asLong() : null,
                window(map.path("window"), "from_us", "until_us", JsonNode::asLong),
                bound.isObject()
                        ? new Answer.Bound(bound.path("longest_s").asDouble(), integer(bound, "earliest_offset"))
                        : null);
    }

    private static Answer.Refused refused(
            String code,
            String detail,
            JsonNode document,
            List<Answer.Conflict> conflicts,
            Long judgedUs,
            TimeWindow window,
            Answer.Bound bound) {
        boolean tooLate = judgedUs != null && window != null && window.untilUs() != null && judgedUs >= window.untilUs();
        boolean isFinal = code.equals(Code.TIME_WINDOW_CLOSED.name())
                ? tooLate
                : code.equals(Code.STATE_CONFLICT.name()) || code.equals(Code.TX_ID_REUSED.name());
        return new Answer.Refused(
                code,
                detail,
                text(document, "tx_id").toLowerCase(Locale.ROOT),
                isFinal,
                integerOrNull(document, "record_offset"),
                integerOrNull(document, "ledger_offset"),
                List.copyOf(conflicts),
                judgedUs,
                window,
                integerOrNull(document, "accepted_offset"),
                bound);
    }

    private static Answer.Notarised notarised(JsonNode document) {
        JsonNode receipt = document.path("receipt");
        if (!(receipt.path("path") instanceof ArrayNode path)) {
            throw new NotaryException.AnswerUnreadable("a success has a receipt");
        }
        List<String> nodes = new ArrayList<>();
        path.forEach(node -> nodes.add(node.asText()));
        return new Answer.Notarised(
                text(document, "tx_id").toLowerCase(Locale.ROOT),
                text(document, "content_digest").toLowerCase(Locale.ROOT),
                integer(document, "log_offset"),
                integerOrNull(document, "record_offset"),
                document.path("duplicate").asBoolean(false),
                new Receipt(
                        text(receipt, "tx_id"),
                        text(receipt, "content_digest"),
                        integer(receipt, "leaf_index"),
                        integer(receipt, "tree_size"),
                        List.copyOf(nodes),
                        text(receipt, "notary_key"),
                        text(receipt, "signature"),
                        integer(receipt, "version"),
                        place(receipt.path("place"))),
                integerOrNull(document, "ledger_offset"));
    }

    private static Receipt.Place place(JsonNode document) {
        if (document.isMissingNode() || document.isNull()) {
            return null;
        }
        return new Receipt.Place(
                text(document, "log_id"), integer(document, "log_offset"), integer(document, "epoch"), integer(document, "judged_us"));
    }

    private static Answer.Accepted accepted(JsonNode document) {
        return new Answer.Accepted(
                text(document, "submission_id"), document.path("estimate_s").asDouble(0), integerOrNull(document, "log_offset"));
    }

    /** In the words of this release: what a code of a newer one means for the outcome is not known. */
    private static Answer.NotNow notNow(String code, String detail, double retryAfterS) {
        if (Code.of(code).isPresent()) {
            return new Answer.NotNow(code, detail, retryAfterS);
        }
        return new Answer.NotNow(Code.OUTCOME_UNKNOWN.name(), code + ": " + detail, retryAfterS);
    }

    static Answer.Conflict conflict(JsonNode document) {
        return new Answer.Conflict(text(document, "state"), text(document, "consumed_by_hash"), usage(document.path("usage")));
    }

    private static String usage(JsonNode found) {
        String usage = found.asText();
        if (!usage.equals("input") && !usage.equals("reference")) {
            throw new NotaryException.AnswerUnreadable("a conflict's usage");
        }
        return usage;
    }

    private static TimeWindow window(JsonNode document, String from, String until, ToLongFunction<JsonNode> read) {
        if (!document.isObject()) {
            return null;
        }
        return new TimeWindow(
                document.hasNonNull(from) ? read.applyAsLong(document.get(from)) : null,
                document.hasNonNull(until) ? read.applyAsLong(document.get(until)) : null);
    }

    private static long time(String text) {
        try {
            return TimeWindow.microseconds(OffsetDateTime.parse(text).toInstant());
        } catch (DateTimeException error) {
            throw new NotaryException.AnswerUnreadable("a time that is none");
        }
    }

    static String text(JsonNode document, String name) {
        JsonNode found = document.path(name);
        if (!found.isTextual()) {
            throw new NotaryException.AnswerUnreadable(name + " is no text");
        }
        return found.asText();
    }

    static String textOrNull(JsonNode document, String name) {
        return document.hasNonNull(name) ? text(document, name) : null;
    }

    static List<Long> integers(JsonNode document, String name) {
        List<Long> found = new ArrayList<>();
        for (JsonNode one : document.path(name)) {
            if (!one.isIntegralNumber() || !one.canConvertToLong()) {
                throw new NotaryException.AnswerUnreadable(name + " is no list of integers");
            }
            found.add(one.asLong());
        }
        return List.copyOf(found);
    }

    static List<String> texts(JsonNode document, String name) {
        List<String> found = new ArrayList<>();
        document.path(name).forEach(one -> found.add(one.asText()));
        return List.copyOf(found);
    }

    static long integer(JsonNode document, String name) {
        JsonNode found = document.path(name);
        if (!found.isIntegralNumber() || !found.canConvertToLong()) {
            throw new NotaryException.AnswerUnreadable(name + " is no integer");
        }
        return found.asLong();
    }

    static Long integerOrNull(JsonNode document, String name) {
        return document.hasNonNull(name) ? (Long) integer(document, name) : null;
    }
}
