// A server that writes to its connection past the library, or shuts its writing down, by a system
// call of its own. The client, which waits as its argument requires, must not wait for ever.
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int client, server;
// More zeros than doorbells that may lie there uncounted.
static char payload[1000];
static int mixed, shuts_down;

static long raw_call(long call, int fd, const void *bytes, long count) {
#if defined(__x86_64__)
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "0"(call), "D"(fd), "S"(bytes), "d"(count)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long number __asm__("x8") = call, answer __asm__("x0") = fd, third __asm__("x2") = count;
    register const void *second __asm__("x1") = bytes;
    __asm__ volatile("svc 0" : "+r"(answer) : "r"(number), "r"(second), "r"(third) : "memory");
#endif
    return answer;
}

static long raw_write(int fd, const void *bytes, long count) {
    return raw_call(SYS_write, fd, bytes, count);
}

static void wait_in_epoll(const char *how) {
    static int epoll;
    struct epoll_event event = {.events = EPOLLIN}, got;
    if (!strcmp(how, "edge")) event.events |= EPOLLET;
    if (!strcmp(how, "exclusive")) event.events |= EPOLLEXCLUSIVE;
    if (!epoll) {
        epoll = epoll_create1(0);
        epoll_ctl(epoll, EPOLL_CTL_ADD, client, &event);
        if (!strcmp(how, "nested")) {
            int inner = epoll;
            epoll = epoll_create1(0);
            epoll_ctl(epoll, EPOLL_CTL_ADD, inner, &event);
        }
    }
    epoll_wait(epoll, &got, 1, -1);
}

static void wait_in_poll(void) {
    struct pollfd one = {.fd = client, .events = POLLIN};
    poll(&one, 1, -1);
}

static void wait_in_select(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(client, &set);
    select(client + 1, &set, 0, 0, 0);
}

static void *other(void *how) {
    char byte;
    if (how) wait_in_poll();
    else recv(client, &byte, 1, MSG_PEEK);
    return 0;
}

static void *writer(void *doorbells) {
    // Before or after the client sleeps: both have to end.
    usleep(50000);
    if (doorbells) {
        // Like doorbells of as many threads that have lost the processor before they counted them.
        for (int count = 0; count < 60; count++) {
            raw_write(server, "", 1);
            usleep(1000);
        }
        send(server, "h", 1, 0);
        return 0;
    }
    if (mixed) send(server, "h", 1, 0);
    if (shuts_down) raw_call(SYS_shutdown, server, (void *)SHUT_WR, 0);
    else raw_write(server, payload, sizeof payload);
    return 0;
}

int main(int count, char **arguments) {
    const char *how = arguments[1];
    memset(payload, strcmp(arguments[2], "zeros") ? 'x' : 0, sizeof payload);
    shuts_down = !strcmp(arguments[2], "shutdown");
    // Beside the writes of the library.
    mixed = count > 3;
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&name, length) || listen(listener, 5)) return 1;
    getsockname(listener, (void *)&name, &length);
    if (connect(client, (void *)&name, length)) return 2;
    server = accept(listener, 0, 0);
    signal(SIGPIPE, SIG_IGN);
    alarm(20);
    pthread_t thread, beside, third;
    char bytes[9];
    // Bytes of the library come first.
    send(server, "a", 1, 0);
    recv(client, bytes, 1, 0);
    if (!strcmp(how, "crowd")) {
        pthread_create(&beside, 0, other, 0);
        pthread_create(&third, 0, other, "poll");
    }
    int with_doorbells = !strcmp(arguments[2], "doorbells"), edge = !strcmp(how, "edge");
    pthread_create(&thread, 0, writer, with_doorbells ? "doorbells" : 0);
    if (!strcmp(how, "crowd")) {
        pthread_join(beside, 0);
        pthread_join(third, 0);
        printf("all were notified\n");
        return 0;
    }
    long received;
    do {
        if (!strcmp(how, "poll")) wait_in_poll();
        else if (!strcmp(how, "select")) wait_in_select();
        else if (strcmp(how, "recv")) wait_in_epoll(how);
        // What was reported at an edge is read to its end.
        do received = recv(client, bytes, 1, strcmp(how, "recv") ? MSG_DONTWAIT : 0);
        while (received > 0 && edge);
    } while ((received > 0 && !with_doorbells) ||
             ((with_doorbells || edge) && received < 0 && errno == EAGAIN));
    printf("client %ld %s\n", received, received < 0 ? strerror(errno) : "");
    if (with_doorbells) return 0;
    pthread_join(thread, 0);
    received = recv(server, bytes, sizeof bytes, 0);
    printf("server %ld %s\n", received, received < 0 ? strerror(errno) : "");
    received = raw_write(server, payload, sizeof payload);
    printf("past the library %s\n", received < 0 ? strerror(-received) : "continues");
    return 0;
}
