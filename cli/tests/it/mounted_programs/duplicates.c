// A thread puts one file after the other at a number by dup2; another one duplicates the number. A
// duplicate reads what its own file has.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 4 };

static int number;
static volatile int over;
static char name[FILES][8];
static long inode[FILES];

static void *change(void *unused) {
    char bytes[8];
    for (int round = 0; !over; round++) {
        int file = open(name[round % FILES], O_RDWR);
        for (int count = 0; count < 12; count++) pread(file, bytes, 8, 0);
        if (dup2(file, number) != number) exit(3);
        close(file);
        for (int count = 0; count < 40; count++) pread(number, bytes, 8, 0);
    }
    return unused;
}

int main(int count, char **arguments) {
    long duplicates = 0, wrong = 0;
    time_t end = time(0) + atoi(arguments[1]);
    pthread_t thread;
    (void)count;
    for (int which = 0; which < FILES; which++) {
        struct stat status;
        snprintf(name[which], sizeof name[which], "file%d", which);
        int file = open(name[which], O_CREAT | O_RDWR, 0644);
        char byte = '0' + which;
        if (write(file, &byte, 1) != 1 || fstat(file, &status)) return 2;
        inode[which] = status.st_ino;
        close(file);
    }
    number = open(name[0], O_RDWR);
    pthread_create(&thread, 0, change, 0);
    while (time(0) < end) {
        struct stat status;
        char byte = 0;
        int copy = fcntl(number, F_DUPFD, 100);
        if (copy < 0 || syscall(SYS_newfstatat, copy, "", &status, AT_EMPTY_PATH)) return 2;
        pread(copy, &byte, 1, 0);
        duplicates++;
        if (byte < '0' || byte >= '0' + FILES || inode[byte - '0'] != (long)status.st_ino) wrong++;
        close(copy);
    }
    over = 1;
    pthread_join(thread, 0);
    if (!duplicates) return 2;
    printf("%ld of other files\n", wrong);
    return 0;
}
