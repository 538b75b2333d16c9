// Each call that the library answers, by its number: its result on a connection of the library is
// its result on the kernel's.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int listener, client, server;
static struct sockaddr_in name = {.sin_family = AF_INET};
static char bytes[16];
static struct iovec vector = {bytes, 3};
static struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};

static void say(const char *call, long answer) {
    printf("%s %ld %s %s\n", call, answer, answer < 0 ? strerror(errno) : "-", bytes);
    memset(bytes, 0, sizeof bytes);
    errno = 0;
}

static void arrives(const char *what) { send(server, what, 3, 0); }
static void leaves(const char *call, long answer) {
    char got[16] = {0};
    recv(server, got, 3, MSG_WAITALL);
    strcpy(bytes, got);
    say(call, answer);
}

// Receives with the given call, and prints what came.
#define IN(number, ...) arrives(#number), say(#number, syscall(SYS_##number, __VA_ARGS__))
// Sends with it, and prints what the other end got.
#define OUT(number, ...) strcpy(bytes, "out"), leaves(#number, syscall(SYS_##number, __VA_ARGS__))
#define DO(number, ...) say(#number, syscall(SYS_##number, __VA_ARGS__))

static void connected(void) {
    socklen_t length = sizeof name;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    DO(bind, listener, &name, length);
    DO(listen, listener, 5);
    DO(getsockname, listener, &name, &length);
    client = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    DO(connect, client, &name, length);
    server = syscall(SYS_accept, listener, 0, 0);
    say("accept", server > 0);
    int other = socket(AF_INET, SOCK_STREAM, 0);
    connect(other, (void *)&name, length);
    int accepted = syscall(SYS_accept4, listener, 0, 0, SOCK_NONBLOCK);
    say("accept4", accepted > 0);
    DO(recvfrom, accepted, bytes, 3, 0, 0, 0);
    say("close", syscall(SYS_close, other));
    struct pollfd one = {.fd = accepted, .events = POLLIN};
    poll(&one, 1, 5000);
    DO(read, accepted, bytes, 3);
    close(accepted);
}

static void data(void) {
    struct mmsghdr many = {.msg_hdr = message};
    IN(read, client, bytes, 3);
    IN(readv, client, &vector, 1);
    IN(preadv2, client, &vector, 1, -1L, 0L, 0);
    IN(recvfrom, client, bytes, 3, 0, 0, 0);
    IN(recvmsg, client, &message, 0);
    IN(recvmmsg, client, &many, 1, 0, 0);
    OUT(write, client, bytes, 3);
    OUT(writev, client, &vector, 1);
    OUT(pwritev2, client, &vector, 1, -1L, 0L, 0);
    OUT(sendto, client, bytes, 3, 0, 0, 0);
    OUT(sendmsg, client, &message, 0);
    OUT(sendmmsg, client, &many, 1, 0);
    DO(preadv2, client, &vector, 1, -1L, 0L, RWF_NOWAIT);
    DO(preadv2, client, &vector, 1, 5L, 0L, 0);
    DO(preadv2, client, &vector, 1, -1L, 0L, 1 << 20);
    IN(preadv2, client, &vector, 1, -1L, 0L, RWF_NOWAIT | RWF_HIPRI);
    OUT(pwritev2, client, &vector, 1, -1L, 0L, RWF_DSYNC);
    DO(pwritev2, client, &vector, 1, -1L, 0L, 1 << 20);
    int file = memfd_create("file", 0);
    write(file, "fil", 3);
    OUT(sendfile, client, file, &(off_t){0}, 3);
    int value = 0;
    arrives("one");
    struct pollfd one = {.fd = client, .events = POLLIN};
    poll(&one, 1, 5000);
    DO(ioctl, client, FIONREAD, &value);
    say("FIONREAD", value);
    recv(client, bytes, 3, 0);
}

static void waits(void) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7}, got;
    struct timespec none = {0}, some = {.tv_sec = 100}, little = {.tv_nsec = 10000000};
    sigset_t mask;
    sigemptyset(&mask);
    int epoll = syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
    DO(epoll_ctl, epoll, EPOLL_CTL_ADD, client, &event);
