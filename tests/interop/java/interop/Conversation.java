package interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * The process side of a conversation with a test: one JSON object a line.
 *
 * <pre>
 * in   {"id": 7, "op": "add", ...}
 * out  {"id": 7, "ok": ...}                                       in any order: each request has its own thread
 *      {"id": 7, "error": {"class", "code", "message", "stack"}}  code: the result of getCode() of the exception
 *      {"event": "acked", ...}                                    an event, without a request
 * </pre>
 *
 * Bytes are lower-case hexadecimal. Objects that outlive a request are kept under names. The end of stdin ends
 * the process at once; open objects are abandoned.
 */
public final class Conversation {
    /** Performs the requests of one operation; Jackson must be able to write the result. */
    public interface Answerer {
        Object answer(JsonNode request) throws Exception;
    }

    private final ObjectMapper json = new ObjectMapper();
    // System.out goes to stderr, so that output of libraries does not mix with the replies.
    private final PrintStream out =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private final Map<String, Answerer> answerers = new HashMap<>();
    private final Map<String, Object> named = new ConcurrentHashMap<>();

    public Conversation() {
        System.setOut(System.err);
        on("ping", request -> "pong");
        on("forget", request -> named.remove(request.get("name").asText()) != null);
        on("threads", request -> threads());
    }

    public void on(String op, Answerer answerer) {
        if (answerers.put(op, answerer) != null) {
            throw new IllegalArgumentException("two handlers for " + op);
        }
    }

    public void keep(String name, Object object) {
        named.put(name, object);
    }

    public <T> T kept(JsonNode request, String field, Class<T> type) {
        String name = request.get(field).asText();
        Object object = named.get(name);
        if (object == null) {
            throw new IllegalArgumentException("no object has the name " + name);
        }
        return type.cast(object);
    }

    public void send(Map<String, Object> event) {
        write(json.valueToTree(event));
    }

    /** Performs requests until stdin ends, then ends the process at once; open objects are abandoned. */
    public void run() throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = in.readLine()) != null) {
            JsonNode request = json.readTree(line);
            threads.execute(() -> answer(request));
        }
        Runtime.getRuntime().halt(0);
    }

    private void answer(JsonNode request) {
        ObjectNode answer = json.createObjectNode();
        answer.set("id", request.get("id"));
        try {
            Answerer answerer = answerers.get(request.get("op").asText());
            if (answerer == null) {
                throw new IllegalArgumentException("unknown request " + request);
            }
            answer.set("ok", json.valueToTree(answerer.answer(request)));
        } catch (Throwable error) {
            answer.set("error", describe(error));
        }
        write(answer);
    }

    private ObjectNode describe(Throwable error) {
        while ((error instanceof ExecutionException || error instanceof CompletionException)
            && error.getCause() != null) {
            error = error.getCause();
        }
        ObjectNode described = json.createObjectNode();
        described.put("class", error.getClass().getName());
        described.put("message", String.valueOf(error.getMessage()));
        try {
            described.put("code", (Integer) error.getClass().getMethod("getCode").invoke(error));
        } catch (ReflectiveOperationException | ClassCastException none) {
            described.putNull("code");
        }
        StringBuilder stack = new StringBuilder();
        for (StackTraceElement element : error.getStackTrace()) {
            stack.append(element).append('\n');
        }
        described.put("stack", stack.toString());
        return described;
    }

    /** What each thread does, and which lock it waits for: for a request that gets no reply. */
    private static String threads() {
        StringBuilder all = new StringBuilder();
        for (ThreadInfo each : ManagementFactory.getThreadMXBean().dumpAllThreads(true, true)) {
            all.append('"').append(each.getThreadName()).append("\" ").append(each.getThreadState());
            if (each.getLockName() != null) {
                all.append(" on ").append(each.getLockName()).append(" of ").append(each.getLockOwnerName());
            }
            all.append('\n');
            for (StackTraceElement element : each.getStackTrace()) {
                all.append("    ").append(element).append('\n');
            }
        }
        return all.toString();
    }

    private synchronized void write(JsonNode line) {
        out.println(line);
        out.flush();
    }

    public static byte[] bytes(JsonNode node) {
        return java.util.HexFormat.of().parseHex(node.asText());
    }

    public static String hex(byte[] bytes) {
        return java.util.HexFormat.of().formatHex(bytes);
    }
}
