// Produces numbered messages to a Pulsar topic, or checks that each one is there, once and in order.
//   java -cp 'lib/*' Messages.java produce pulsar://127.0.0.1:6650 50000
//   java -cp 'lib/*' Messages.java check   pulsar://127.0.0.1:6650 50000

import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;

class Messages {
    static final String TOPIC = "persistent://public/default/orders";

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[2]);
        try (var client = PulsarClient.builder().serviceUrl(arguments[1]).build()) {
            if (arguments[0].equals("produce")) {
                produce(client, count);
            } else {
                check(client, count);
            }
        }
    }

    static void produce(PulsarClient client, int count) throws Exception {
        // No send fails because a broker is away, and the name lets the broker drop what it has already.
        var building = client.newProducer(Schema.INT32).topic(TOPIC).producerName("example").initialSequenceId(-1);
        try (var producer = building.sendTimeout(0, TimeUnit.SECONDS).create()) {
            var window = new Semaphore(1000);
            var acknowledged = new AtomicInteger();
            for (int number = 0; number < count; number++) {
                window.acquire();
                if (number % 5 == 0) {
                    Thread.sleep(1); // at most 5,000 a second, so that the processes are killed in between
                }
                producer.sendAsync(number).whenComplete((id, error) -> {
                    if (error != null) {
                        error.printStackTrace();
                        System.exit(1);
                    }
                    int total = acknowledged.incrementAndGet();
                    if (total % 1000 == 0) {
                        System.out.println("acknowledged " + total);
                    }
                    window.release();
                });
            }
            window.acquire(1000);
        }
    }

    static void check(PulsarClient client, int count) throws Exception {
        var building = client.newReader(Schema.INT32).topic(TOPIC).startMessageId(MessageId.earliest);
        try (var reader = building.create()) {
            for (int number = 0; number < count; number++) {
                var message = reader.readNext(60, TimeUnit.SECONDS);
                if (message == null || message.getValue() != number) {
                    var found = message == null ? "nothing" : message.getValue();
                    System.err.println("expected " + number + ", found " + found);
                    System.exit(1);
                }
            }
            System.out.println(count + " messages, each once and in order");
        }
    }
}