#ifdef SYS_epoll_wait
    int second = syscall(SYS_epoll_create, 1);
    DO(epoll_ctl, second, EPOLL_CTL_ADD, client, &event);
    DO(epoll_wait, second, &got, 1, 0);
    IN(epoll_wait, second, &got, 1, -1);
    recv(client, bytes, 3, 0);
    close(second);
#endif
    DO(epoll_pwait, epoll, &got, 1, 0, 0, 0);
    DO(epoll_pwait, epoll, &got, 1, 0, &mask, 3);
    DO(epoll_pwait2, epoll, &got, 1, &none, &mask, 3);
    struct pollfd one = {.fd = client, .events = POLLIN};
    fd_set set;
    struct { sigset_t *mask; size_t size; } pair = {&mask, 8}, wrong = {&mask, 3}, absent = {0, 3};
#define SET FD_ZERO(&set); FD_SET(client, &set)
#ifdef SYS_poll
    DO(poll, &one, 1, 0);
#endif
    DO(ppoll, &one, 1, &little, 0, 0);
    say("time that is left", little.tv_nsec);
    DO(ppoll, &one, 1, &none, &mask, 3);
    SET; DO(pselect6, client + 1, &set, 0, 0, &none, &wrong);
    SET; DO(pselect6, client + 1, &set, 0, 0, &none, &absent);
    arrives("all");
    DO(epoll_pwait, epoll, &got, 1, -1, 0, 0);
    DO(epoll_pwait, epoll, &got, 1, -1, &mask, 8);
    DO(epoll_pwait2, epoll, &got, 1, 0, 0, 0);
    DO(epoll_pwait2, epoll, &got, 1, &some, &mask, 8);
    say("data of epoll", got.data.u32);
#ifdef SYS_poll
    DO(poll, &one, 1, -1);
#endif
    DO(ppoll, &one, 1, 0, &mask, 8);
    DO(ppoll, &one, 1, &some, 0, 0);
    say("time that is left", some.tv_sec >= 98);
#ifdef SYS_select
    struct timeval time = {.tv_sec = 100};
    SET; DO(select, client + 1, &set, 0, 0, &time);
    say("time that is left", time.tv_sec >= 98);
#endif
    SET; DO(pselect6, client + 1, &set, 0, 0, &some, &pair);
    SET; DO(pselect6, client + 1, &set, 0, 0, &some, 0);
    static const struct timespec constant = {.tv_sec = 100};
    DO(ppoll, &one, 1, &constant, 0, 0);
    recv(client, bytes, 3, 0);
    close(epoll);
}

static void others(void) {
    int value = 0;
    socklen_t length = sizeof value;
    DO(setsockopt, client, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, 4);
    DO(getsockopt, client, SOL_SOCKET, SO_KEEPALIVE, &value, &length);
    say("SO_KEEPALIVE", value);
    struct sockaddr_in peer;
    length = sizeof peer;
    DO(getpeername, client, &peer, &length);
    say("peer", peer.sin_port == name.sin_port);
    int one = syscall(SYS_dup, client);
    IN(read, one, bytes, 3);
#ifdef SYS_dup2
    say("dup2", syscall(SYS_dup2, client, one) == one);
    IN(read, one, bytes, 3);
#endif
    say("dup3", syscall(SYS_dup3, client, one, O_CLOEXEC) == one);
    IN(read, one, bytes, 3);
    int two = syscall(SYS_fcntl, one, F_DUPFD, 100);
    IN(read, two, bytes, 3);
    DO(fcntl, two, F_SETFL, O_NONBLOCK);
    DO(read, client, bytes, 3);
    DO(shutdown, client, SHUT_WR);
    DO(read, server, bytes, 3);
    DO(close_range, two, two, 0);
    DO(close, one);
    DO(close, client);
    signal(SIGPIPE, SIG_IGN);
    send(server, "x", 1, 0);
    DO(write, server, "x", 1);
}

int main(void) {
    connected();
    data();
    waits();
    others();
    return 0;
}
