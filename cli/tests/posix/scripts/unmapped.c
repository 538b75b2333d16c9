// Each call with addresses that are not mapped, or not for the access of the call. It returns what
// it returns on a connection of the kernel (the C library reads the times of ppoll and select
// itself), and consumes none of the received bytes.
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static int listener, client, server;
static struct sockaddr_in name = {.sin_family = AF_INET};
static char much[64 << 10], *none, *constant, *beyond;
static struct timespec at_once;

// The number of mapped bytes before the unmapped ones.
static void *edge(int bytes) { return none - bytes; }

static int queued(int fd) {
    int bytes = -1;
    ioctl(fd, FIONREAD, &bytes);
    return bytes;
}
static void say(const char *call, long answer) {
    printf("%s: %ld %s, %d there, %d at the peer\n", call, answer, answer < 0 ? strerror(errno) : "-",
           queued(client), queued(server));
    while (queued(client) > 0) recv(client, much, sizeof much, 0);
    while (queued(server) > 0) recv(server, much, sizeof much, 0);
}
#define DO(...) errno = 0, say(#__VA_ARGS__, __VA_ARGS__)
// With this number of mapped bytes.
#define GETS(bytes, ...) send(server, much, bytes, 0), DO(__VA_ARGS__)

static int connected(void) {
    socklen_t length = sizeof name;
    client = socket(AF_INET, SOCK_STREAM, 0);
    connect(client, (void *)&name, length);
    return accept(listener, 0, 0);
}

static void receives(void) {
    struct iovec parts[] = {{much, 100}, {none, 100}}, bad = {none, 100};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2}, empty = {.msg_iov = edge(8), .msg_iovlen = 1};
    struct mmsghdr two[2] = {{{.msg_iov = parts, .msg_iovlen = 1}}, {{.msg_iov = &bad, .msg_iovlen = 1}}};
    GETS(5, read(client, none, 10));
    GETS(5, read(client, (void *)(1L << 52), 10));
    GETS(3000, read(client, edge(1000), 3000));
    GETS(3000, read(client, edge(3000), 5000));
    GETS(20000, read(client, edge(4096), 20000));
    GETS(5, read(client, constant, 5));
    GETS(5, read(client, beyond, 5));
    GETS(5, recv(client, none, 5, MSG_PEEK));
    GETS(5, recv(client, none, 5, MSG_TRUNC));
    GETS(5, recv(client, none, 5, MSG_WAITALL));
    DO(recv(client, none, 5, MSG_DONTWAIT));
    GETS(50, readv(client, parts, 2));
    GETS(150, readv(client, parts, 2));
    GETS(5, readv(client, edge(16), 2));
    GETS(150, recvmsg(client, &message, 0));
    GETS(5, recvmsg(client, (void *)none, 0));
    GETS(5, recvmsg(client, &empty, 0));
    GETS(150, recvmmsg(client, two, 2, MSG_DONTWAIT, 0));
    DO(recv(client, much, 5, MSG_DONTWAIT));
    GETS(5, recvmmsg(client, (void *)none, 1, MSG_DONTWAIT, 0));
    GETS(5, recvmmsg(client, two, 1, 0, (void *)none));
    GETS(5, recvfrom(client, none, 5, 0, 0, 0));
}

static void sends(void) {
    struct iovec parts[] = {{much, 100}, {none, 100}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2}, empty = {.msg_iov = edge(8), .msg_iovlen = 1};
    struct mmsghdr two[2] = {{{.msg_iov = parts, .msg_iovlen = 1}}, {{.msg_iov = parts + 1, .msg_iovlen = 1}}};
    DO(write(client, none, 10));
    DO(write(client, (void *)(1L << 52), 10));
    DO(write(client, edge(1000), 3000));
    DO(write(client, edge(4096), 8000));
    DO(write(client, constant, 5));
    // SIGBUS at each access.
    DO(write(client, beyond, 5));
    DO(send(client, none, 5, MSG_DONTWAIT));
    DO(sendto(client, none, 5, MSG_MORE, 0, 0));
    DO(writev(client, parts, 2));
    DO(writev(client, edge(16), 2));
    DO(sendmsg(client, &message, 0));
    DO(sendmsg(client, (void *)none, 0));
    DO(sendmsg(client, &empty, 0));
    DO(sendmmsg(client, two, 2, 0));
    DO(sendmmsg(client, (void *)none, 1, 0));
    int file = memfd_create("file", 0);
    write(file, "content", 7);
    DO(sendfile(client, file, (void *)none, 7));
}

