package org.apache.bookkeeper.test;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.Writer;
import java.util.List;

/** The process that forks bookies; see {@code bookie_forks.py}. It ends with this JVM, and its bookies with it. */
final class BookieForks {
    private final Writer requests;
    private final BufferedReader replies;

    BookieForks(List<String> command) throws IOException {
        Process process = new ProcessBuilder(command)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        requests = process.outputWriter();
        replies = process.inputReader();
    }

    /** Start a bookie. */
    synchronized ProcessHandle fork(File configuration, File log) throws IOException {
        requests.write(configuration + "\t" + log + "\n");
        requests.flush();
        String pid = replies.readLine();
        if (pid == null) {
            throw new IOException("the process that forks bookies has ended");
        }
        return ProcessHandle.of(Long.parseLong(pid)).orElseThrow(() -> new IOException("the bookie ended; " + log));
    }
}
