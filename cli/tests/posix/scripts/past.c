// A server that writes to its connection past the library: dprintf writes by a call of the C
// library's own. The client must not wait for ever.
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&name, length) || listen(listener, 5)) return 1;
    getsockname(listener, (void *)&name, &length);
    if (connect(client, (void *)&name, length)) return 2;
    int server = accept(listener, 0, 0);
    signal(SIGPIPE, SIG_IGN);
    dprintf(server, "hello\n");
    char bytes[9];
    long received = recv(client, bytes, sizeof bytes, 0);
    printf("client %ld %s\n", received, received < 0 ? strerror(errno) : "");
    received = recv(server, bytes, sizeof bytes, 0);
    printf("server %ld %s\n", received, received < 0 ? strerror(errno) : "");
    printf("past the library %s\n", dprintf(server, "hello\n") < 0 ? strerror(errno) : "goes on");
    return 0;
}
