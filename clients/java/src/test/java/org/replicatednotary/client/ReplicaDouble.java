package org.replicatednotary.client;

import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;
import org.msgpack.core.MessageUnpacker;

/**
 * A replica that leads or not, over real sockets: calls, a feed, a stream. It refuses each submission with TX_ID_REUSED while it leads,
 * with NOT_ACTIVE otherwise. Frozen, it takes connections and all that is sent, and says nothing.
 */
final class ReplicaDouble implements AutoCloseable {
    static final String TX_ID = "ab".repeat(32);
    private static final String ACCEPT = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"; // RFC 6455
    private static final int BINARY = 2;

    final List<String> seen = new CopyOnWriteArrayList<>(); // method and path of each call; "frame" for one of a stream
    volatile boolean leads;
    volatile boolean isFrozen;
    volatile long answersAfterMs;
    volatile int ledgerEnd;
    volatile String listed = ""; // an endpoint in its list
    private final int epoch;
    private final ServerSocket listener;
    private final Set<Socket> sockets = ConcurrentHashMap.newKeySet();

    ReplicaDouble(int epoch) throws IOException {
        this.epoch = epoch;
        this.listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        begin(this::takeConnections);
    }

    String endpoint() {
        return "http://127.0.0.1:" + listener.getLocalPort();
    }

    long count(String what) {
        return seen.stream().filter(what::equals).count();
    }

    @Override
    public void close() throws IOException {
        listener.close();
        for (Socket socket : sockets) {
            socket.close();
        }
    }

    private interface Work {
        void run() throws IOException;
    }

