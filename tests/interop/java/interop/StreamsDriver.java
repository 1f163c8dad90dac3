package interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.lang.reflect.Field;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordSet;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.LogSegmentMetadata;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.LogReader;
import org.apache.distributedlog.api.LogWriter;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.exceptions.DLException;
import org.apache.distributedlog.io.CompressionCodec;

/**
 * Apache DistributedLog as a driver: namespaces, logs, writers and readers under names.
 *
 * <p>The driver only calls the library: no retries, no checks of its own, one wait ("awaitRoll"). DLSNs are lists of three numbers.
 */
public final class StreamsDriver {
    private static final long ROLL_TIMEOUT_S = 60;

    private final Conversation talk = new Conversation();

    public static void main(String[] args) throws Exception {
        new StreamsDriver().talk.run();
    }

    private StreamsDriver() {
        talk.on("namespace", this::openNamespace);
        talk.on("namespace-close", request -> {
            kept(request, Namespace.class).close();
            return null;
        });
        talk.on("log", request -> {
            Namespace namespace = talk.kept(request, "namespace", Namespace.class);
            namespace.createLog(request.get("log").asText());
            talk.keep(request.get("name").asText(), namespace.openLog(request.get("log").asText()));
            return null;
        });
        onWriters();
        onReaders();
        onLogs();
        talk.send(Map.of("event", "ready"));
    }

    private <T> T kept(JsonNode request, Class<T> type) {
        return talk.kept(request, "on", type);
    }

    private Object openNamespace(JsonNode request) throws Exception {
        DistributedLogConfiguration configuration = new DistributedLogConfiguration();
        request.get("settings").fields().forEachRemaining(
            setting -> configuration.setProperty(setting.getKey(), setting.getValue().asText()));
        Namespace namespace = NamespaceBuilder.newBuilder()
            .conf(configuration)
            .uri(URI.create(request.get("uri").asText()))
            .clientId(request.get("client_id").asText())
            .build();
        talk.keep(request.get("name").asText(), namespace);
        return null;
    }

    // Writing.

    private void onWriters() {
        talk.on("writer", request -> {
            AsyncLogWriter writer = kept(request, DistributedLogManager.class).openAsyncLogWriter().get();
            talk.keep(request.get("name").asText(), writer);
            return writer.getLastTxId();
        });
        talk.on("write", request -> {
            AsyncLogWriter writer = kept(request, AsyncLogWriter.class);
            List<CompletableFuture<DLSN>> written = new ArrayList<>();
            for (JsonNode each : request.get("records")) {
                written.add(writer.write(record(each)));
            }
            return outcomes(written);
        });
        talk.on("write-bulk", request -> {
            List<LogRecord> records = new ArrayList<>();
            for (JsonNode each : request.get("records")) {
                records.add(record(each));
            }
            return outcomes(kept(request, AsyncLogWriter.class).writeBulk(records).get());
        });
        talk.on("flood", request -> new Flood(
            kept(request, AsyncLogWriter.class),
            request.get("prefix").asText(),
            request.get("first_txid").asLong(),
            request.get("in_flight").asInt()).write());
        talk.on("seal", request -> kept(request, AsyncLogWriter.class).markEndOfStream().get());
        talk.on("truncate", request ->
            kept(request, AsyncLogWriter.class).truncate(dlsn(request.get("dlsn"))).get());
        talk.on("writer-close", request -> {
            AsyncLogWriter writer = kept(request, AsyncLogWriter.class);
            awaitRoll(writer);
            return writer.asyncClose().get();
        });
        talk.on("writer-abort", request -> kept(request, AsyncLogWriter.class).asyncAbort().get());
        talk.on("sync-write", request -> {
            LogWriter writer = kept(request, DistributedLogManager.class).openLogWriter();
            for (JsonNode step : request.get("steps")) {
                syncStep(writer, step);
            }
            writer.close();
            return null;
        });
    }

    /**
     * Waits until no roll to a next segment is under way: Apache's close does not, and where it meets one, it ends with
     * two errors of ZooKeeper in the log or never at all. No public call tells that a roll has ended.
     */
    private static void awaitRoll(AsyncLogWriter writer) throws Exception {
        Field rolling = writer.getClass().getDeclaredField("rollingFuture");
        rolling.setAccessible(true);
        CompletableFuture<?> roll;
        synchronized (writer) {
            roll = (CompletableFuture<?>) rolling.get(writer);
        }
        if (roll != null) {
            roll.handle((segment, failure) -> null).get(ROLL_TIMEOUT_S, TimeUnit.SECONDS);
        }
    }

