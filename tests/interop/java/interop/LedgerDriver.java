package interop;

import static interop.Conversation.bytes;
import static interop.Conversation.hex;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;

/** Apache's ledger client as a driver: {@link Conversation} has the form, {@link #main} the requests. */
public final class LedgerDriver {
    private static final Conversation conversation = new Conversation();

    private LedgerDriver() {
    }

    public static void main(String[] arguments) throws Exception {
        conversation.on("init_cluster", LedgerDriver::initCluster);
        conversation.on("client", LedgerDriver::client);
        conversation.on("close_client", LedgerDriver::closeClient);
        conversation.on("create", LedgerDriver::create);
        conversation.on("open", LedgerDriver::open);
        conversation.on("delete", LedgerDriver::delete);
        conversation.on("metadata", LedgerDriver::metadata);
        conversation.on("add", request -> handle(request).addEntry(payload(request)));
        conversation.on("add_at", LedgerDriver::addAt);
        conversation.on("add_many", LedgerDriver::addMany);
        conversation.on("flood", LedgerDriver::flood);
        conversation.on("force", request -> {
            handle(request).force().get();
            return handle(request).getLastAddConfirmed();
        });
        conversation.on("state", request -> state(handle(request)));
        conversation.on("read", LedgerDriver::read);
        conversation.on("batch_read", LedgerDriver::batchRead);
        conversation.on("read_lac", request -> handle(request).readLastConfirmed());
        conversation.on("try_lac", request -> handle(request).tryReadLastConfirmed());
        conversation.on("explicit_lac", request -> handle(request).readExplicitLastConfirmed());
        conversation.on("poll", LedgerDriver::poll);
        conversation.on("close", request -> {
            handle(request).close();
            return state(handle(request));
        });
        conversation.on("bookies", LedgerDriver::bookies);
        conversation.on("bookie_info", LedgerDriver::bookieInfo);
        conversation.on("list_entries", LedgerDriver::listEntries);
        conversation.run();
    }

    private static LedgerHandle handle(JsonNode request) {
        return conversation.kept(request, "handle", LedgerHandle.class);
    }

    private static BookKeeper keeper(JsonNode request) {
        return conversation.kept(request, "client", BookKeeper.class);
    }

    private static byte[] payload(JsonNode request) {
        return bytes(request.get("payload"));
    }

