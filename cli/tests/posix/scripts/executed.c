// A thread calls exec while the first thread sends on a connection, which the new program inherits
// and goes on using. The exec ends the first thread within its call.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int client, server;
static char much[60000];

static void *reads(void *unused) {
    static char read_to[60000];
    while (recv(server, read_to, sizeof read_to, 0) > 0) {}
    return unused;
}

static void *executes(void *program) {
    char first[16], second[16];
    snprintf(first, sizeof first, "%d", client);
    snprintf(second, sizeof second, "%d", server);
    usleep(2000 + getpid() * 7919 % 3000);
    execl(program, program, first, second, (char *)0);
    return 0;
}

// What the new program does with the connection.
static int uses(void) {
    char read_to[60000];
    fcntl(server, F_SETFL, O_NONBLOCK);
    for (int tries = 0; tries < 1000; tries++) {
        ssize_t sent = send(client, much, 1, MSG_DONTWAIT);
        if (sent == 1) return 0;
        if (errno != EAGAIN) break;
        while (recv(server, read_to, sizeof read_to, 0) > 0) {}
        usleep(1000);
    }
    return 1;
}

int main(int count, char **arguments) {
    if (count > 2) {
        client = atoi(arguments[1]);
        server = atoi(arguments[2]);
        _exit(uses());
    }
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (void *)&name, length);
    listen(listener, 5);
    getsockname(listener, (void *)&name, &length);
    int unusable = 0;
    for (int times = 0; times < 40; times++) {
        client = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(client, (void *)&name, length) != 0) return 1;
        server = accept(listener, 0, 0);
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            pthread_create(&thread, 0, reads, 0);
            pthread_create(&thread, 0, executes, arguments[0]);
            for (;;) send(client, much, times % 2 ? 100 : sizeof much, 0);
        }
        int status;
        waitpid(child, &status, 0);
        if (status != 0) unusable++;
        close(client);
        close(server);
    }
    printf("unusable after exec: %d\n", unusable);
}