    private static LogRecord record(JsonNode fields) throws Exception {
        long txid = fields.get("txid").asLong();
        if (fields.has("set")) {
            LogRecordSet.Writer set =
                LogRecordSet.newWriter(4096, CompressionCodec.Type.valueOf(fields.get("codec").asText()));
            for (JsonNode payload : fields.get("set")) {
                set.writeRecord(ByteBuffer.wrap(Conversation.bytes(payload)), new CompletableFuture<>());
            }
            LogRecord record = new LogRecord(txid, set.getBuffer());
            record.setRecordSet();
            return record;
        }
        LogRecord record = new LogRecord(txid, Conversation.bytes(fields.get("payload")));
        if (fields.get("control").asBoolean()) {
            record.setControl();
        }
        return record;
    }

    /** For each record its DLSN or its error. */
    private static List<Object> outcomes(List<CompletableFuture<DLSN>> written) throws InterruptedException {
        List<Object> outcomes = new ArrayList<>();
        for (CompletableFuture<DLSN> each : written) {
            try {
                outcomes.add(numbers(each.get()));
            } catch (ExecutionException failure) {
                outcomes.add(described(failure.getCause()));
            }
        }
        return outcomes;
    }

    /** Writes prefix + number from 1 on until a write fails; sends an event for each acknowledged record, in order. */
    private final class Flood {
        private final AsyncLogWriter writer;
        private final String prefix;
        private final long firstTxid;
        private final Semaphore permits;
        private final AtomicReference<Throwable> failure = new AtomicReference<>();

        Flood(AsyncLogWriter writer, String prefix, long firstTxid, int inFlight) {
            this.writer = writer;
            this.prefix = prefix;
            this.firstTxid = firstTxid;
            this.permits = new Semaphore(inFlight);
        }

        Map<String, Object> write() throws InterruptedException {
            int number = 0;
            while (failure.get() == null) {
                permits.acquire();
                int index = ++number;
                byte[] payload = (prefix + index).getBytes(StandardCharsets.UTF_8);
                writer.write(new LogRecord(firstTxid + index - 1, payload)).whenComplete((dlsn, thrown) -> {
                    if (thrown == null) {
                        talk.send(Map.of("event", "acked", "number", index, "dlsn", numbers(dlsn)));
                    } else {
                        failure.compareAndSet(null, thrown);
                    }
                    permits.release();
                });
            }
            return Map.of("submitted", number, "failure", described(failure.get()));
        }
    }

    private static void syncStep(LogWriter writer, JsonNode step) throws Exception {
        switch (step.asText()) {
            case "flush":
                writer.flush();
                break;
            case "commit":
                writer.commit();
                break;
            case "seal":
                writer.markEndOfStream();
                break;
            default:
                writer.write(record(step));
        }
    }

    // Reading.

    private void onReaders() {
        talk.on("reader", request -> {
            DistributedLogManager log = kept(request, DistributedLogManager.class);
            AsyncLogReader reader = request.has("txid")
                ? log.openAsyncLogReader(request.get("txid").asLong()).get()
                : log.openAsyncLogReader(dlsn(request.get("dlsn"))).get();
            talk.keep(request.get("name").asText(), new Reading(reader));
            return null;
        });
        talk.on("read", request -> kept(request, Reading.class).read(
            request.get("count").asInt(), request.get("timeout_ms").asLong()));
        talk.on("reader-close", request -> kept(request, Reading.class).reader.asyncClose().get());
        talk.on("read-synchronously", request -> {
            DistributedLogManager log = kept(request, DistributedLogManager.class);
            try (LogReader reader = request.has("txid")
                ? log.openLogReader(request.get("txid").asLong())
                : log.openLogReader(dlsn(request.get("dlsn")))) {
                return readSynchronously(reader, request.get("count").asInt());
            }
        });
    }

    /** A reader and its unfinished read, which the next request continues: giving a read up would end the reader. */
    private static final class Reading {
        private final AsyncLogReader reader;
        private CompletableFuture<LogRecordWithDLSN> pending;

        Reading(AsyncLogReader reader) {
            this.reader = reader;
        }