    private static Object initCluster(JsonNode request) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setMetadataServiceUri(request.get("uri").asText());
        return BookKeeperAdmin.initNewCluster(configuration);
    }

    private static Object client(JsonNode request) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(request.get("uri").asText());
        configuration.setProperty("numIOThreads", 1);
        configuration.setProperty("numWorkerThreads", 2);
        if (request.has("settings")) {
            request.get("settings").fields().forEachRemaining(
                setting -> configuration.setProperty(setting.getKey(), setting.getValue().asText()));
        }
        conversation.keep(request.get("name").asText(), new BookKeeper(configuration));
        return true;
    }

    private static Object closeClient(JsonNode request) throws Exception {
        keeper(request).close();
        return true;
    }

    /** Arguments: digest, password, sizes [E, Qw, Qa]; optional: custom, ledger_id, adv, deferred_sync. */
    private static Object create(JsonNode request) throws Exception {
        JsonNode sizes = request.get("sizes");
        Map<String, byte[]> custom = new HashMap<>();
        if (request.has("custom")) {
            request.get("custom").fields().forEachRemaining(
                entry -> custom.put(entry.getKey(), bytes(entry.getValue())));
        }
        CreateBuilder builder = keeper(request).newCreateLedgerOp()
            .withEnsembleSize(sizes.get(0).asInt())
            .withWriteQuorumSize(sizes.get(1).asInt())
            .withAckQuorumSize(sizes.get(2).asInt())
            .withDigestType(DigestType.valueOf(request.get("digest").asText()))
            .withPassword(bytes(request.get("password")))
            .withCustomMetadata(custom);
        if (request.path("deferred_sync").asBoolean()) {
            builder = builder.withWriteFlags(WriteFlag.DEFERRED_SYNC);
        }
        Object handle;
        if (request.path("adv").asBoolean()) {
            handle = request.has("ledger_id")
                ? builder.makeAdv().withLedgerId(request.get("ledger_id").asLong()).execute().get()
                : builder.makeAdv().execute().get();
        } else {
            handle = builder.execute().get();
        }
        conversation.keep(request.get("handle").asText(), handle);
        return state((LedgerHandle) handle);
    }

    private static Object open(JsonNode request) throws Exception {
        Object handle = keeper(request).newOpenLedgerOp()
            .withLedgerId(request.get("ledger_id").asLong())
            .withDigestType(DigestType.valueOf(request.get("digest").asText()))
            .withPassword(bytes(request.get("password")))
            .withRecovery(request.get("recover").asBoolean())
            .execute().get();
        conversation.keep(request.get("handle").asText(), handle);
        return state((LedgerHandle) handle);
    }

    private static Object delete(JsonNode request) throws Exception {
        keeper(request).newDeleteLedgerOp().withLedgerId(request.get("ledger_id").asLong()).execute().get();
        return true;
    }

    private static Object metadata(JsonNode request) throws Exception {
        return describe(keeper(request).getLedgerManager()
            .readLedgerMetadata(request.get("ledger_id").asLong()).get().getValue());
    }

    private static Object addAt(JsonNode request) throws Exception {
        return conversation.kept(request, "handle", WriteAdvHandle.class)
            .writeAsync(request.get("entry_id").asLong(), io.netty.buffer.Unpooled.wrappedBuffer(payload(request)))
            .get();
    }

    private static Object addMany(JsonNode request) throws Exception {
        LedgerHandle handle = handle(request);
        List<CompletableFuture<Long>> adds = new ArrayList<>();
        for (JsonNode payload : request.get("payloads")) {
            adds.add(handle.appendAsync(bytes(payload)));
        }
        List<Long> ids = new ArrayList<>();
        for (CompletableFuture<Long> add : adds) {
            ids.add(add.get());
        }
        return ids;
    }

    /**
     * Adds "prefix" + index until "count" entries are added or one add fails, "in_flight" at a time. Sends an
     * event for each acknowledged entry. The reply comes at the end: the number of entries, or the first error.
     */
    private static Object flood(JsonNode request) throws Exception {
        LedgerHandle handle = handle(request);
        String name = request.get("handle").asText();
        String prefix = request.get("prefix").asText();
        int count = request.get("count").asInt();
        Semaphore permits = new Semaphore(request.get("in_flight").asInt());
        CompletableFuture<Void> failed = new CompletableFuture<>();
        List<CompletableFuture<Long>> adds = new ArrayList<>();
        for (int index = 0; index < count && !failed.isCompletedExceptionally(); index++) {
            permits.acquire();
            adds.add(handle.appendAsync((prefix + index).getBytes()).whenComplete((entryId, error) -> {
                permits.release();
                if (error != null) {
                    failed.completeExceptionally(error);
                } else {
                    conversation.send(Map.of("event", "acked", "handle", name, "entry_id", entryId));
                }
            }));
        }
        for (CompletableFuture<Long> add : adds) {
            add.get();
        }
        return adds.size();
    }

    private static Object read(JsonNode request) throws Exception {
        long first = request.get("first").asLong();
        long last = request.get("last").asLong();
        LedgerHandle handle = handle(request);
        CompletableFuture<LedgerEntries> reading = request.path("unconfirmed").asBoolean()
            ? handle.readUnconfirmedAsync(first, last) : handle.readAsync(first, last);
        return described(reading.get());
    }

    private static Object batchRead(JsonNode request) throws Exception {
        return described(handle(request).batchReadAsync(request.get("first").asLong(),
            request.get("count_max").asInt(), request.get("size_max").asLong()).get(20, TimeUnit.SECONDS));
    }

    private static Object poll(JsonNode request) throws Exception {
        Map<String, Object> answer = new LinkedHashMap<>();
        try (LastConfirmedAndEntry found = handle(request).readLastAddConfirmedAndEntryAsync(
            request.get("entry_id").asLong(), request.get("timeout_ms").asLong(),
            request.path("parallel").asBoolean()).get()) {
            answer.put("lac", found.getLastAddConfirmed());
            answer.put("entry", found.hasEntry() ? described(found.getEntry()) : null);
        }
        return answer;
    }

    private static Object bookies(JsonNode request) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(keeper(request))) {
            List<String> writable = new ArrayList<>();
            List<String> readOnly = new ArrayList<>();
            admin.getAvailableBookies().forEach(id -> writable.add(id.toString()));
            admin.getReadOnlyBookies().forEach(id -> readOnly.add(id.toString()));
            return Map.of("writable", writable, "read_only", readOnly);
        }
    }

    private static Object bookieInfo(JsonNode request) throws Exception {
        Map<String, Object> infos = new LinkedHashMap<>();
        keeper(request).getBookieInfo().forEach((id, info) -> infos.put(id.toString(),
            Map.of("free", info.getFreeDiskSpace(), "total", info.getTotalDiskSpace())));
        return infos;
    }

    private static Object listEntries(JsonNode request) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(keeper(request))) {
            AvailabilityOfEntriesOfLedger found = admin.asyncGetListOfEntriesOfLedger(
                BookieId.parse(request.get("bookie").asText()), request.get("ledger_id").asLong()).get();
            List<Long> ids = new ArrayList<>();
            long last = request.get("last").asLong();
            for (long entryId = 0; entryId <= last; entryId++) {
                if (found.isEntryAvailable(entryId)) {
                    ids.add(entryId);
                }
            }
            return Map.of("count", found.getTotalNumOfAvailableEntries(), "ids", ids);
        }
    }

    private static Object described(LedgerEntries entries) {
        List<Object> described = new ArrayList<>();
        try (entries) {
            for (LedgerEntry entry : entries) {
                described.add(described(entry));
            }
        }
        return described;
    }

    private static Object described(LedgerEntry entry) {
        return Map.of("id", entry.getEntryId(), "length", entry.getLength(), "payload", hex(entry.getEntryBytes()));
    }

    private static Map<String, Object> state(LedgerHandle handle) {
        Map<String, Object> state = new LinkedHashMap<>();
        state.put("ledger_id", handle.getId());
        state.put("lac", handle.getLastAddConfirmed());
        state.put("last_pushed", handle.getLastAddPushed());
        state.put("length", handle.getLength());
        state.put("is_closed", handle.isClosed());
        state.put("metadata", describe(handle.getLedgerMetadata()));
        return state;
    }

    private static Map<String, Object> describe(LedgerMetadata metadata) {
        Map<String, Object> described = new LinkedHashMap<>();
        described.put("state", metadata.getState().name());
        described.put("sizes", List.of(metadata.getEnsembleSize(), metadata.getWriteQuorumSize(),
            metadata.getAckQuorumSize()));
        // Metadata format 1 does not store the digest type.
        described.put("digest", metadata.getDigestType() == null ? null : metadata.getDigestType().name());
        described.put("closed", metadata.isClosed());
        described.put("last_entry_id", metadata.isClosed() ? metadata.getLastEntryId() : null);
        described.put("length", metadata.isClosed() ? metadata.getLength() : null);
        List<Object> ensembles = new ArrayList<>();
        metadata.getAllEnsembles().forEach((first, bookies) -> {
            List<String> ids = new ArrayList<>();
            bookies.forEach(bookie -> ids.add(bookie.toString()));
            ensembles.add(Map.of("first", first, "bookies", ids));
        });
        described.put("ensembles", ensembles);
        Map<String, String> custom = new LinkedHashMap<>();
        metadata.getCustomMetadata().forEach((key, value) -> custom.put(key, hex(value)));
        described.put("custom", custom);
        return described;
    }
}
