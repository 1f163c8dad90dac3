package interop;

import java.net.URI;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.util.LocalBookKeeper;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.LogReader;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.metadata.DLMetadata;

/**
 * Uses what the tests use, in one process, and ends: so that the JVM writes the classes of all of it into an archive.
 *
 * <p>The argument is a free port for ZooKeeper.
 */
public final class Training {
    private static final byte[] PAYLOAD = "training".getBytes();

    private Training() {
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        ServerConfiguration server = new ServerConfiguration().setAllowLoopback(true);
        server.setListeningInterface("lo");
        LocalBookKeeper.getLocalBookies("127.0.0.1", port, 1, true, server).start();
        ledger(port);
        stream(port);
        new BookieShell().setConf(server);
        System.exit(0);
    }

    private static void ledger(int port) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri("zk+hierarchical://127.0.0.1:" + port + "/ledgers");
        try (BookKeeper client = new BookKeeper(configuration)) {
            WriteHandle writer = client.newCreateLedgerOp()
                .withEnsembleSize(1).withWriteQuorumSize(1).withAckQuorumSize(1)
                .withDigestType(DigestType.CRC32C).withPassword(PAYLOAD).execute().get(30, TimeUnit.SECONDS);
            writer.append(PAYLOAD);
            ReadHandle reader = client.newOpenLedgerOp().withRecovery(true)
                .withLedgerId(writer.getId()).withDigestType(DigestType.CRC32C).withPassword(PAYLOAD)
                .execute().get(30, TimeUnit.SECONDS);
            try (LedgerEntries entries = reader.read(0, 0)) {
                entries.getEntry(0).getEntryBytes();
            }
            reader.close();
            ((LedgerHandle) writer).close();
        }
    }

    private static void stream(int port) throws Exception {
        URI uri = URI.create("distributedlog://127.0.0.1:" + port + "/messaging/distributedlog/training");
        DLMetadata.create(new BKDLConfig("127.0.0.1:" + port, "/ledgers")).create(uri);
        DistributedLogConfiguration configuration = new DistributedLogConfiguration()
            .setOutputBufferSize(0).setImmediateFlushEnabled(true).setEnsembleSize(1).setWriteQuorumSize(1).setAckQuorumSize(1);
        Namespace namespace = NamespaceBuilder.newBuilder().conf(configuration).uri(uri).clientId("t").build();
        namespace.createLog("log");
        DistributedLogManager log = namespace.openLog("log");
        AsyncLogWriter writer = log.openAsyncLogWriter().get(30, TimeUnit.SECONDS);
        writer.write(new LogRecord(1, PAYLOAD)).get(30, TimeUnit.SECONDS);
        writer.asyncClose().get(30, TimeUnit.SECONDS);
        LogReader reader = log.openLogReader(1);
        reader.readNext(false);
        reader.asyncClose().get(30, TimeUnit.SECONDS);
        log.close();
        namespace.close();
    }
}
