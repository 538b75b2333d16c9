// Programs on files of a mount, for `sietch run --fs`. A record has 40 bytes: a letter, a number,
// and filling. `records MODE FILE LETTER COUNT`; each mode is a function below. With `-v` at the
// end, each record is acknowledged on the standard output once it is written.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RECORD = 40 };

static int file, verbose;
static long count;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(3);
}

static void record(char *to, char letter, long number) {
    memset(to, '.', RECORD);
    to[0] = letter;
    for (int at = 9; at > 1; at--, number /= 10) to[at] = '0' + number % 10;
    to[RECORD - 1] = '\n';
}

static void put(char letter, long number) {
    char bytes[RECORD];
    record(bytes, letter, number);
    ssize_t written = write(file, bytes, RECORD);
    if (written != RECORD) {
        if (written >= 0) errno = 0;
        fail("write");
    }
    if (verbose && write(1, bytes, RECORD) != RECORD) _exit(4);
}

static void *puts_all(void *letter) {
    for (long number = 0; number < count; number++) put((char)(intptr_t)letter, number);
    return NULL;
}

// Four threads write at the position of one descriptor.
static void threads(char letter) {
    pthread_t each[4];
    for (int at = 0; at < 4; at++)
        if (pthread_create(&each[at], NULL, puts_all, (void *)(intptr_t)(letter + at))) fail("pthread_create");
    for (int at = 0; at < 4; at++) pthread_join(each[at], NULL);
}

// Parent and child write at the position of one description.
static void forks(char letter) {
    pid_t child = fork();
    if (child < 0) fail("fork");
    puts_all((void *)(intptr_t)(letter + (child ? 0 : 1)));
    if (!child) _exit(0);
    int status;
    if (waitpid(child, &status, 0) != child || status) _exit(5);
}

static volatile long ticks;
static char tick_letter;

static void tick(int signal) {
    (void)signal;
    int before = errno;
    put(tick_letter, ticks++);
    errno = before;
}

// A handler writes, whatever it interrupts.
static void handler(char letter) {
    tick_letter = letter + 1;
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &every, NULL);
    puts_all((void *)(intptr_t)letter);
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%ld\n", ticks);
}

// Writes numbers over one another, each a little later.
static void counts(void) {
    for (uint64_t number = 1; number <= (uint64_t)count; number++) {
        if (pwrite(file, &number, sizeof number, 0) != sizeof number) fail("pwrite");
        if (verbose) usleep(1000);
    }
}

// Waits until the last of these numbers is seen in a mapping; none may be less than one before.
static void maps(void) {
    if (ftruncate(file, 4096)) fail("ftruncate");
    volatile uint64_t *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) fail("mmap");
    if (write(1, "mapped\n", 7) != 7) _exit(4);
    time_t patience = time(NULL) + 20;
    for (uint64_t last = 0; last < (uint64_t)count;) {
        uint64_t now = *mapped;
        if (now < last || time(NULL) > patience) {
            fprintf(stderr, "the mapping shows %lu after %lu\n", (unsigned long)now, (unsigned long)last);
            _exit(6);
        }
        last = now;
    }
}

// A standard stream closes the descriptor of a file and opens another one at its number.
static void standard(char letter) {
    char bytes[RECORD];
    if (dup2(file, 1) != 1) fail("dup2");
    for (long number = 0; number < count; number++) {
        record(bytes, letter, number);
        if (write(1, bytes, RECORD) != RECORD) fail("write");
    }
    if (!freopen("reopened", "w", stdout)) fail("freopen");
    record(bytes, letter, count);
    if (write(1, bytes, RECORD) != RECORD) fail("write");
}

// What is written by one descriptor is made durable by another one that was open before.
static void syncs(const char *name, char letter) {
    int other = open(name, O_RDONLY);
    if (other < 0) fail("open");
    puts_all((void *)(intptr_t)letter);
    if (close(file) || fsync(other)) fail("fsync");
    if (write(1, "synced\n", 7) != 7) _exit(4);
    pause();
}

// Writes, and then keeps the file.
static void holds(char letter) {
    puts_all((void *)(intptr_t)letter);
    if (write(1, "written\n", 8) != 8) _exit(4);
    pause();
}

// Makes durable what others have written meanwhile, at a signal.
static void waits(const char *name) {
    sigset_t signals;
    int signal, other = open(name, O_RDONLY);
    if (other < 0) fail("open");
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    if (write(1, "waits\n", 6) != 6) _exit(4);
    if (sigwait(&signals, &signal) || fsync(other)) fail("fsync");
    if (write(1, "synced\n", 7) != 7) _exit(4);
    pause();
}

