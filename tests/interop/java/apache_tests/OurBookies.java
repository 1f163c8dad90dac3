package org.apache.bookkeeper.test;

import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.withSettings;

import java.io.File;
import java.io.IOException;
import java.lang.reflect.Field;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import net.bytebuddy.implementation.bind.annotation.Argument;
import net.bytebuddy.implementation.bind.annotation.This;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.client.BookKeeperTestClient;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.test.BookKeeperClusterTestCase.ServerTester;
import org.mockito.stubbing.Answer;

/** What Apache's test base gets in place of its own bookies, and what each test did with them. */
public final class OurBookies {
    private static final int START_LIMIT_S = 60;
    private static final AtomicInteger COUNT = new AtomicInteger();
    private static final Set<String> INSIDE = new ConcurrentSkipListSet<>();
    private static File directory;
    private static BookieForks forks;

    private OurBookies() {}

    static void start(File where, List<String> command) throws IOException {
        directory = where;
        forks = new BookieForks(command);
    }

    /** A new test begins. */
    static void reset() {
        COUNT.set(0);
        INSIDE.clear();
    }

    static int started() {
        return COUNT.get();
    }

    /** What the test called of a Java bookie's objects that a process does not have. */
    static Set<String> inside() {
        return INSIDE;
    }

    static void noteInside(String call) {
        INSIDE.add(call);
    }

    /** The method {@code startBookie} of the test base. */
    public static ServerTester startBookie(
            @This BookKeeperClusterTestCase test, @Argument(0) ServerConfiguration conf) throws Exception {
        if (test.bkc == null) {
            test.bkc = new BookKeeperTestClient(test.baseClientConf, new TestStatsProvider());
        }
        BookKeeperTestClient client = test.bkc;
        BookieId id = BookieImpl.getBookieId(conf);
        Future<?> registered =
                conf.isForceReadOnlyBookie() ? client.waitForReadOnlyBookie(id) : client.waitForWritableBookie(id);
        OurBookie bookie = new OurBookie(conf, client, directory, forks);
        COUNT.incrementAndGet();
        try {
            awaitStarted(bookie, registered);
        } catch (Exception e) {
            bookie.shutdown();
            throw e;
        }
        ServerTester tester = tester(conf, bookie);
        if (test.isAutoRecoveryEnabled()) {
            tester.startAutoRecovery();
        }
        return tester;
    }

    private static void awaitStarted(OurBookie bookie, Future<?> registered) throws Exception {
        long endNs = System.nanoTime() + TimeUnit.SECONDS.toNanos(START_LIMIT_S);
        while (true) {
            try {
                registered.get(50, TimeUnit.MILLISECONDS);
                return;
            } catch (TimeoutException e) {
                bookie.mustRun();
                if (System.nanoTime() > endNs) {
                    throw e;
                }
            }
        }
    }

    private static ServerTester tester(ServerConfiguration conf, OurBookie bookie) throws Exception {
        TestStatsProvider statistics = new TestStatsProvider();
        Answer<?> answer = call -> {
            if (call.getMethod().getName().equals("getStatsProvider")) {
                noteInside("statistics");
            }
            return call.callRealMethod();
        };
        // A mock, since the constructor would make a Java bookie.
        ServerTester tester = mock(ServerTester.class, withSettings().defaultAnswer(answer).stubOnly());
        set(tester, "conf", conf);
        set(tester, "provider", statistics);
        set(tester, "server", bookie.server());
        set(tester, "address", BookieImpl.getBookieAddress(conf));
        return tester;
    }

    private static void set(ServerTester tester, String name, Object value) throws Exception {
        Field field = ServerTester.class.getDeclaredField(name);
        field.setAccessible(true);
        field.set(tester, value);
    }
}