        synchronized Map<String, Object> read(int count, long timeoutMs) throws InterruptedException {
            List<Object> records = new ArrayList<>();
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("records", records);
            long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
            while (records.size() < count) {
                if (pending == null) {
                    pending = reader.readNext();
                }
                try {
                    records.add(shown(pending.get(deadline - System.nanoTime(), TimeUnit.NANOSECONDS)));
                } catch (TimeoutException tooEarly) {
                    break;
                } catch (ExecutionException failure) {
                    answer.put("ended", described(failure.getCause()));
                    break;
                }
                pending = null;
            }
            return answer;
        }
    }

    /** All records of the log: at least "count" of them, if they arrive in time. */
    private static Map<String, Object> readSynchronously(LogReader reader, int count) throws Exception {
        List<Object> records = new ArrayList<>();
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("records", records);
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        try {
            boolean isAll = false;
            while (!isAll) {
                LogRecordWithDLSN next = reader.readNext(false);
                if (next != null) {
                    records.add(shown(next));
                } else {
                    isAll = records.size() >= count || System.nanoTime() > deadline;
                }
            }
        } catch (DLException failure) {
            answer.put("ended", described(failure));
        }
        return answer;
    }

    private static Map<String, Object> shown(LogRecordWithDLSN record) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("dlsn", numbers(record.getDlsn()));
        shown.put("txid", record.getTransactionId());
        shown.put("sequence_id", record.getSequenceId());
        shown.put("payload", Conversation.hex(record.getPayload()));
        return shown;
    }

    // Inspection.

    private void onLogs() {
        talk.on("segments", request -> {
            List<Object> segments = new ArrayList<>();
            for (LogSegmentMetadata each : kept(request, DistributedLogManager.class).getLogSegments()) {
                segments.add(shown(each));
            }
            return segments;
        });
        talk.on("ends", request -> {
            DistributedLogManager log = kept(request, DistributedLogManager.class);
            Map<String, Object> ends = new LinkedHashMap<>();
            ends.put("first_dlsn", numbers(log.getFirstDLSNAsync().get()));
            ends.put("last_dlsn", numbers(log.getLastDLSN()));
            ends.put("first_txid", log.getFirstTxId());
            ends.put("last_txid", log.getLastTxId());
            ends.put("record_count", log.getLogRecordCount());
            ends.put("sealed", log.isEndOfStreamMarked());
            return ends;
        });
        talk.on("find-txid", request -> numbers(kept(request, DistributedLogManager.class)
            .getDLSNNotLessThanTxId(request.get("txid").asLong()).get()));
        talk.on("count", request -> kept(request, DistributedLogManager.class)
            .getLogRecordCountAsync(dlsn(request.get("dlsn"))).get());
        talk.on("recover", request -> {
            kept(request, DistributedLogManager.class).recover();
            return null;
        });
    }

    private static Map<String, Object> shown(LogSegmentMetadata segment) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("segment_seqno", segment.getLogSegmentSequenceNumber());
        shown.put("ledger_id", segment.getLogSegmentId());
        shown.put("version", segment.getVersion());
        shown.put("in_progress", segment.isInProgress());
        shown.put("first_txid", segment.getFirstTxId());
        shown.put("last_txid", segment.getLastTxId());
        shown.put("completed_ms", segment.getCompletionTime());
        shown.put("record_count", segment.getRecordCount());
        shown.put("start_sequence_id", segment.getStartSequenceId());
        shown.put("truncation", segment.getTruncationStatus().name());
        shown.put("last_dlsn", numbers(segment.getLastDLSN()));
        shown.put("min_active_dlsn", numbers(segment.getMinActiveDLSN()));
        return shown;
    }

    // Values.

    private static DLSN dlsn(JsonNode numbers) {
        return new DLSN(numbers.get(0).asLong(), numbers.get(1).asLong(), numbers.get(2).asLong());
    }

    private static List<Long> numbers(DLSN dlsn) {
        return List.of(dlsn.getLogSegmentSequenceNo(), dlsn.getEntryId(), dlsn.getSlotId());
    }

    private static Map<String, Object> described(Throwable failure) {
        while (failure instanceof CompletionException && failure.getCause() != null) {
            failure = failure.getCause();
        }
        Map<String, Object> described = new LinkedHashMap<>();
        described.put("class", failure.getClass().getName());
        described.put("message", String.valueOf(failure.getMessage()));
        described.put("code", failure instanceof DLException ? ((DLException) failure).getCode() : null);
        return described;
    }
}
