// A peer that punches holes into the shared memory of a connection, where the kernel has no page
// for the next access. Here userfaultfd refuses the page, with the same result (SIGBUS); the peer's
// call is its own. Each time the connection is reset and the program continues.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in name = {.sin_family = AF_INET};
static int listener;
static char much[1 << 20];

// Where the shared memory of a connection is mapped: of the last one, which is the longest of its
// kind here.
static char *common(size_t *length) {
    char line[512], *found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (strstr(line, "sietch-stream") && sscanf(line, "%lx-%lx", &start, &end) == 2 && end - start > (1 << 20))
            found = (char *)start, *length = end - start;
    }
    fclose(maps);
    if (!found) puts("no connection of Sietch's"), exit(1);
    return found;
}

// From here on its missing pages are refused.
static int refused(char *start, size_t length) {
    int watch = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS};
    struct uffdio_register range = {.range = {(unsigned long)start, length}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (watch < 0 || ioctl(watch, UFFDIO_API, &api) || ioctl(watch, UFFDIO_REGISTER, &range))
        puts("no userfaultfd"), exit(0);
    return watch;
}

static int reads(int fd) { return read(fd, much, 100); }
static int peeks(int fd) { return recv(fd, much, 100, MSG_PEEK); }
static int writes(int fd) { return write(fd, much, 100); }
static int writes_much(int fd) { return send(fd, much, sizeof much, MSG_DONTWAIT | MSG_NOSIGNAL); }
static int sends_a_file(int fd) {
    int file = memfd_create("file", 0);
    write(file, much, 5000);
    int sent = sendfile(fd, file, &(off_t){0}, 5000), before = errno;
    close(file);
    errno = before;
    return sent;
}
static int waited(int fd) {
    struct pollfd one = {fd, POLLIN | POLLOUT};
    return poll(&one, 1, 0);
}
static int waits(int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
    int epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    int found = epoll_wait(epoll, &event, 1, 0);
    close(epoll);
    return found;
}

// The peer: sends something, and removes the pages from byte `from` on.
static void peer(int from, int sent, int go_on) {
    size_t length;
    char byte;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    connect(fd, (void *)&name, sizeof name);
    send(fd, "some text", 9, 0);
    write(sent, "a", 1);
    read(go_on, &byte, 1);
    char *start = common(&length);
    if (madvise(start + from, from ? length - from : 4096, MADV_REMOVE)) perror("a hole");
    write(sent, "b", 1);
    // Once the other end has reached the hole, the peer writes there itself.
    read(go_on, &byte, 1);
    for (;;) send(fd, "more", 4, MSG_DONTWAIT | MSG_NOSIGNAL), usleep(1000);
}

static void reaches_hole(const char *what, int (*call)(int), int from) {
    int sent[2], go_on[2];
    size_t length;
    char byte;
    pipe(sent), pipe(go_on);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) close(listener), peer(from, sent[1], go_on[0]);
    int fd = accept(listener, 0, 0);
    read(sent[0], &byte, 1);
    // All pages that either end uses are there.
    write(fd, "text", 4);
    char *start = common(&length);
    int watch = refused(start, length);
    write(go_on[1], "a", 1);
    read(sent[0], &byte, 1);
    int first = call(fd), after, tries = 0;
    // poll and epoll need not touch the bytes. This does, before the peer's next bytes fill the
    // hole.
    recv(fd, much, 100, MSG_DONTWAIT);
    write(go_on[1], "a", 1);
    // Whatever the first call returned: the connection is reset, and every call reports that or the
    // end.
    do after = read(fd, much, 100);
    while (after > 0 && tries++ < 100);
    printf("%s from %d: %s, then it is %s\n", what, from, first < -1 ? "?" : "answered", after <= 0 ? "over" : "not over");
    kill(child, SIGKILL), waitpid(child, 0, 0);
    close(fd), close(watch), close(sent[0]), close(sent[1]), close(go_on[0]), close(go_on[1]);
}

int main(void) {
    socklen_t length = sizeof name;
    signal(SIGPIPE, SIG_IGN);
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (void *)&name, length);
    listen(listener, 5);
    getsockname(listener, (void *)&name, &length);
    for (int from = 0; from <= 4096; from += 4096) {
        reaches_hole("read", reads, from);
        reaches_hole("peek", peeks, from);
        reaches_hole("write", writes, from);
        reaches_hole("write much", writes_much, from);
        reaches_hole("sendfile", sends_a_file, from);
        reaches_hole("poll", waited, from);
        reaches_hole("epoll", waits, from);
    }
    puts("the program continues");
    return 0;
}
