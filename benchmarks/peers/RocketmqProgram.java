import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A program that uses RocketMQ's own Java client. It reads commands from its standard input, one a line, and
 * answers each with `done`. The commands are `send N`, `async N`, `batch N`, `fill N` and `consume N`: so many
 * messages of 100 bytes.
 *
 * <p>Arguments: the NameServer's address, the topic to send to, the topic to read.
 */
public class RocketmqProgram {
    private static final int BODIES = 10_000;
    private static final int BODY_BYTES = 100;
    private static final int BATCH = 1_000;
    private static final int UNANSWERED_MAX = 5_000;
    private static final byte[][] bodies = new byte[BODIES][BODY_BYTES];
    private static int groups;

    public static void main(String[] arguments) throws Exception {
        Random random = new Random(20_240_229);
        for (byte[] body : bodies) {
            random.nextBytes(body);
        }
        DefaultMQProducer producer = new DefaultMQProducer("peers");
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(60_000);
        producer.start();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            int messages = Integer.parseInt(words[1]);
            switch (words[0]) {
                case "send" -> send(producer, arguments[1], messages);
                case "async" -> sendAsync(producer, arguments[1], messages);
                case "batch" -> sendBatches(producer, arguments[1], messages);
                case "fill" -> sendBatches(producer, arguments[2], messages);
                case "consume" -> consume(arguments[0], arguments[2], messages);
                default -> throw new IllegalArgumentException(line);
            }
            System.out.println("done");
        }
        producer.shutdown();
        System.exit(0);
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }

    private static void send(DefaultMQProducer producer, String topic, int messages) throws Exception {
        for (int sent = 0; sent < messages; sent++) {
            check(producer.send(new Message(topic, bodies[sent % BODIES])));
        }
    }

    private static void sendAsync(DefaultMQProducer producer, String topic, int messages) throws Exception {
        Semaphore unanswered = new Semaphore(UNANSWERED_MAX);
        AtomicInteger failed = new AtomicInteger();
        for (int sent = 0; sent < messages; sent++) {
            unanswered.acquire();
            producer.send(new Message(topic, bodies[sent % BODIES]), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    unanswered.release();
                }

                @Override
                public void onException(Throwable error) {
                    failed.incrementAndGet();
                    unanswered.release();
                }
            });
        }
        unanswered.acquire(UNANSWERED_MAX);
        if (failed.get() > 0) {
            throw new IllegalStateException(failed + " messages were not sent");
        }
    }

    private static void sendBatches(DefaultMQProducer producer, String topic, int messages) throws Exception {
        for (int sent = 0; sent < messages; ) {
            List<Message> batch = new ArrayList<>(BATCH);
            for (; batch.size() < BATCH && sent < messages; sent++) {
                batch.add(new Message(topic, bodies[sent % BODIES]));
            }
            check(producer.send(batch));
        }
    }

    private static void consume(String nameserver, String topic, int messages) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("group-" + groups++);
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(1_000);
        consumer.subscribe(topic, "*");
        consumer.start();
        long bytes = 0;
        for (int read = 0; read < messages; ) {
            for (MessageExt message : consumer.poll(1_000)) {
                bytes += message.getBody().length;
                read++;
            }
        }
        consumer.shutdown();
        if (bytes < (long) messages * BODY_BYTES) {
            throw new IllegalStateException(bytes + " bytes in " + messages + " messages");
        }
    }
}
