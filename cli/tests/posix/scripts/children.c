// Children for which their parent waits, and which close what they have, or put others there. The
// parent's connections (to itself, and to another process), its epoll and its listener go on.
#define _GNU_SOURCE
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in name = {.sin_family = AF_INET};
static int listener, client, server, far, epoll;
static char stack[1 << 18] __attribute__((aligned(16)));

static int ranges(void *unused) { return close_range(3, ~0U, 0); }
static int closes_from(void *unused) { closefrom(3); return 0; }
static int closes(void *unused) { for (int fd = 3; fd < 1024; fd++) close(fd); return 0; }
static int duplicates(void *unused) { for (int fd = 3; fd < 1024; fd++) dup2(1, fd); return 0; }
static int executes(void *unused) {
    closefrom(3);
    execlp("true", "true", (char *)0);
    return 1;
}

static int ended(pid_t child) {
    int status = -1;
    if (child > 0) waitpid(child, &status, 0);
    return status;
}

static int by_clone(int (*run)(void *)) {
    return ended(clone(run, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, 0));
}

static int by_vfork(int (*run)(void *)) {
    pid_t child = vfork();
    if (child == 0) _exit(run(0));
    return ended(child);
}

static int by_spawn(int (*unused)(void *)) {
    char *arguments[] = {"true", 0};
    posix_spawn_file_actions_t actions;
    pid_t child = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addclose(&actions, listener);
    posix_spawn_file_actions_adddup2(&actions, 1, client);
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    if (posix_spawnp(&child, "true", &actions, 0, arguments, environ)) return -1;
    return ended(child);
}

static int by_system(int (*unused)(void *)) { return system("exec 3>&- 4>&- 5>&- 6>&-"); }

static void go_on(const char *how, int status) {
    char byte = 0;
    struct epoll_event got = {0};
    struct pollfd one = {.fd = client, .events = POLLIN};
    int quiet = epoll_wait(epoll, &got, 1, 0), sent = send(client, "x", 1, 0);
    int ready = epoll_wait(epoll, &got, 1, 2000), received = recv(server, &byte, 1, MSG_DONTWAIT);
    int back = send(server, &byte, 1, 0), polled = poll(&one, 1, 2000), last = recv(client, &byte, 1, 0);
    printf("%s: %d, epoll %d %d, sent %d, received %d, back %d %d %d %c", how, status, quiet, ready, sent, received,
           back, polled, last, byte);
    int away = send(far, "z", 1, 0), echoed = recv(far, &byte, 1, 0);
    printf(", far %d %d %c", away, echoed, byte);
    // A connection that is made afterwards.
    int next = socket(AF_INET, SOCK_STREAM, 0), connected = connect(next, (void *)&name, sizeof name);
    struct pollfd waits = {.fd = listener, .events = POLLIN};
    int arrives = poll(&waits, 1, 2000), accepted = arrives == 1 ? accept(listener, 0, 0) : -1;
    send(next, "y", 1, 0);
    int more = accepted < 0 ? -1 : recv(accepted, &byte, 1, 0);
    printf(", next %d %d %d %c\n", connected, arrives, more, byte);
    close(accepted);
    close(next);
}

static int echo(void) {
    char byte;
    int own = socket(AF_INET, SOCK_STREAM, 0);
    close(listener);
    if (connect(own, (void *)&name, sizeof name)) return 1;
    while (recv(own, &byte, 1, 0) == 1) send(own, &byte, 1, 0);
    return 0;
}

int main(void) {
    socklen_t length = sizeof name;
    struct epoll_event event = {.events = EPOLLIN};
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&name, length) || listen(listener, 50)) return 1;
    getsockname(listener, (void *)&name, &length);
    pid_t other = fork();
    if (other == 0) _exit(echo());
    far = accept(listener, 0, 0);
    client = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(client, (void *)&name, length)) return 1;
    server = accept(listener, 0, 0);
    epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, server, &event);
    setvbuf(stdout, 0, _IOLBF, 0);
    go_on("begin", 0);
    go_on("clone, close_range", by_clone(ranges));
    go_on("clone, closefrom", by_clone(closes_from));
    go_on("clone, close", by_clone(closes));
    go_on("clone, dup2", by_clone(duplicates));
    go_on("clone, exec", by_clone(executes));
    go_on("vfork, close_range", by_vfork(ranges));
    go_on("vfork, close", by_vfork(closes));
    go_on("vfork, dup2", by_vfork(duplicates));
    go_on("vfork, exec", by_vfork(executes));
    go_on("spawn", by_spawn(0));
    go_on("system", by_system(0));
    close(far);
    printf("the other process: %d\n", ended(other));
    return 0;
}
