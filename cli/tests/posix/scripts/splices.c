// splice between a connection and a pipe, and the pairs that it refuses: what each call returns, and that no byte is lost.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MUCH = 8 << 20 };
static int listener, client, server, in[2], out[2];
static unsigned char sent[MUCH], got[MUCH];
static volatile int broken;

static void count(int number) { broken++; }
static void say(const char *what, ssize_t answer) {
    printf("%s: %zd%s%s\n", what, answer, answer < 0 ? " " : "", answer < 0 ? strerror(errno) : "");
    fflush(stdout);
}
static void connected(void) {
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    getsockname(listener, (void *)&name, &length);
    client = socket(AF_INET, SOCK_STREAM, 0);
    connect(client, (void *)&name, length);
    server = accept(listener, 0, 0);
}
static void set(int fd, int nonblocking) { fcntl(fd, F_SETFL, nonblocking ? O_NONBLOCK : 0); }
static void *writes(void *of) {
    for (size_t done = 0; done < MUCH;) done += write(*(int *)of, sent + done, MUCH - done < 70001 ? MUCH - done : 70001);
    shutdown(*(int *)of, SHUT_WR);
    return 0;
}
static void *reads(void *of) {
    size_t done = 0;
    for (ssize_t now; (now = read(*(int *)of, got + done, MUCH - done)) > 0;) done += now;
    return (void *)done;
}
struct pair { int from, from_client, to, to_client; };
static struct pair two_connections(void) {
    struct pair pair;
    connected();
    pair.from = server, pair.from_client = client;
    connected();
    pair.to = server, pair.to_client = client;
    return pair;
}
// From one connection through a pipe to another, as a proxy does.
static void relays(int nonblocking_pipe, struct pair pair) {
    pthread_t writer, reader;
    int from = pair.from, from_client = pair.from_client, to = pair.to, to_client = pair.to_client;
    void *bytes;
    set(in[0], nonblocking_pipe), set(in[1], nonblocking_pipe);
    memset(got, 0, MUCH);
    pthread_create(&writer, 0, writes, &from_client);
    pthread_create(&reader, 0, reads, &to_client);
    for (;;) {
        ssize_t now = splice(from, 0, in[1], 0, 1 << 20, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        if (now <= 0) { say("the end", now); break; }
        while (now > 0) {
            ssize_t passed = splice(in[0], 0, to, 0, now, SPLICE_F_MOVE | SPLICE_F_MORE);
            if (passed <= 0) { say("passed on", passed); exit(1); }
            now -= passed;
        }
    }
    shutdown(to, SHUT_WR);
    pthread_join(writer, 0);
    pthread_join(reader, &bytes);
    printf("relayed %zu, %s\n", (size_t)bytes, memcmp(sent, got, MUCH) ? "damaged" : "whole");
    close(from), close(from_client), close(to), close(to_client);
    set(in[0], 0), set(in[1], 0);
}
// A filter that allows everything: the library does not know that.
static void restricted(void) {
    struct sock_filter all[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog program = {1, all};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    say("restricted", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
}
int main(void) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    off64_t at = 0;
    int file = open("/proc/self/exe", O_RDONLY), null = open("/dev/null", O_WRONLY), filled = 0;
    alarm(50);
    signal(SIGPIPE, count);
    for (size_t i = 0; i < MUCH; i++) sent[i] = i * 2654435761u >> 13;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (void *)&name, sizeof name);
    listen(listener, 5);
    (void)!pipe(in);
    (void)!pipe(out);
    connected();

    say("to a file", splice(server, 0, null, 0, 10, 0));
    say("from a file", splice(file, 0, server, 0, 10, 0));
    say("to a connection", splice(server, 0, client, 0, 10, 0));
    say("offset of the connection", splice(server, &at, in[1], 0, 10, 0));
    say("offset of the pipe", splice(server, 0, in[1], &at, 10, 0));
    say("offset of the other connection", splice(in[0], 0, server, &at, 10, 0));
    say("offset of the other pipe", splice(in[0], &at, server, 0, 10, 0));
    say("flags", splice(server, 0, in[1], 0, 10, 0x100));
    say("nothing", splice(server, 0, in[1], 0, 0, 0x100));
    say("the wrong end", (write(client, "a", 1), splice(server, 0, in[0], 0, 10, 0)));
    say("the other wrong end", splice(in[1], 0, server, 0, 10, SPLICE_F_NONBLOCK));
    say("tee", tee(server, in[1], 10, 0));
    say("vmsplice", vmsplice(server, &(struct iovec){sent, 1}, 1, 0));
    say("sendfile at an offset", sendfile(in[1], server, &at, 10));
    say("sendfile from a connection", sendfile(in[1], server, 0, 10));
    say("of the pipe", read(in[0], got, 10));
    (void)!write(client, "a", 1);

    say("one byte", splice(server, 0, in[1], 0, 10, 0));
    say("of the pipe", read(in[0], got, 10));
    set(server, 1);
    say("none yet", splice(server, 0, in[1], 0, 10, 0));
    set(server, 0);
    say("pipe without bytes", splice(in[0], 0, server, 0, 10, SPLICE_F_NONBLOCK));
    set(in[0], 1);
    say("nonblocking pipe without bytes", splice(in[0], 0, server, 0, 10, 0));
    set(in[0], 0);
    (void)!write(in[1], "abc", 3);
    say("of the pipe", splice(in[0], 0, server, 0, 10, 0));
    say("received", recv(client, got, 10, 0));
    (void)!write(in[1], "abcdef", 6);
    say("by number", syscall(SYS_splice, in[0], 0, server, 0, 4, 0));
    say("the rest", splice(in[0], 0, server, 0, 10, 0));
    say("received", recv(client, got, 6, MSG_WAITALL));

    // A full pipe: nothing is lost.
    set(out[1], 1);
    while (write(out[1], sent, 4096) > 0) filled++;
    (void)!write(client, "xyz", 3);
    say("full pipe", splice(server, 0, out[1], 0, 10, SPLICE_F_NONBLOCK));
    say("nonblocking full pipe", splice(server, 0, out[1], 0, 10, 0));
    say("still there", recv(server, got, 10, MSG_DONTWAIT));
    set(out[1], 0);

    // A connection that takes no more: nothing is lost.
    set(server, 1);
    while (send(server, sent, 65536, 0) > 0) {}
    (void)!write(in[1], "xyz", 3);
    say("full connection", splice(in[0], 0, server, 0, 10, 0));
    say("still there", read(in[0], got, 10));
    set(server, 0);
    close(client), close(server);

    relays(0, two_connections());
    relays(1, two_connections());

    connected();
    close(client);
    say("peer is gone", splice(server, 0, in[1], 0, 10, 0));
    close(server);
    connected();
    close(in[0]);
    say("pipe without reader", splice(server, 0, in[1], 0, 10, 0));
    printf("signals %d\n", broken);
    close(in[1]);
    (void)!pipe(in);
    (void)!write(in[1], "abc", 3);
    close(in[1]);
    say("last bytes", splice(in[0], 0, server, 0, 10, 0));
    say("pipe without writer", splice(in[0], 0, server, 0, 10, 0));
    close(in[0]);
    (void)!pipe(in);
    shutdown(server, SHUT_WR);
    (void)!write(in[1], "abc", 3);
    say("after shutdown", splice(in[0], 0, server, 0, 10, 0));
    printf("signals %d\n", broken);

    struct pair one = two_connections(), other = two_connections();
    close(in[0]), close(in[1]);
    (void)!pipe(in);
    connected();
    restricted();
    relays(0, one);
    relays(1, other);
    (void)!write(client, "abc", 3);
    set(out[1], 1);
    say("nonblocking full pipe", splice(server, 0, out[1], 0, 10, 0));
    set(out[1], 0);
    say("full pipe", splice(server, 0, out[1], 0, 10, SPLICE_F_NONBLOCK));
    say("still there", recv(server, got, 10, MSG_DONTWAIT));
    say("pipe without bytes", splice(in[0], 0, server, 0, 10, SPLICE_F_NONBLOCK));
    say("sendfile from a pipe", (write(in[1], "abc", 3), sendfile(server, in[0], 0, 3)));
    say("of the pipe", splice(in[0], 0, server, 0, 10, 0));
    return 0;
}
