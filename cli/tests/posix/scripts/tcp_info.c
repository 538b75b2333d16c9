// What TCP_INFO says of bytes that have gone both ways.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char bytes[100000];

static void print(const char *who, int fd) {
    struct tcp_info info;
    socklen_t length = sizeof info;
    memset(&info, 0, sizeof info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length)) return;
    // The kernel counts the SYN of the side that connected.
    printf("%s: state %d, %d bytes, acknowledged %d, received %d, sent %d, in segments %d, out %d, "
           "data %d %d, delivered %d, min_rtt %d, lost %d\n",
           who, info.tcpi_state, length == sizeof info, (int)info.tcpi_bytes_acked / 1000,
           (int)info.tcpi_bytes_received, (int)info.tcpi_bytes_sent, info.tcpi_segs_in > 0,
           info.tcpi_segs_out > 0, info.tcpi_data_segs_in > 0, info.tcpi_data_segs_out > 0,
           info.tcpi_delivered > 0, info.tcpi_min_rtt > 0, info.tcpi_lost);
}

static void pass(int from, int to, long count) {
    for (long sent = 0; sent < count;) sent += send(from, bytes, count - sent, 0);
    for (long got = 0; got < count;) got += recv(to, bytes, sizeof bytes, 0);
}

int main(void) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&name, length) || listen(listener, 5)) return 1;
    getsockname(listener, (void *)&name, &length);
    if (connect(client, (void *)&name, length)) return 2;
    int server = accept(listener, 0, 0);
    pass(client, server, 70000);
    pass(server, client, 30000);
    print("client", client);
    print("server", server);
    return 0;
}
