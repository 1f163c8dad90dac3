#!/bin/sh
# Runs a Pulsar broker on ZooKeeper and three bookies of DLog, all on this machine. Kills a bookie and the broker
# under a producer, lets auto-recovery restore the replicas, kills a second bookie, and reads every message back.
#   ./run.sh DIRECTORY [MESSAGES]
# Needs `dlog` with the extra spark, a JDK 17, Maven and curl. The first run downloads 230 MB into DIRECTORY/lib.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
directory=$(mkdir -p "$1" && cd "$1" && pwd)
count=${2:-50000}
broker= producer=
if [ "$count" -lt 20000 ] || [ $((count % 5000)) -ne 0 ]; then
    echo "MESSAGES is $count; give a multiple of 5000, at least 20000: the processes are killed in between" >&2
    exit 2
fi

say() { echo "$(date +%T) $*"; }

member() { # the pid of a process of the cluster
    dlog cluster status --directory "$directory/cluster" --json | python3 -c \
        'import json, sys; print([m["pid"] for m in json.load(sys.stdin)["members"] if m["name"] == sys.argv[1]][0])' "$1"
}

start_broker() {
    opens=
    for package in java.base/java.nio java.base/jdk.internal.misc java.base/sun.net java.base/jdk.internal.loader \
        java.base/jdk.internal.platform java.management/sun.management \
        jdk.management/com.sun.management.internal; do
        opens="$opens --add-opens $package=ALL-UNNAMED"
    done
    # shellcheck disable=SC2086 # each option is a word
    java -Xmx512m -XX:MaxDirectMemorySize=512m -Dio.netty.tryReflectionSetAccessible=true $opens \
        -cp "$directory/lib/*" org.apache.pulsar.PulsarBrokerStarter --broker-conf "$directory/broker.conf" \
        >>"$directory/broker.log" 2>&1 &
    broker=$!
    for _ in $(seq 120); do
        if curl -sf http://127.0.0.1:18080/admin/v2/brokers/health >/dev/null; then return; fi
        sleep 1
    done
    say "the broker does not serve; see $directory/broker.log"
    exit 1
}

wait_for() { # a line of the producer
    until grep -q "$1" "$directory/producer.log"; do
        kill -0 "$producer" 2>/dev/null || {
            say "the producer ended before the line: $1; see $directory/producer.log"
            cat "$directory/producer.log"
            exit 1
        }
        sleep 0.2
    done
    say "${1%?}"
}

client() { # ACTION LOG
    java -cp "$directory/lib/*" "$here/Messages.java" "$1" pulsar://127.0.0.1:16650 "$count" >"$2" 2>&1
}

check() {
    client check "$directory/reader.log" || { tail "$directory/reader.log"; exit 1; }
    say "$(grep "once and in order" "$directory/reader.log")"
}

end() {
    for pid in $broker $producer; do kill -9 "$pid" 2>/dev/null || true; done
    dlog cluster stop --directory "$directory/cluster"
}
trap end EXIT

[ -d "$directory/lib" ] || mvn -q -f "$here/pom.xml" dependency:copy-dependencies \
    -DoutputDirectory="$directory/lib" -DincludeScope=runtime
uri=$(dlog cluster start --directory "$directory/cluster" --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["uri"])')
zookeeper=$(echo "$uri" | cut -d / -f 3)
export DLOG_SERVICE="zk://$zookeeper/ledgers"
say "ZooKeeper at $zookeeper, and three bookies"

java -cp "$directory/lib/*" org.apache.pulsar.PulsarClusterMetadataSetup --cluster demo \
    --metadata-store "zk:$zookeeper" --configuration-metadata-store "zk:$zookeeper" \
    --existing-bk-metadata-service-uri "zk+null://$zookeeper/ledgers" \
    --web-service-url http://127.0.0.1:18080 --broker-service-url pulsar://127.0.0.1:16650 \
    >"$directory/setup.log" 2>&1
cat "$here/broker.conf" - >"$directory/broker.conf" <<END
metadataStoreUrl=zk:$zookeeper
configurationMetadataStoreUrl=zk:$zookeeper
bookkeeperMetadataServiceUri=zk+null://$zookeeper/ledgers
END
start_broker
say "the broker serves"

first=$(member bookie-1)
client produce "$directory/producer.log" &
producer=$!
wait_for "acknowledged $((count / 5))\$"
kill -9 "$first"
say "killed bookie-1"
wait_for "acknowledged $((count * 3 / 5))\$"
kill -9 "$broker"
if grep -q "acknowledged $count\$" "$directory/producer.log"; then
    say "the producer was too quick: give more messages"
    exit 1
fi
say "killed the broker"
start_broker
say "a new broker serves"
wait "$producer"
producer=
grep "acknowledged $count\$" "$directory/producer.log"
check

# The first round finds the lost bookie. The second one shows that nothing was left.
for _ in 1 2; do
    dlog autorecovery audit 2>/dev/null
    sleep 5
    until [ "$(dlog ledger underreplicated --json)" = "[]" ]; do sleep 1; done
done
say "the replicas of bookie-1 are restored"
dlog cluster start --directory "$directory/cluster" >/dev/null 2>&1
kill -9 "$(member bookie-2)"
say "started bookie-1 again, and killed bookie-2"
check
