package org.apache.bookkeeper.test;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.lang.invoke.MethodHandles;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import net.bytebuddy.ByteBuddy;
import net.bytebuddy.dynamic.ClassFileLocator;
import net.bytebuddy.implementation.MethodDelegation;
import net.bytebuddy.matcher.ElementMatchers;
import net.bytebuddy.pool.TypePool;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs a test class of Apache, unchanged, with our bookies, as processes, in place of those that its test base starts.
 * Bookies that a test makes itself, with a fault, stay Java's.
 *
 * <p>Arguments: a directory for configurations, logs and {@code events.jsonl}; the class; the names of tests,
 * separated by commas, of which an empty text means all; the names of tests to leave out; and the command that forks
 * bookies. Each line of the file is an object: a test has begun, or its outcome.
 */
public final class RunTests extends RunListener {
    private static final String BASE = "org.apache.bookkeeper.test.BookKeeperClusterTestCase";
    private static final String OURS = "org.apache.bookkeeper.test.OurBookies";

    private final ObjectMapper json = new ObjectMapper();
    private final PrintStream events;
    private long beganNs;
    private Failure failure;
    private String outcome;

    private RunTests(File directory) throws IOException {
        events = new PrintStream(new File(directory, "events.jsonl"), "UTF-8");
    }

    public static void main(String[] args) throws Exception {
        replaceBookies();
        File directory = new File(args[0]);
        OurBookies.start(directory, Arrays.asList(args).subList(4, args.length));
        JUnitCore junit = new JUnitCore();
        junit.addListener(new RunTests(directory));
        junit.run(Request.aClass(Class.forName(args[1])).filterWith(new Chosen(args[2], args[3])));
        System.exit(0); // threads that a test has left behind
    }

    /** Must run before the test base is loaded. */
    private static void replaceBookies() throws Exception {
        ClassFileLocator files = ClassFileLocator.ForClassLoader.ofSystemLoader();
        TypePool types = TypePool.Default.of(files); // reads classes without loading them
        byte[] changed = new ByteBuddy()
                .redefine(types.describe(BASE).resolve(), files)
                .method(ElementMatchers.named("startBookie").and(ElementMatchers.takesArguments(1)))
                .intercept(MethodDelegation.to(types.describe(OURS).resolve()))
                .make()
                .getBytes();
        MethodHandles.lookup().defineClass(changed);
    }

    @Override
    public void testStarted(Description test) {
        OurBookies.reset();
        beganNs = System.nanoTime();
        failure = null;
        outcome = "passed";
        write(test, "began");
    }

    @Override
    public void testFailure(Failure failed) {
        // The first failure is the test's; a second one comes from ending it.
        failure = failure == null ? failed : failure;
        outcome = "failed";
        if (!failed.getDescription().isTest()) { // of the whole class
            write(failed.getDescription(), outcome);
        }
    }

    @Override
    public void testAssumptionFailure(Failure failed) {
        failure = failed;
        outcome = "skipped";
    }

    @Override
    public void testIgnored(Description test) {
        failure = null;
        write(test, "skipped");
    }

    @Override
    public void testFinished(Description test) {
        write(test, outcome);
    }

    private void write(Description test, String event) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("test", test.isTest() ? test.getMethodName() : "");
        line.put("event", event);
        line.put("seconds", Math.round((System.nanoTime() - beganNs) / 1e8) / 10.0);
        line.put("bookies", OurBookies.started());
        line.put("inside", new ArrayList<>(OurBookies.inside()));
        line.put("failure", failure == null || "began".equals(event) ? "" : failure.getTrace());
        try {
            events.println(json.writeValueAsString(line));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** The tests to run. */
    private static final class Chosen extends Filter {
        private final List<String> only;
        private final List<String> without;

        Chosen(String only, String without) {
            this.only = names(only);
            this.without = names(without);
        }

        private static List<String> names(String text) {
            return text.isEmpty() ? List.of() : Arrays.asList(text.split(","));
        }

        @Override
        public boolean shouldRun(Description test) {
            if (!test.isTest()) {
                return test.getChildren().stream().anyMatch(this::shouldRun);
            }
            return (only.isEmpty() || has(only, test)) && !has(without, test);
        }

        /** A name without parameters stands for all of them. */
        private static boolean has(List<String> names, Description test) {
            String name = test.getMethodName();
            return names.contains(name) || names.contains(name.replaceFirst("\\[.*", ""));
        }

        @Override
        public String describe() {
            return only + " without " + without;
        }
    }
}
