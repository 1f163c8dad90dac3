package org.apache.bookkeeper.test;

import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.withSettings;

import java.io.File;
import java.io.IOException;
import java.io.PrintWriter;
import java.lang.reflect.Field;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.bookie.BookieStateManager;
import org.apache.bookkeeper.bookie.GarbageCollectorThread;
import org.apache.bookkeeper.bookie.InterleavedLedgerStorage;
import org.apache.bookkeeper.bookie.LedgerDirsManager;
import org.apache.bookkeeper.bookie.LedgerStorage;
import org.apache.bookkeeper.client.BookKeeperTestClient;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieServer;
import org.mockito.invocation.InvocationOnMock;
import org.mockito.stubbing.Answer;

/** A bookie of ours, as a process, and the objects through which a test controls it. */
final class OurBookie {
    private static final AtomicInteger NUMBER = new AtomicInteger();
    private static final String TOKEN = "token-of-the-tests";
    private static final String USERS = "java.security.auth.login.config"; // for Java a property of the JVM
    private static final Pattern ADDRESS = Pattern.compile("http://127.0.0.1:[0-9]+");
    private static final int STOP_LIMIT_S = 30;
    private static final int SESSION_MS = 60_000;

    private final ServerConfiguration conf;
    private final BookKeeperTestClient client;
    private final BookieId id;
    private final File log;
    private final ProcessHandle process;
    private final Set<File> full = new HashSet<>(); // directories

    OurBookie(ServerConfiguration conf, BookKeeperTestClient client, File directory, BookieForks forks)
            throws IOException {
        this.conf = conf;
        this.client = client;
        id = BookieImpl.getBookieId(conf);
        File file = new File(directory, String.format("bookie-%03d.conf", NUMBER.incrementAndGet()));
        log = new File(file.getPath() + ".log");
        writeConfiguration(file, tokenFile(directory));
        process = forks.fork(file, log);
    }

