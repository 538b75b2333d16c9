import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Arrays;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.ArrayList;
import java.util.List;

/**
 * An HTTP server that answers with the body that it got, and its load: a client over selectors, and one over blocking sockets.
 *
 * usage: Http serve PORT | Http load PORT REQUESTS THREADS
 */
public class Http {
    public static void main(String[] words) throws Exception {
        int port = Integer.parseInt(words[1]);
        if (words[0].equals("serve")) {
            serve(port);
        } else {
            load(port, Integer.parseInt(words[2]), Integer.parseInt(words[3]));
        }
    }

    static void serve(int port) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 128);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, body.length == 0 ? -1 : body.length);
            if (body.length > 0) {
                exchange.getResponseBody().write(body);
            }
            exchange.close();
        });
        server.start();
    }

    static byte[] body(int number) {
        int[] sizes = {0, 1, 1000, 20000, number % 50 == 4 ? 1000000 : 10};
        byte[] body = new byte[sizes[number % sizes.length]];
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) (number * 31 + i * 7);
        }
        return body;
    }

    static void load(int port, int requests, int threads) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<?>> all = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            int first = thread;
            all.add(pool.submit(() -> {
                for (int number = first; number < requests; number += threads) {
                    HttpRequest request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/"))
                        .POST(HttpRequest.BodyPublishers.ofByteArray(body(number))).build();
                    HttpResponse<byte[]> answer = client.send(request, HttpResponse.BodyHandlers.ofByteArray());
                    check(answer.statusCode() == 200 && Arrays.equals(answer.body(), body(number)), number);
                }
                return null;
            }));
        }
        for (Future<?> each : all) {
            each.get();
        }
        blocking(port);
        System.out.println("all right");
        System.exit(0);
    }

    /** A blocking socket with a time limit: poll and read. */
    static void blocking(int port) throws Exception {
        try (Socket socket = new Socket("127.0.0.1", port)) {
            socket.setSoTimeout(30000);
            socket.setTcpNoDelay(true);
            socket.getOutputStream().write("POST / HTTP/1.0\r\nContent-Length: 4\r\n\r\nfour".getBytes());
            String answer = new String(socket.getInputStream().readAllBytes());
            check(answer.startsWith("HTTP/1.1 200") && answer.endsWith("four"), -1);
        }
    }

    static void check(boolean right, int number) {
        if (!right) {
            throw new IllegalStateException("request " + number + ": another answer");
        }
    }
}
