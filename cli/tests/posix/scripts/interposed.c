// A library that implements functions of the C library by calls by number, as gperftools' allocator does with mmap.
// With LIBRARY that library; without, a program that is linked with it.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef LIBRARY
#define BY_NUMBER(name, ...) syscall(SYS_##name, __VA_ARGS__)
void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    return (void *)BY_NUMBER(mmap, at, length, protection, flags, fd, offset);
}
ssize_t read(int fd, void *to, size_t length) { return BY_NUMBER(read, fd, to, length); }
ssize_t write(int fd, const void *from, size_t length) { return BY_NUMBER(write, fd, from, length); }
ssize_t pread(int fd, void *to, size_t length, off_t at) { return BY_NUMBER(pread64, fd, to, length, at); }
off_t lseek(int fd, off_t at, int whence) { return BY_NUMBER(lseek, fd, at, whence); }
int close(int fd) { return BY_NUMBER(close, fd); }
int fcntl(int fd, int command, long argument) { return BY_NUMBER(fcntl, fd, command, argument); }
int openat(int folder, const char *path, int flags, long mode) { return BY_NUMBER(openat, folder, path, flags, mode); }
int shutdown(int fd, int how) { return BY_NUMBER(shutdown, fd, how); }
int getsockname(int fd, struct sockaddr *name, socklen_t *length) { return BY_NUMBER(getsockname, fd, name, length); }
#else
int openat(int, const char *, int, ...);
int fcntl(int, int, ...);
int main(void) {
    char text[8] = "";
    int ends[2];
    char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *page = 1;
    int file = openat(-100, "/proc/self/exe", 0, 0);
    printf("pread %zd %.3s\n", pread(file, text, 4, 0), text + 1);
    printf("lseek %ld\n", (long)lseek(file, 5, SEEK_SET));
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    printf("write %zd\n", write(ends[0], "abc", 3));
    printf("read %zd\n", read(ends[1], text, 8));
    printf("fcntl %d\n", fcntl(ends[0], 1, 0));
    printf("shutdown %d\n", shutdown(ends[0], SHUT_RDWR));
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    printf("getsockname %d\n", getsockname(ends[0], (void *)&name, &length));
    printf("close %d %d\n", close(ends[0]), close(ends[0]));
    return 0;
}
#endif
