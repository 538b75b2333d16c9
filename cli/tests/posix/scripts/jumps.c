// The alarm idiom: a handler leaves each waiting call by siglongjmp. The resources of the call are
// released: descriptors, memory of connections, and the state of the same socket for other callers.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static sigjmp_buf back;
static struct sockaddr_in name = {.sin_family = AF_INET};
static int listener, client, server, epoll, native;

static void jump(int signal) { siglongjmp(back, signal); }

static void accepts(void) { accept(listener, 0, 0); }
static void receives(void) { char byte; recv(client, &byte, 1, 0); }
static void receives_in_time(void) {
    struct timeval time = {.tv_sec = 20};
    setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    receives();
}
static void sends(void) {
    static char much[64 << 10];
    for (;;) send(client, much, sizeof much, 0);
}
static void polls(void) {
    struct pollfd all[] = {{.fd = client, .events = POLLIN}, {.fd = listener, .events = POLLIN}};
    poll(all, 2, -1);
}
static void polls_many(void) {
    struct pollfd all[100];
    for (int i = 0; i < 100; i++) all[i] = (struct pollfd){.fd = client, .events = POLLIN};
    poll(all, 100, 20000);
}
static void ppolls(void) {
    struct pollfd one = {.fd = client, .events = POLLIN};
    sigset_t none;
    sigemptyset(&none);
    ppoll(&one, 1, 0, &none);
}
static void selects(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(client, &set);
    FD_SET(listener, &set);
    select(64, &set, 0, 0, 0);
}
static void waits(void) { struct epoll_event got; epoll_wait(epoll, &got, 1, -1); }
static void waits_natively(void) { struct epoll_event got; epoll_wait(native, &got, 1, -1); }

static int lines(const char *file, const char *with) {
    FILE *all = fopen(file, "r");
    char line[500];
    int count = 0;
    while (fgets(line, sizeof line, all)) count += strstr(line, with) != 0;
    fclose(all);
    return count;
}

static int descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0;
    char path[40];
    // Including those that the library keeps at high numbers.
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        count += access(path, F_OK) == 0 && fcntl(fd, F_GETFD) < 0;
    }
    return count;
}

static void leave(const char *what, void (*call)(void), int is_send) {
    struct epoll_event event = {.events = EPOLLIN};
    int before = descriptors(), maps = lines("/proc/self/maps", "sietch");
    socklen_t length = sizeof name;
    client = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(client, (void *)&name, length)) exit(2);
    server = accept(listener, 0, 0);
    epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, client, &event);
    native = epoll_create1(0);
    int during = descriptors();
    // So that it waits from the beginning: a jump out of a copy is a separate case.
    static char much[64 << 10];
    while (is_send && send(client, much, sizeof much, MSG_DONTWAIT) > 0) {}
    volatile int jumps = 0;
    for (volatile int i = 0; i < 5; i++) {
        struct itimerval soon = {.it_value.tv_usec = 30000};
        if (sigsetjmp(back, 1)) { jumps++; continue; }
        setitimer(ITIMER_REAL, &soon, 0);
        call();
    }
    printf("%s: %d jumps, %d descriptors", what, jumps, descriptors() - during);
    // Streams are added to the second epoll only now.
    epoll_ctl(native, EPOLL_CTL_ADD, client, &event);
    if (!is_send) {
        char byte = 0;
        struct pollfd inner[] = {{.fd = epoll, .events = POLLIN}, {.fd = native, .events = POLLIN}};
        struct epoll_event got;
        int quiet = poll(inner, 2, 0);
        send(server, "x", 1, 0);
        int ready = poll(inner, 2, 1000);
        int found = epoll_wait(epoll, &got, 1, 0) + epoll_wait(native, &got, 1, 0);
        int received = recv(client, &byte, 1, 0);
        printf(", ready %d %d %d, received %d %c, ready again %d", quiet, ready, found, received, byte,
               poll(inner, 2, 0));
    }
    close(client);
    char rest[64 << 10];
    long last;
    while ((last = recv(server, rest, sizeof rest, 0)) > 0) {}
    printf(", end %ld", last);
    close(server);
    close(epoll);
    close(native);
    printf(", left %d descriptors and %d maps\n", descriptors() - before,
           lines("/proc/self/maps", "sietch") - maps);
}

int main(void) {
    socklen_t length = sizeof name;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&name, length) || listen(listener, 50)) return 1;
    getsockname(listener, (void *)&name, &length);
    struct sigaction action = {.sa_handler = jump, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    leave("recv", receives, 0);
    leave("recv with a time", receives_in_time, 0);
    leave("send", sends, 1);
    leave("accept", accepts, 0);
    leave("poll", polls, 0);
    leave("poll of many", polls_many, 0);
    leave("ppoll", ppolls, 0);
    leave("select", selects, 0);
    leave("epoll_wait", waits, 0);
    leave("epoll_wait of the kernel's", waits_natively, 0);
    return 0;
}
