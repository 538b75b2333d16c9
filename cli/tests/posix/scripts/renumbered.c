// Threads that change what a number is by dup2, dup, close and connect, beside threads that use it.
// On the kernel each call is of the file before or of the file after, and no connection fails.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS = 4 };

static int client[CONNECTIONS], server[CONNECTIONS], null;
static volatile int number;
static long inode[CONNECTIONS];
static const char *mode;
static volatile int over, ended;
static volatile long received;

// A socket is used while it is connected. Its server must not see a reset.
static struct sockaddr_in name = {.sin_family = AF_INET};
static int listener;

static void *accept_all(void *unused) {
    char byte;
    for (;;) {
        ssize_t count;
        int connection = accept(listener, 0, 0);
        while ((count = read(connection, &byte, 1)) > 0);
        if (count) {
            ended = 1;
            printf("accepted: %s\n", strerror(errno));
        }
        close(connection);
    }
    return unused;
}

static void *connect_all(void *unused) {
    char byte;
    while (!over) {
        int fresh = socket(AF_INET, SOCK_STREAM, 0);
        number = fresh;
        if (connect(fresh, (void *)&name, sizeof name)) exit(3);
        number = -1;
        usleep(20);
        shutdown(fresh, SHUT_WR);
        while (read(fresh, &byte, 1) > 0);
        close(fresh);
    }
    return unused;
}

static void pair(int connection) {
    socklen_t length = sizeof name;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin_port = 0;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&name, length) || listen(listener, 1)) exit(2);
    getsockname(listener, (void *)&name, &length);
    client[connection] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(client[connection], (void *)&name, length)) exit(2);
    server[connection] = accept(listener, 0, 0);
}

static int elapsed(struct timespec *begun) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - begun->tv_sec) * 1000 + (now.tv_nsec - begun->tv_nsec) / 1000000;
}

// Counts what arrives, or answers each byte with the number of the connection.
static void *serve(void *which) {
    long connection = (long)which;
    char bytes[4096];
    ssize_t count;
    while ((count = read(server[connection], bytes, sizeof bytes)) > 0) {
        __sync_fetch_and_add(&received, count);
        bytes[0] = '0' + connection;
        if (!strcmp(mode, "source") && write(server[connection], bytes, 1) != 1) break;
    }
    if (!over) {
        ended = 1;
        printf("connection %ld ended: %zd %s\n", connection, count, count ? strerror(errno) : "");
    }
    return 0;
}

static void *change(void *unused) {
    for (int round = 0; !over; round++) {
        int from = client[round % (!strcmp(mode, "source") ? CONNECTIONS : 2)];
        if (!strcmp(mode, "null") && round % 2) from = null;
        if (!strcmp(mode, "close")) {
            close(number);
            if (dup(from) != number) exit(3);
        } else if (dup2(from, number) != number) {
            exit(3);
        }
    }
    return unused;
}

// One byte by the number; whether it was sent.
static int use(void) {
    char byte = 'x';
    if (!strcmp(mode, "fork")) {
        int status;
        pid_t child = fork();
        if (!child) _exit(write(number, &byte, 1) == 1 ? 0 : errno);
        waitpid(child, &status, 0);
        errno = WEXITSTATUS(status);
        return status ? -1 : 1;
    }
    if (!strcmp(mode, "source")) {
        // A duplicate is of the connection that its file belongs to.
        struct stat status;
        int copy = fcntl(number, F_DUPFD, 100);
        syscall(SYS_newfstatat, copy, "", &status, AT_EMPTY_PATH);
        if (write(copy, &byte, 1) != 1 || read(copy, &byte, 1) != 1) return -1;
        close(copy);
        errno = EXDEV;
        return inode[byte - '0'] == (long)status.st_ino ? 1 : -1;
    }
    if (!strcmp(mode, "connect")) return send(number, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
    ssize_t sent = write(number, &byte, 1);
    return sent == 1 ? 1 : errno == EBADF && !strcmp(mode, "close") ? 0 : -1;
}

int main(int count, char **arguments) {
    int milliseconds = atoi(arguments[2]);
    long sent = 0;
    struct timespec begun;
    pthread_t thread;
    mode = arguments[1];
    (void)count;
    signal(SIGPIPE, SIG_IGN);
    null = open("/dev/null", O_WRONLY);
    for (int connection = 0; connection < CONNECTIONS; connection++) {
        struct stat status;
        pair(connection);
        syscall(SYS_newfstatat, client[connection], "", &status, AT_EMPTY_PATH);
        inode[connection] = status.st_ino;
        pthread_create(&thread, 0, serve, (void *)(long)connection);
    }
    // Every lower number is taken, so that dup finds this one.
    number = dup(client[0]);
    int connects = !strcmp(mode, "connect"), counts = strcmp(mode, "null") && !connects;
    if (connects) pthread_create(&thread, 0, accept_all, 0);
    pthread_create(&thread, 0, connects ? connect_all : change, 0);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    while (elapsed(&begun) < milliseconds && !ended) {
        int outcome = use();
        if (outcome < 0) {
            printf("write: %s after %ld\n", strerror(errno), sent);
            return 1;
        }
        sent += outcome;
    }
    // What was sent arrives.
    clock_gettime(CLOCK_MONOTONIC, &begun);
    while (received < sent && counts && elapsed(&begun) < 5000) usleep(1000);
    over = 1;
    pthread_join(thread, 0);
    if (received != sent && counts) printf("%ld of %ld\n", received, sent);
    puts(ended ? "ended" : "all right");
    fflush(stdout);
    _exit(0);
}