    private static void begin(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (IOException error) {
                // the other side left, or the test is over
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private void takeConnections() throws IOException {
        while (true) {
            Socket socket = listener.accept();
            sockets.add(socket);
            begin(() -> {
                try (socket) {
                    serve(new DataInputStream(socket.getInputStream()), socket.getOutputStream());
                }
            });
        }
    }

    private void serve(DataInputStream in, OutputStream out) throws IOException {
        while (true) {
            String head = line(in);
            String key = null;
            int size = 0;
            for (String header = line(in); !header.isEmpty(); header = line(in)) {
                String name = header.substring(0, header.indexOf(':')).toLowerCase(Locale.ROOT);
                String value = header.substring(header.indexOf(':') + 1).strip();
                key = name.equals("sec-websocket-key") ? value : key;
                size = name.equals("content-length") ? Integer.parseInt(value) : size;
            }
            in.readNBytes(size);
            String call = head.substring(0, head.lastIndexOf(' '));
            seen.add(call);
            whileFrozen();
            if (key != null) {
                stream(key, in, out);
            } else if (call.startsWith("GET /v1/completions")) {
                feed(out, Integer.parseInt(call.replaceAll(".*after=([0-9]+).*", "$1")));
            } else {
                answer(out, call);
            }
        }
    }

    private static String line(DataInputStream in) throws IOException {
        ByteArrayOutputStream found = new ByteArrayOutputStream();
        for (int next = in.readUnsignedByte(); next != '\n'; next = in.readUnsignedByte()) {
            found.write(next);
        }
        return found.toString(StandardCharsets.US_ASCII).strip();
    }

    private void whileFrozen() {
        while (isFrozen) {
            pause(20);
        }
    }

    private static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private void answer(OutputStream out, String call) throws IOException {
        if (call.equals("GET /v1/notary")) {
            reply(out, 200, "{\"active\":" + leads + ",\"epoch\":" + epoch + "}");
        } else if (call.equals("GET /v1/endpoints")) {
            reply(out, 200, "{\"endpoints\":[{\"url\":\"" + listed + "\",\"live\":true}]}");
        } else if (leads) {
            pause(answersAfterMs);
            reply(out, 409, problem("TX_ID_REUSED", 409, "no").replace("}", ",\"tx_id\":\"" + TX_ID + "\"}"));
        } else {
            reply(out, 503, problem("NOT_ACTIVE", 503, "same"));
        }
    }

    private static String problem(String code, int status, String retry) {
        return "{\"type\":\"t\",\"title\":\"t\",\"status\":" + status + ",\"detail\":\"d\",\"code\":\"" + code
                + "\",\"remedy\":\"r\",\"retry\":\"" + retry + "\"}";
    }

    private static void reply(OutputStream out, int status, String body) throws IOException {
        write(out, "HTTP/1.1 " + status + " x\r\nContent-Type: application/json\r\nContent-Length: " + body.length() + "\r\n\r\n" + body);
    }

    private static void write(OutputStream out, String text) throws IOException {
        out.write(text.getBytes(StandardCharsets.UTF_8));
        out.flush();
    }

    private void feed(OutputStream out, int after) throws IOException {
        if (!leads) {
            reply(out, 503, problem("NOT_ACTIVE", 503, "same"));
            return;
        }
        write(out, "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n");
        for (int told = after; ; ) {
            whileFrozen();
            if (told < ledgerEnd) {
                String entry = "{\"kind\":\"completion\",\"offset\":" + ++told + ",\"user_id\":\"u\",\"command_id\":\"c\","
                        + "\"submission_id\":\"s\",\"act_as\":[],\"tx_id\":\"" + TX_ID + "\",\"content_digest\":\"" + TX_ID
                        + "\",\"code\":\"NOTARISED\",\"log_offset\":1,\"recorded_at\":\"2026-01-01T00:00:00Z\"}\n";
                write(out, Integer.toHexString(entry.length()) + "\r\n" + entry + "\r\n");
            } else {
                pause(20);
            }
        }
    }

    private void stream(String key, DataInputStream in, OutputStream out) throws IOException {
        write(out, "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accepted(key)
                + "\r\nSec-WebSocket-Protocol: notary.v1\r\n\r\n");
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            packer.packArrayHeader(4).packInt(0).packInt(1).packInt(10).packInt(100);
            send(out, packer.toByteArray());
        }
        while (true) {
            int kind = in.readUnsignedByte() & 0xf;
            byte[] frame = payload(in);
            if (kind == BINARY) {
                seen.add("frame");
                whileFrozen();
                send(out, answers(frame));
            }
        }
    }

    private static String accepted(String key) {
        try {
            byte[] hash = MessageDigest.getInstance("SHA-1").digest((key + ACCEPT).getBytes(StandardCharsets.US_ASCII));
            return Base64.getEncoder().encodeToString(hash);
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    /** What a client sends is masked. */
    private static byte[] payload(DataInputStream in) throws IOException {
        int size = in.readUnsignedByte() & 0x7f;
        int length = size == 126 ? in.readUnsignedShort() : size == 127 ? (int) in.readLong() : size;
        byte[] mask = in.readNBytes(4);
        byte[] found = in.readNBytes(length);
        for (int at = 0; at < found.length; at++) {
            found[at] ^= mask[at % 4];
        }
        return found;
    }

    private static void send(OutputStream out, byte[] frame) throws IOException {
        out.write(0x80 | BINARY);
        if (frame.length > 125) {
            out.write(126);
            out.write(frame.length >> 8);
        }
        out.write(frame.length);
        out.write(frame);
        out.flush();
    }

    private byte[] answers(byte[] frame) throws IOException {
        try (MessageUnpacker unpacker = MessagePack.newDefaultUnpacker(frame);
                MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            unpacker.unpackArrayHeader();
            unpacker.unpackInt();
            int count = unpacker.unpackArrayHeader();
            packer.packArrayHeader(2).packInt(2).packArrayHeader(count);
            for (int at = 0; at < count; at++) {
                unpacker.unpackArrayHeader();
                packer.packArrayHeader(2).packLong(unpacker.unpackLong());
                unpacker.skipValue();
                pack(packer);
            }
            return packer.toByteArray();
        }
    }

    private void pack(MessageBufferPacker packer) throws IOException {
        if (leads) {
            packer.packMapHeader(3).packString("type").packString("refused").packString("code").packString("TX_ID_REUSED");
            packer.packString("tx_id").packBinaryHeader(32).writePayload(Bytes.fromHex("an id", TX_ID, 32));
        } else {
            packer.packMapHeader(4).packString("type").packString("not_now").packString("code").packString("NOT_ACTIVE");
            packer.packString("detail").packString("d").packString("retry_after_s").packInt(0);
        }
    }
}
