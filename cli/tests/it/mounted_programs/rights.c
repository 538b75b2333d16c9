/* rights MOUNT FOLDER
 *
 * Gives up rights in each of the ways below, each in a process that is a client of the file system
 * whose files are in FOLDER. Then nothing of FOLDER is open or mapped there but the mount's files,
 * no socket is left, and the process goes on to write to its file, from where it was. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534, LINES = 50 };
static const char *mount_, *folder;
/* /proc, which a process has that has changed its root, too. */
static int proc_;
static const char LINE[] = "a line\n";
extern int pivot_root(const char *, const char *);

static void fail(const char *way, const char *what) {
  fprintf(stderr, "%s: %s (errno %d)\n", way, what, errno);
  _exit(1);
}

/* Whether a name is one of a medium, of a log, or of what a client shares with the service. */
static int is_of_store(const char *name) {
  const char *found = strstr(name, folder);
  if (found && strncmp(name, mount_, strlen(mount_)) != 0) return 1;
  return strstr(name, "sietch-log") || strstr(name, "memfd:sietch-fence") || strstr(name, "socket:");
}

/* Descriptors and mappings of the file system, apart from the mount's files. */
static int kept(int prints) {
  int count = 0;
  char name[4096];
  prctl(PR_SET_DUMPABLE, 1);
  /* The first ones are the output, which the test has in its folder. */
  for (int fd = 3; fd < 4096; fd++) {
    char link[64];
    snprintf(link, sizeof link, "self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, proc_, link, name, sizeof name - 1);
    if (length < 0) continue;
    name[length] = 0;
    if (is_of_store(name)) {
      count++;
      if (prints) fprintf(stderr, "descriptor %d: %s\n", fd, name);
    }
  }
  int opened = openat(proc_, "self/maps", O_RDONLY);
  FILE *maps = opened < 0 ? NULL : fdopen(opened, "r");
  if (!maps) fail("/proc/self/maps", "cannot be read");
  while (fgets(name, sizeof name, maps)) {
    char access[5], *path = strchr(name, '/');
    if (path && sscanf(name, "%*s %4s", access) == 1 && access[3] == 's' && is_of_store(path)) {
      count++;
      if (prints) fprintf(stderr, "mapping: %s", name);
    }
  }
  fclose(maps);
  return count;
}

static int install_filter(void) {
  struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {1, all};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

static int drop_capabilities(void) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct none[2] = {{0}};
  return (int)syscall(SYS_capset, &header, none);
}

/* One that runs in a child of `clone`. */
static int in_child(void *way) {
  if (kept(1)) {
    fprintf(stderr, "%s: the child has what is its parent's\n", (const char *)way);
    return 1;
  }
  return 0;
}

static int ended_well(pid_t child) {
  int status = -1;
  return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}

static int child_of_clone(const char *way) {
  static char stack[1 << 16] __attribute__((aligned(16)));
  return ended_well(clone(in_child, stack + sizeof stack, SIGCHLD, (void *)way));
}

static int child_of(pid_t child, const char *way) {
  if (child == 0) _exit(in_child((void *)way));
  return ended_well(child);
}

/* A child in the same memory, with descriptors of its own. */
static int child_in_same_memory(void) {
  static char stack[1 << 18] __attribute__((aligned(16)));
  return -ended_well(clone(in_child, stack + sizeof stack, CLONE_VM | SIGCHLD, "CLONE_VM"));
}

static char child_stack[1 << 18] __attribute__((aligned(16)));

/* A child for which this process waits, in the same memory where the library lets it be. */
static int waited_for(int (*run)(void *), void *argument) {
  return ended_well(clone(run, child_stack + sizeof child_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, argument));
}

/* The same, past the library: it stays in the same memory. */
static int unseen(int (*run)(void *), void *argument) {
  int (*own)(int (*)(void *), void *, int, void *, ...) = dlsym(dlopen("libc.so.6", RTLD_NOW), "clone");
  return ended_well(own(run, child_stack + sizeof child_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, argument));
}

static int close_range_of_all(void *unused) { return close_range(3, ~0U, 0); }

static int close_from(void *unused) {
  closefrom(3);
  return 0;
}

static int close_each(void *unused) {
  for (int fd = 3; fd < 4096; fd++) close(fd);
  return 0;
}

static int put_others_there(void *unused) {
  for (int fd = 3; fd < 1024; fd++) dup2(2, fd);
  return 0;
}

static int give_up(void *unused) { return (int)syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY); }

static int change_root(void *unused) { return chroot("/proc"); }