static void names_and_options(void) {
    socklen_t length = sizeof name;
    int number = 1;
    DO(getsockname(client, (void *)none, &length));
    DO(getsockname(client, (void *)&name, (void *)none));
    DO(getpeername(client, (void *)edge(4), &length));
    DO(getsockname(listener, (void *)none, &length));
    DO(getsockopt(client, SOL_SOCKET, SO_RCVBUF, none, &length));
    DO(getsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &number, (void *)none));
    DO(getsockopt(client, SOL_SOCKET, SO_LINGER, edge(4), &length));
    DO(getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, none, &length));
    DO(setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, none, 4));
    DO(setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, edge(8), sizeof(struct timeval)));
    DO(setsockopt(client, SOL_SOCKET, SO_LINGER, none, sizeof(struct linger)));
    DO(setsockopt(client, IPPROTO_TCP, TCP_NODELAY, none, 4));
    DO(setsockopt(client, IPPROTO_TCP, TCP_CONGESTION, none, 5));
    DO(ioctl(client, FIONREAD, none));
    DO(ioctl(client, FIONBIO, none));
    DO(bind(client, (void *)none, sizeof name));
    DO(connect(client, (void *)none, sizeof name));
    int other = socket(AF_INET, SOCK_STREAM, 0);
    connect(other, (void *)&name, sizeof name);
    DO(accept(listener, (void *)none, &length));
    close(other);
}

static void waits(void) {
    struct pollfd one = {client, POLLOUT}, *two = edge(sizeof one);
    struct epoll_event event = {.events = EPOLLOUT, .data.fd = 7}, *events = edge(sizeof event);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(client, &set);
    *two = one;
    DO(poll((void *)none, 1, 0));
    DO(poll(two, 2, 0));
    DO(poll((void *)constant, 1, 0));
    DO(select(client + 1, (void *)none, 0, 0, 0));
    DO(select(client + 1, 0, &set, (void *)none, 0));
    int epoll = epoll_create1(0);
    DO(epoll_ctl(epoll, EPOLL_CTL_ADD, client, (void *)none));
    epoll_ctl(epoll, EPOLL_CTL_ADD, client, &event);
    epoll_ctl(epoll, EPOLL_CTL_ADD, server, &event);
    DO(epoll_ctl(epoll, EPOLL_CTL_MOD, client, (void *)none));
    DO(epoll_wait(epoll, (void *)none, 1, 0));
    DO(epoll_wait(epoll, (void *)constant, 1, 0));
    DO(epoll_wait(epoll, events, 2, 0));
    DO(epoll_wait(epoll, &event, 1, 0));
    DO(epoll_pwait2(epoll, &event, 1, (void *)none, 0));
    DO(epoll_pwait2(epoll, &event, 1, &at_once, 0));
    close(epoll);
}

int main(void) {
    static const char text[4096] = "constant";
    char *pages = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    none = pages + 2 * 4096;
    munmap(none, 4096);
    none = mmap(none, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    constant = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    beyond = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memfd_create("empty", 0), 0);
    socklen_t length = sizeof name;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (void *)&name, length);
    listen(listener, 5);
    getsockname(listener, (void *)&name, &length);
    server = connected();
    receives();
    sends();
    names_and_options();
    waits();
    // The connection works as before.
    GETS(5, read(client, much, 5));
    DO(write(client, text, 9));
    return 0;
}