    private static Path tokenFile(File directory) throws IOException {
        Path path = directory.toPath().resolve("token");
        if (!Files.exists(path)) {
            Files.createFile(
                    path, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------")));
            Files.writeString(path, TOKEN);
        }
        return path;
    }

    private void writeConfiguration(File file, Path token) throws IOException {
        try (PrintWriter lines = new PrintWriter(file, StandardCharsets.UTF_8)) {
            for (Iterator<String> keys = conf.getKeys(); keys.hasNext(); ) {
                String key = keys.next();
                Object value = conf.getProperty(key);
                String text = value instanceof Collection
                        ? ((Collection<?>) value).stream().map(String::valueOf).collect(Collectors.joining(","))
                        : String.valueOf(value);
                lines.println(key + "=" + text);
            }
            String users = System.getProperty(USERS);
            if (users != null && !conf.containsKey(USERS)) {
                lines.println(USERS + "=" + users);
            }
            if (!conf.containsKey("zkTimeout")) {
                lines.println("zkTimeout=" + SESSION_MS); // a suspended bookie of Java keeps its session
            }
            if (!conf.isHttpServerEnabled()) {
                lines.println("httpServerEnabled=true");
                lines.println("httpServerPort=0");
                lines.println("httpServerTokenPath=" + token);
            }
        }
    }

    /** Fails if the process has ended, with the end of its log. */
    void mustRun() throws IOException {
        if (!process.isAlive()) {
            String text = Files.readString(log.toPath());
            throw new IOException(
                    "the bookie ended: " + text.substring(Math.max(0, text.length() - 2000)));
        }
    }

    BookieServer server() {
        Answer<?> answer = this::onServer;
        return mock(BookieServer.class, withSettings().defaultAnswer(answer).stubOnly());
    }

    private Object onServer(InvocationOnMock call) throws Throwable {
        switch (call.getMethod().getName()) {
            case "getBookieId":
                return id;
            case "getLocalAddress":
                return BookieImpl.getBookieAddress(conf);
            case "isRunning":
            case "isBookieRunning":
                return process.isAlive();
            case "shutdown":
                shutdown();
                return null;
            case "suspendProcessing":
                signal("STOP");
                awaitStopped();
                return null;
            case "resumeProcessing":
                signal("CONT");
                return null;
            case "join":
                awaitEnd(Long.MAX_VALUE);
                return null;
            case "getBookie":
                OurBookies.noteInside("BookieServer.getBookie");
                Answer<?> answer = this::onBookie;
                return mock(BookieImpl.class, withSettings().defaultAnswer(answer).stubOnly());
            case "toString":
                return "our bookie " + id;
            default:
                return outside("BookieServer", call);
        }
    }

    private Object onBookie(InvocationOnMock call) throws Throwable {
        switch (call.getMethod().getName()) {
            case "isRunning":
                return process.isAlive();
            case "getStateManager":
                Answer<?> answer = this::onState;
                return mock(BookieStateManager.class, withSettings().defaultAnswer(answer).stubOnly());
            case "shutdown":
                shutdown();
                return 0;
            case "isReadOnly":
                return isReadOnly();
            case "getLedgerDirsManager":
                Answer<?> disks = this::onDisks;
                return mock(LedgerDirsManager.class, withSettings().defaultAnswer(disks).stubOnly());
            case "getLedgerStorage":
                return storage();
            case "toString":
                return "our bookie " + id;
            default:
                return outside(Bookie.class.getSimpleName(), call);
        }
    }

    private Object onState(InvocationOnMock call) throws Throwable {
        switch (call.getMethod().getName()) {
            case "isRunning":
                return process.isAlive();
            case "isReadOnly":
                return isReadOnly();
            case "transitionToReadOnlyMode":
                return switchTo(true);
            case "transitionToWritableMode":
                return switchTo(false);
            default:
                return outside("StateManager", call);
        }
    }

    /** A directory that the test declares full: the operator's switch has the same effect once all are. */
    private Object onDisks(InvocationOnMock call) throws Throwable {
        boolean wasFull = areFull();
        switch (call.getMethod().getName()) {
            case "addToFilledDirs":
                full.add(call.getArgument(0, File.class));
                break;
            case "addToWritableDirs":
                full.remove(call.getArgument(0, File.class));
                break;
            case "getWritableLedgerDirs":
                return Arrays.stream(conf.getLedgerDirs())
                        .map(each -> new File(each, "current"))
                        .filter(each -> !full.contains(each))
                        .collect(Collectors.toList());
            default:
                return outside("LedgerDirsManager", call);
        }
        if (wasFull != areFull()) {
            switchTo(areFull());
        }
        return null;
    }

    private boolean areFull() {
        return full.size() == conf.getLedgerDirs().length;
    }

    /** Tests take the thread of the garbage collection out of the storage, and run a round in it. */
    private LedgerStorage storage() throws ReflectiveOperationException {
        Answer<?> outside = call -> outside("LedgerStorage", call);
        LedgerStorage storage =
                mock(InterleavedLedgerStorage.class, withSettings().defaultAnswer(outside).stubOnly());
        Answer<?> collect = call -> call.getMethod().getName().equals("run")
                ? collectGarbage()
                : outside("GarbageCollectorThread", call);
        Field field = InterleavedLedgerStorage.class.getDeclaredField("gcThread");
        field.setAccessible(true);
        field.set(storage, mock(GarbageCollectorThread.class, withSettings().defaultAnswer(collect).stubOnly()));
        return storage;
    }

    private Void collectGarbage() throws Exception {
        http("gc", HttpRequest.newBuilder().PUT(HttpRequest.BodyPublishers.noBody()));
        while (http("gc", HttpRequest.newBuilder().GET()).contains("true")) {
            TimeUnit.MILLISECONDS.sleep(5);
        }
        return null;
    }

    private static Object outside(String kind, InvocationOnMock call) {
        String name = kind + "." + call.getMethod().getName();
        OurBookies.noteInside(name);
        throw new UnsupportedOperationException("a process has no " + name);
    }

    private CompletableFuture<Void> switchTo(boolean readOnly) throws Exception {
        String body = "{\"readOnly\": " + readOnly + "}";
        http("state/readonly", HttpRequest.newBuilder().PUT(HttpRequest.BodyPublishers.ofString(body)));
        (readOnly ? client.waitForReadOnlyBookie(id) : client.waitForWritableBookie(id)).get(30, TimeUnit.SECONDS);
        return CompletableFuture.completedFuture(null);
    }

    private boolean isReadOnly() throws Exception {
        return http("state/readonly", HttpRequest.newBuilder().GET()).contains("true");
    }

    private String http(String path, HttpRequest.Builder request) throws Exception {
        Matcher address = ADDRESS.matcher(Files.readString(log.toPath()));
        if (!address.find()) {
            throw new IOException("the bookie has no HTTP server; " + log);
        }
        URI uri = URI.create(address.group() + "/api/v1/bookie/" + path);
        HttpResponse<String> reply = HttpClient.newHttpClient()
                .send(
                        request.uri(uri).header("Authorization", "Bearer " + TOKEN).build(),
                        HttpResponse.BodyHandlers.ofString());
        if (reply.statusCode() != 200) {
            throw new IOException("HTTP " + reply.statusCode() + ": " + reply.body());
        }
        return reply.body();
    }

    private void signal(String name) throws IOException, InterruptedException {
        new ProcessBuilder("kill", "-" + name, String.valueOf(process.pid())).start().waitFor();
    }

    private void awaitStopped() throws IOException, InterruptedException {
        Path path = Path.of("/proc/" + process.pid() + "/stat");
        while (process.isAlive() && !Files.readString(path).contains(") T ")) {
            TimeUnit.MILLISECONDS.sleep(5);
        }
    }

    /** End the process; returns once it has ended. */
    synchronized void shutdown() throws IOException, InterruptedException {
        if (!process.isAlive()) {
            return;
        }
        process.destroy();
        signal("CONT");
        if (!awaitEnd(TimeUnit.SECONDS.toNanos(STOP_LIMIT_S))) {
            process.destroyForcibly();
            throw new IOException("a bookie did not end on SIGTERM");
        }
    }

    private boolean awaitEnd(long limitNs) throws InterruptedException {
        for (long beganNs = System.nanoTime(); process.isAlive(); TimeUnit.MILLISECONDS.sleep(5)) {
            if (System.nanoTime() - beganNs > limitNs) {
                return false;
            }
        }
        return true;
    }
}