static int in_vfork(int (*run)(void *), void *argument) {
  pid_t child = vfork();
  if (child == 0) _exit(run(argument));
  return ended_well(child);
}

/* The C library's own child in the same memory. */
static int spawned(void) {
  char *arguments[] = {"true", NULL};
  posix_spawn_file_actions_t actions;
  pid_t child = -1;
  if (posix_spawn_file_actions_init(&actions) || posix_spawn_file_actions_addclosefrom_np(&actions, 3)) return 1;
  if (posix_spawnp(&child, "true", &actions, NULL, arguments, environ)) return 1;
  return ended_well(child);
}

/* A child with this process's root folder, and descriptors and memory of its own. */
static int child_of_same_root(void) {
  return -ended_well(clone(change_root, child_stack + sizeof child_stack, CLONE_FS | SIGCHLD, NULL));
}

/* A child with this process's descriptors, and memory of its own. */
static int child_of_same_table(void) {
  return -ended_well(clone(in_child, child_stack + sizeof child_stack, CLONE_FILES | SIGCHLD, "CLONE_FILES"));
}

#define WAYS(WAY)                                                      \
  WAY(setuid, setuid(NOBODY))                                          \
  WAY(setgid, setgid(NOBODY))                                          \
  WAY(setreuid, setreuid(NOBODY, NOBODY))                              \
  WAY(setregid, setregid(NOBODY, NOBODY))                              \
  WAY(setresuid, setresuid(NOBODY, NOBODY, NOBODY))                    \
  WAY(setresgid, setresgid(NOBODY, NOBODY, NOBODY))                    \
  WAY(seteuid, seteuid(NOBODY))                                        \
  WAY(setegid, setegid(NOBODY))                                        \
  WAY(setfsuid, setfsuid(NOBODY))                                      \
  WAY(setfsgid, setfsgid(NOBODY))                                      \
  WAY(setgroups, setgroups(0, NULL))                                   \
  WAY(initgroups, initgroups("nobody", NOBODY))                        \
  WAY(raw_setresuid, syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY))   \
  WAY(raw_setfsuid, syscall(SYS_setfsuid, NOBODY))                     \
  WAY(raw_setgroups, syscall(SYS_setgroups, 0, NULL))                  \
  WAY(capset, drop_capabilities())                                     \
  WAY(bounding_set, prctl(PR_CAPBSET_DROP, CAP_SYS_MODULE, 0, 0, 0))   \
  WAY(chroot, chroot("/proc"))                                         \
  WAY(unshare, unshare(CLONE_NEWNS))                                   \
  WAY(own_table, unshare(CLONE_FILES))                                 \
  WAY(raw_own_table, syscall(SYS_unshare, CLONE_FILES))                \
  WAY(closed_in_own_table, close_range(4000, 4001, CLOSE_RANGE_UNSHARE)) \
  WAY(same_memory, child_in_same_memory())                             \
  WAY(same_table, child_of_same_table())                               \
  WAY(same_root, child_of_same_root())                                 \
  WAY(seccomp, install_filter())

/* Those whose child must have nothing; the process itself stays a client. */
#define CHILDREN(WAY)                                                  \
  WAY(fork, child_of(fork(), "fork"))                                  \
  WAY(bare_fork, child_of(_Fork(), "_Fork"))                           \
  WAY(clone, child_of_clone("clone"))                                  \
  WAY(raw_clone, child_of((pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0), "SYS_clone")) \
  WAY(raw_fork, child_of((pid_t)syscall(SYS_fork), "SYS_fork"))        \
  WAY(vfork, in_vfork(in_child, "vfork"))                              \
  WAY(raw_vfork, child_of((pid_t)syscall(SYS_vfork), "SYS_vfork"))     \
  WAY(waited_for, waited_for(in_child, "CLONE_VFORK"))                 \
  WAY(closes_range, waited_for(close_range_of_all, NULL))              \
  WAY(closes_from, waited_for(close_from, NULL))                       \
  WAY(closes_each, waited_for(close_each, NULL))                       \
  WAY(puts_others, waited_for(put_others_there, NULL))                 \
  WAY(gives_up, waited_for(give_up, NULL))                             \
  WAY(changes_root, waited_for(change_root, NULL))                     \
  WAY(vfork_closes, in_vfork(close_from, NULL))                        \
  WAY(spawned, spawned())

/* Those in the memory of a process that does not know of them. */
#define UNSEEN(WAY)                                                    \
  WAY(unseen_closes_range, unseen(close_range_of_all, NULL))           \
  WAY(unseen_closes_each, unseen(close_each, NULL))                    \
  WAY(unseen_gives_up, unseen(give_up, NULL))                          \
  WAY(unseen_changes_root, unseen(change_root, NULL))

