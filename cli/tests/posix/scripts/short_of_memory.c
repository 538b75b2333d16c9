// A server or a client that can map nothing more: for want of address space, of mappings, or of
// memory that it may lock. Some clients wait in the queue already. Prints how many were answered, and
// how many connections without a client the server met.
#include <linux/capability.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAITING = 5, LATER = 20, BYTES = 100000 };

static struct sockaddr_in name = {.sin_family = AF_INET};
static char sent[BYTES], got[BYTES];

static void limit(const char *resource) {
    if (!strcmp(resource, "space")) {
        long pages = 0;
        FILE *file = fopen("/proc/self/statm", "r");
        if (fscanf(file, "%ld", &pages) != 1) exit(3);
        fclose(file);
        struct rlimit most = {pages * 4096 + (1 << 20), RLIM_INFINITY};
        if (setrlimit(RLIMIT_AS, &most)) exit(4);
    } else if (!strcmp(resource, "mappings")) {
        // Neighbours of different rights are not joined.
        for (long at = 0; at < 10000000; at++)
            if (mmap(0, 4096, at % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
                return;
        exit(5);
    } else {
        struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct sets[2];
        if (syscall(SYS_capget, &head, sets)) exit(6);
        sets[0].effective &= ~(1u << CAP_IPC_LOCK);
        struct rlimit most = {1 << 20, 1 << 20};
        if (syscall(SYS_capset, &head, sets) || setrlimit(RLIMIT_MEMLOCK, &most) || mlockall(MCL_FUTURE)) exit(7);
    }
}

static int all(int fd, char *bytes, int writes) {
    long done = 0, now = 1;
    for (; done < BYTES && now > 0; done += now > 0 ? now : 0)
        now = writes ? send(fd, bytes + done, BYTES - done, MSG_NOSIGNAL) : recv(fd, bytes + done, BYTES - done, 0);
    return done == BYTES;
}

static int begin(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return !connect(fd, (void *)&name, sizeof name) && all(fd, sent, 1) ? fd : -1;
}

static int end(int fd) {
    memset(got, 0, BYTES);
    int good = fd >= 0 && all(fd, got, 0) && !memcmp(sent, got, BYTES) && recv(fd, got, 1, 0) == 0;
    close(fd);
    return good;
}

static void clients(int begun, int go_on, int answer, const char *limited) {
    int waiting[WAITING], good = 0;
    for (int at = 0; at < WAITING; at++) waiting[at] = begin();
    write(begun, "", 1);
    char byte;
    if (read(go_on, &byte, 1) != 1) exit(8);
    if (limited) limit(limited);
    for (int at = 0; at < WAITING; at++) good += end(waiting[at]);
    for (int at = 0; at < LATER; at++) good += end(begin());
    write(answer, &good, sizeof good);
    exit(0);
}

int main(int count, char **arguments) {
    const char *who = arguments[1], *resource = arguments[2];
    int limits_server = !strcmp(who, "server"), begun[2], go_on[2], answer[2], dead = 0, good = 0;
    for (int at = 0; at < BYTES; at++) sent[at] = at * 7 + at / 251;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
    if (bind(listener, (void *)&name, length) || listen(listener, 64)) return 1;
    getsockname(listener, (void *)&name, &length);
    if (pipe(begun) || pipe(go_on) || pipe(answer)) return 2;
    alarm(30);
    if (!fork()) {
        close(listener);
        close(answer[0]);
        clients(begun[1], go_on[0], answer[1], limits_server ? 0 : resource);
    }
    close(answer[1]);
    struct epoll_event event = {.events = EPOLLIN}, events[1];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    char byte;
    if (read(begun[0], &byte, 1) != 1) return 3;
    if (limits_server) limit(resource);
    write(go_on[1], "", 1);
    event.data.fd = answer[0];
    epoll_ctl(epoll, EPOLL_CTL_ADD, answer[0], &event);
    while (epoll_wait(epoll, events, 1, -1) == 1 && events[0].data.fd != answer[0]) {
        int fd = accept(listener, 0, 0);
        if (fd < 0) continue;
        static char bytes[BYTES];
        if (all(fd, bytes, 0)) all(fd, bytes, 1);
        else dead++;
        close(fd);
    }
    if (read(answer[0], &good, sizeof good) != sizeof good) return 4;
    printf("%s without %s: %d answered, %d without a client\n", who, resource, good, dead);
    wait(0);
    return 0;
}
