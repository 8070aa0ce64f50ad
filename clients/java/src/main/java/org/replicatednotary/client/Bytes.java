package org.replicatednotary.client;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.regex.Pattern;

/** Hexadecimal text, digests and UTF-8. */
final class Bytes {
    private static final Pattern HEX = Pattern.compile("[0-9a-fA-F]*");

    private Bytes() {}

    /** {@code size} bytes from exactly their hexadecimal digits. Throws BadRequest naming the field. */
    static byte[] fromHex(String name, String text, int size) {
        if (text == null || text.length() != 2 * size || !HEX.matcher(text).matches()) {
            throw new NotaryException.BadRequest(name + " is " + 2 * size + " hexadecimal digits");
        }
        return HexFormat.of().parseHex(text);
    }

    static String toHex(byte[] raw) {
        return HexFormat.of().formatHex(raw);
    }

    static byte[] joined(byte[] first, byte[] second) {
        return ByteBuffer.allocate(first.length + second.length).put(first).put(second).array();
    }

    static byte[] sha256(byte[]... parts) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            for (byte[] part : parts) {
                digest.update(part);
            }
            return digest.digest();
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error); // every Java platform has it
        }
    }

    /** UTF-8 of a text; throws BadRequest for half of a surrogate pair, which {@code getBytes} would replace. */
    static byte[] utf8(String name, String text) {
        if (text == null) {
            throw new NotaryException.BadRequest(name + " is missing");
        }
        try {
            ByteBuffer encoded = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
            byte[] raw = new byte[encoded.remaining()];
            encoded.get(raw);
            return raw;
        } catch (CharacterCodingException error) {
            throw new NotaryException.BadRequest(name + " is not valid Unicode text");
        }
    }

    /** Refuse what is no ledger offset, before it is asked for. */
    static void checkOffset(String name, long offset) {
        if (offset < 0) {
            throw new NotaryException.BadRequest(name + " is a ledger offset, from 0, not " + offset);
        }
    }
}