/* Makes this process a client, with a file; its descriptor. */
static int begin(const char *way) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", mount_, way);
  int fd = open(path, O_CREAT | O_RDWR | O_EXCL, 0600);
  if (fd < 0) fail(way, "cannot make its file");
  for (int i = 0; i < LINES; i++)
    if (write(fd, LINE, sizeof LINE - 1) != sizeof LINE - 1) fail(way, "cannot write");
  if (!kept(0)) fail(way, "is no client before, so this proves nothing");
  return fd;
}

static void go_on(const char *way, int fd) {
  static char whole[4 * LINES * sizeof LINE];
  for (int i = 0; i < LINES; i++)
    if (write(fd, LINE, sizeof LINE - 1) != sizeof LINE - 1) fail(way, "cannot write after it");
  if (lseek(fd, 0, SEEK_CUR) != 2 * LINES * (sizeof LINE - 1)) fail(way, "has lost its position");
  if (pread(fd, whole, sizeof whole, 0) != 2 * LINES * (sizeof LINE - 1)) fail(way, "has lost bytes");
  for (int i = 0; i < 2 * LINES; i++)
    if (memcmp(whole + i * (sizeof LINE - 1), LINE, sizeof LINE - 1)) fail(way, "has other bytes");
}

/* Syncs a file of its own until the process ends. */
static void *sync_forever(void *file) {
  int fd = *(int *)file;
  for (long i = 0;; i++)
    if (pwrite(fd, &i, sizeof i, 0) == sizeof i) fsync(fd);
  return NULL;
}

static void start_syncing(const char *way) {
  static int fd;
  char path[4096];
  pthread_t thread;
  snprintf(path, sizeof path, "%s/%s.synced", mount_, way);
  fd = open(path, O_CREAT | O_RDWR, 0600);
  if (fd < 0 || pthread_create(&thread, NULL, sync_forever, &fd)) fail(way, "cannot start a thread");
}

static int in_process(const char *way, void (*run)(const char *)) {
  pid_t child = fork();
  if (child == 0) {
    run(way);
    _exit(0);
  }
  return ended_well(child);
}

#define GIVES_UP(NAME, CALL)                                           \
  static void up_##NAME(const char *way) {                             \
    int fd = begin(way);                                               \
    start_syncing(way);                                                \
    if ((CALL) < 0) fail(way, "the call failed");                      \
    /* Before the filter that reads of /proc need no more. */          \
    if (kept(1)) fail(way, "keeps these");                             \
    go_on(way, fd);                                                    \
    if (kept(1)) fail(way, "has become a client again");               \
  }
WAYS(GIVES_UP)

#define HAS_CHILD(NAME, CALL)                                          \
  static void of_##NAME(const char *way) {                             \
    int fd = begin(way);                                               \
    if (CALL) fail(way, "its child");                                  \
    if (!kept(0)) fail(way, "the child has ended its parent's client"); \
    go_on(way, fd);                                                    \
    if (setuid(NOBODY)) fail(way, "setuid failed");                    \
    if (kept(1)) fail(way, "keeps these");                             \
  }
CHILDREN(HAS_CHILD)

#define HAS_UNSEEN(NAME, CALL)                                         \
  static void of_##NAME(const char *way) {                             \
    int fd = begin(way);                                               \
    if (CALL) fail(way, "its child");                                  \
    if (setuid(NOBODY)) fail(way, "setuid failed");                    \
    if (kept(1)) fail(way, "keeps these");                             \
    go_on(way, fd);                                                    \
  }
UNSEEN(HAS_UNSEEN)

/* A call that fails takes nothing. */
static void refused(const char *way) {
  int fd = begin(way);
  if (setgroups(1 << 20, NULL) == 0) fail(way, "it succeeded");
  go_on(way, fd);
  if (!kept(0)) fail(way, "is no client again");
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  mount_ = arguments[1];
  folder = arguments[2];
  proc_ = open("/proc", O_PATH | O_DIRECTORY);
  if (proc_ < 0) fail("/proc", "cannot be opened");
  int bad = in_process("refused", refused);
#define RUN_UP(NAME, CALL) bad += in_process(#NAME, up_##NAME);
  WAYS(RUN_UP)
#define RUN_OF(NAME, CALL) bad += in_process(#NAME, of_##NAME);
  CHILDREN(RUN_OF)
  UNSEEN(RUN_OF)
  return bad != 0;
}