// Two threads write at the position of a descriptor. Another file takes its number again and again,
// as when a log is rotated: NAME, NAME.1 and so on.
static void rotates(const char *name, char letter) {
    pthread_t each[2];
    for (int at = 0; at < 2; at++)
        if (pthread_create(&each[at], NULL, puts_all, (void *)(intptr_t)(letter + at))) fail("pthread_create");
    for (int at = 1; at <= 40; at++) {
        char next[4096];
        snprintf(next, sizeof next, "%s.%d", name, at);
        int other = open(next, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (other < 0) fail("open");
        usleep(100);
        if (dup2(other, file) != file || close(other)) fail("dup2");
    }
    for (int at = 0; at < 2; at++) pthread_join(each[at], NULL);
}

static void *overwrites(void *unused) {
    (void)unused;
    char bytes[RECORD];
    record(bytes, 'X', 0);
    for (;;)
        if (pwrite(file, bytes, RECORD, 0) != RECORD) fail("pwrite");
    return NULL;
}

// A thread that does nothing but write is cancelled.
static void cancels(void) {
    pthread_t thread;
    void *result;
    if (pthread_create(&thread, NULL, overwrites, NULL)) fail("pthread_create");
    usleep(100000);
    if (pthread_cancel(thread) || pthread_join(thread, &result) || result != PTHREAD_CANCELED) fail("cancel");
}

static volatile int ends;

static void *rereads(void *unused) {
    (void)unused;
    char bytes[RECORD];
    while (!ends)
        if (pread(file, bytes, RECORD, 0) != RECORD) fail("pread");
    return NULL;
}

// Children that a system call makes write, while another thread of the parent reads all the time.
static void clones(char letter) {
    pthread_t thread;
    put(letter, 0);
    if (pthread_create(&thread, NULL, rereads, NULL)) fail("pthread_create");
    usleep(100000);
    for (int at = 1; at <= 20; at++) {
        pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child < 0) fail("clone");
        char bytes[RECORD];
        record(bytes, letter, at);
        if (!child) _exit(pwrite(file, bytes, RECORD, RECORD * at) == RECORD ? 0 : 6);
        int status;
        if (waitpid(child, &status, 0) != child || status) _exit(5);
    }
    ends = 1;
    pthread_join(thread, NULL);
}

// Moves bytes of its own part of a file that others use, in calls of many pieces. None may end early.
static void pieces(char letter) {
    enum { PIECES = 16, SMALL = 128, LARGE = 192 << 10, PART = 8 << 20 };
    static char from[PIECES * LARGE], to[PIECES * LARGE];
    struct iovec out[PIECES], in[PIECES];
    off_t part = (off_t)(letter - 'A') * PART;
    for (long number = 0; number < count; number++) {
        size_t each = number % 64 == 63 ? LARGE : SMALL;
        ssize_t all = (ssize_t)(each * PIECES);
        off_t at = part + (number * 7919 % 1000) * SMALL;
        memset(from, letter + (int)(number % 100), (size_t)all);
        for (int piece = 0; piece < PIECES; piece++) {
            out[piece] = (struct iovec){from + (size_t)piece * each, each};
            in[piece] = (struct iovec){to + (size_t)piece * each, each};
        }
        errno = 0;
        if (lseek(file, at, SEEK_SET) != at) fail("lseek");
        if (writev(file, out, PIECES) != all) fail("writev");
        if (lseek(file, 0, SEEK_CUR) != at + all) fail("the position");
        if (preadv(file, in, PIECES, at) != all) fail("preadv");
        if (memcmp(from, to, (size_t)all)) fail("what was written");
    }
}

int main(int arguments, char **words) {
    if (arguments < 5) return 2;
    const char *mode = words[1];
    char letter = words[3][0];
    count = atol(words[4]);
    verbose = arguments > 5;
    int append = !strcmp(mode, "append") || !strcmp(mode, "handler");
    file = open(words[2], O_RDWR | O_CREAT | O_CLOEXEC | (append ? O_APPEND : 0), 0644);
    if (file < 0) fail("open");
    if (!strcmp(mode, "append") || !strcmp(mode, "writes")) puts_all((void *)(intptr_t)letter);
    else if (!strcmp(mode, "threads")) threads(letter);
    else if (!strcmp(mode, "forks")) forks(letter);
    else if (!strcmp(mode, "handler")) handler(letter);
    else if (!strcmp(mode, "counts")) counts();
    else if (!strcmp(mode, "maps")) maps();
    else if (!strcmp(mode, "standard")) standard(letter);
    else if (!strcmp(mode, "syncs")) syncs(words[2], letter);
    else if (!strcmp(mode, "holds")) holds(letter);
    else if (!strcmp(mode, "waits")) waits(words[2]);
    else if (!strcmp(mode, "rotates")) rotates(words[2], letter);
    else if (!strcmp(mode, "cancels")) cancels();
    else if (!strcmp(mode, "clones")) clones(letter);
    else if (!strcmp(mode, "pieces")) pieces(letter);
    else return 2;
    return close(file) ? 3 : 0;
}
