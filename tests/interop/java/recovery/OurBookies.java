package org.apache.bookkeeper.client;

import java.io.File;
import java.io.IOException;
import java.io.PrintWriter;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.junit.internal.TextListener;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;

/**
 * Apache's LedgerRecoveryTest with our bookies, as processes, in place of the healthy bookies of Java. The bookies
 * that a test makes itself, with a fault, stay Java's: they take over the directories of ours, and ours take them back.
 *
 * <p>Arguments: a directory for configurations and logs, the names of the tests separated by commas, and the command
 * of a bookie, which gets the path of its configuration.
 */
public class OurBookies extends LedgerRecoveryTest {
    private static File directory;
    private static List<String> command;
    private static int started = 0;

    private final Map<BookieId, Process> processes = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        directory = new File(args[0]);
        command = Arrays.asList(args).subList(2, args.length);
        JUnitCore junit = new JUnitCore();
        junit.addListener(new TextListener(System.out));
        boolean isGood = true;
        for (String test : args[1].split(",")) {
            isGood &= junit.run(Request.method(OurBookies.class, test)).wasSuccessful();
        }
        System.exit(isGood ? 0 : 1);
    }

    @Override
    protected ServerTester startBookie(ServerConfiguration conf) throws Exception {
        File file = new File(directory, "bookie-" + started++ + ".conf");
        try (PrintWriter lines = new PrintWriter(file)) {
            for (Iterator<String> keys = conf.getKeys(); keys.hasNext(); ) {
                String key = keys.next();
                Object value = conf.getProperty(key);
                String text = value instanceof Collection
                        ? ((Collection<?>) value).stream().map(String::valueOf).collect(Collectors.joining(","))
                        : String.valueOf(value);
                lines.println(key + "=" + text);
            }
        }
        BookieId id = BookieImpl.getBookieId(conf);
        Future<?> writable = bkc.waitForWritableBookie(id);
        List<String> words = new ArrayList<>(command);
        words.add(file.getPath());
        Process process = new ProcessBuilder(words)
                .redirectErrorStream(true)
                .redirectOutput(new File(file.getPath() + ".log"))
                .start();
        try {
            writable.get(40, TimeUnit.SECONDS);
        } catch (Exception e) {
            process.destroy();
            throw new IOException("bookie " + id + " of " + file + " did not become writable", e);
        }
        processes.put(id, process);
        return new Ours(conf, process);
    }

    @Override
    public void sleepBookie(BookieId id, CountDownLatch wakes) throws InterruptedException, IOException {
        signal("STOP", processes.get(id));
        new Thread(() -> {
            try {
                wakes.await();
                signal("CONT", processes.get(id));
            } catch (InterruptedException | IOException e) {
                throw new RuntimeException(e);
            }
        }).start();
    }

    private static void signal(String name, Process process) throws InterruptedException, IOException {
        new ProcessBuilder("kill", "-" + name, String.valueOf(process.pid())).start().waitFor();
    }

    /** What the test base keeps for each bookie: its server here listens nowhere. */
    private class Ours extends ServerTester {
        private final ServerConfiguration conf;
        private final Process process;

        Ours(ServerConfiguration conf, Process process) throws Exception {
            super(quiet(conf), nothing());
            this.conf = conf;
            this.process = process;
            // Else clients of this JVM would talk to it in place of the process.
            Field registry = Class.forName("org.apache.bookkeeper.proto.LocalBookiesRegistry")
                    .getDeclaredField("localBookiesRegistry");
            registry.setAccessible(true);
            ((Map<?, ?>) registry.get(null)).clear();
        }

        private static ServerConfiguration quiet(ServerConfiguration conf) {
            ServerConfiguration quiet = new ServerConfiguration(conf);
            quiet.setDisableServerSocketBind(true);
            quiet.setEnableLocalTransport(true);
            return quiet;
        }

        private static Bookie nothing() {
            return (Bookie) Proxy.newProxyInstance(
                    Bookie.class.getClassLoader(), new Class<?>[] {Bookie.class}, (proxy, method, args) -> {
                        Class<?> kind = method.getReturnType();
                        return kind == boolean.class ? (Object) false
                                : kind == int.class ? (Object) 0
                                : kind == long.class ? (Object) 0L : null;
                    });
        }

        @Override
        public ServerConfiguration getConfiguration() {
            return conf;
        }

        @Override
        public void shutdown() throws Exception {
            process.destroy();
            if (!process.waitFor(20, TimeUnit.SECONDS)) {
                process.destroyForcibly().waitFor();
                throw new IOException("a bookie did not end on SIGTERM");
            }
            super.shutdown();
        }
    }
}
