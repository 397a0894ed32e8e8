/* Records what a process does to the files below one directory, in order: LD_PRELOAD this, with POWER_ROOT (a real path)
 * and POWER_TRACE (where the records go) in the environment.
 *
 * A record is a header of six little-endian numbers and two byte strings. One lock spans each call and its record, so the
 * order of records is the order of effects. A call that this file does not know how to record ends the process: a trace
 * is whole or there is none. `disk.py` reads it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MADE = 1, NAMED, RENAMED, REMOVED, WROTE, CUT, SYNCED };

struct head { uint32_t kind, is_directory; uint64_t file, offset; uint32_t first, second; };

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static char root[PATH_MAX];
static size_t root_length;
static int trace = -1;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) { fprintf(stderr, "recorder: no %s\n", name); abort(); }
    return found;
}

static void refuse(const char *what) {
    fprintf(stderr, "recorder: %s of a recorded file cannot be recorded\n", what);
    abort();
}

__attribute__((constructor)) static void begin(void) {
    const char *place = getenv("POWER_ROOT"), *file = getenv("POWER_TRACE");
    if (!place || !file) return;
    strncpy(root, place, sizeof root - 1);
    root_length = strlen(root);
    trace = REAL(open)(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (trace < 0) abort();
}

static int below(const char *path) {
    return trace >= 0 && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int path_of_fd(int fd, char *out) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    if (n < 0) return 0;
    out[n] = 0;
    return below(out);
}

/* The absolute path of a name, if it lies below the root. */
static int path_of_name(int at, const char *name, char *out) {
    char whole[PATH_MAX * 2];
    if (trace < 0 || !name) return 0;
    if (name[0] == '/') snprintf(whole, sizeof whole, "%s", name);
    else if (at == AT_FDCWD) { if (!getcwd(whole, PATH_MAX)) return 0; strcat(whole, "/"); strncat(whole, name, PATH_MAX - 1); }
    else { if (!path_of_fd(at, whole)) return 0; strcat(whole, "/"); strncat(whole, name, PATH_MAX - 1); }
    size_t length = strlen(whole);
    while (length > 1 && whole[length - 1] == '/') whole[--length] = 0;
    if (length >= PATH_MAX || !below(whole)) return 0;
    if (strstr(whole, "/./") || strstr(whole, "/../") || strstr(whole, "//")) refuse("a path with dots");
    strcpy(out, whole);
    return 1;
}

static void append(struct head head, const char *first, const struct iovec *data, int parts, size_t length) {
    struct iovec all[2 + 64];
    int count = 0;
    if (parts > 64) refuse("a long vector");
    head.first = first ? strlen(first) : 0;
    head.second = length;
    all[count++] = (struct iovec){&head, sizeof head};
    if (first) all[count++] = (struct iovec){(void *)first, head.first};
    size_t wanted = sizeof head + head.first + length;
    for (int i = 0; i < parts && length; i++) {
        size_t part = data[i].iov_len < length ? data[i].iov_len : length;
        all[count++] = (struct iovec){data[i].iov_base, part};
        length -= part;
    }
    if (REAL(writev)(trace, all, count) != (ssize_t)wanted) { perror("recorder: trace"); abort(); }
}

/* Lance names its finished files by system calls of its own, which nobody can stand before: its unfinished ones are
 * remembered, and before the next record it is looked whether one has another name now. */
static struct { char path[PATH_MAX]; uint64_t file; } unfinished[64];

static uint64_t inode_of(const char *path) {
    struct stat found;
    return lstat(path, &found) ? 0 : found.st_ino;
}

static void remember(const char *path, uint64_t file) {
    if (strncmp(strrchr(path, '/') + 1, ".tmp", 4)) return;
    for (int i = 0; i < 64; i++)
        if (!unfinished[i].file) { strcpy(unfinished[i].path, path); unfinished[i].file = file; return; }
    refuse("the 65th unfinished file");
}

static void find_new_name(const char *old, uint64_t file) {
    char path[PATH_MAX * 2], directory[PATH_MAX];
    strcpy(directory, old);
    *strrchr(directory, '/') = 0;
    DIR *open_directory = opendir(directory);
    struct dirent *entry;
    while (open_directory && (entry = readdir(open_directory)))
        if (entry->d_ino == file) {
            snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
            struct iovec second = {path, strlen(path)};
            append((struct head){.kind = RENAMED}, old, &second, 1, second.iov_len);
            closedir(open_directory);
            return;
        }
    if (open_directory) closedir(open_directory);
    append((struct head){.kind = REMOVED}, old, NULL, 0, 0);
}

static void record(struct head head, const char *first, const struct iovec *data, int parts, size_t length) {
    int known = first && (head.kind == RENAMED || head.kind == REMOVED);
    for (int i = 0; i < 64; i++) {
        if (!unfinished[i].file || inode_of(unfinished[i].path) == unfinished[i].file) continue;
        uint64_t file = unfinished[i].file;
        unfinished[i].file = 0;
        if (!known || strcmp(first, unfinished[i].path)) find_new_name(unfinished[i].path, file);
    }
    append(head, first, data, parts, length);
}

static uint64_t inode(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : found.st_ino;
}

#define GUARDED(body) do { pthread_mutex_lock(&lock); body; int saved_ = errno; pthread_mutex_unlock(&lock); errno = saved_; } while (0)

static void made(uint64_t file, int is_directory, const char *path) {
    record((struct head){.kind = MADE, .is_directory = is_directory, .file = file}, NULL, NULL, 0, 0);
    if (!path) return;
    record((struct head){.kind = NAMED, .file = file}, path, NULL, 0, 0);
    if (!is_directory) remember(path, file);
}

static int opened(int (*call)(int, const char *, int, ...), int at, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    int fd, watched = path_of_name(at, name, path) && (flags & (O_CREAT | O_TRUNC | __O_TMPFILE));
    if (!watched) return call(at, name, flags, mode);
    GUARDED({
        int there = (flags & __O_TMPFILE) != __O_TMPFILE && !faccessat(at, name, F_OK, AT_SYMLINK_NOFOLLOW);
        fd = call(at, name, flags, mode);
        if (fd >= 0) {
            if ((flags & __O_TMPFILE) == __O_TMPFILE) made(inode(fd), 0, NULL);
            else if (!there) made(inode(fd), 0, path);
            else if (flags & O_TRUNC) record((struct head){.kind = CUT, .file = inode(fd)}, NULL, NULL, 0, 0);
        }
    });
    return fd;
}

#define MODE(flags, last) mode_t mode = 0; if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, last); mode = va_arg(rest, mode_t); va_end(rest); }

int openat(int at, const char *name, int flags, ...) { MODE(flags, flags) return opened(REAL(openat), at, name, flags, mode); }
int openat64(int at, const char *name, int flags, ...) { MODE(flags, flags) return opened(REAL(openat64), at, name, flags, mode); }
int open(const char *name, int flags, ...) { MODE(flags, flags) return opened(REAL(openat), AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags, flags) return opened(REAL(openat64), AT_FDCWD, name, flags, mode); }
int creat(const char *name, mode_t mode) { return open(name, O_CREAT | O_WRONLY | O_TRUNC, mode); }

static ssize_t wrote(int fd, const struct iovec *data, int parts, ssize_t done, off_t offset) {
    if (done > 0) {
        if (offset < 0) offset = lseek(fd, 0, SEEK_CUR) - done;
        record((struct head){.kind = WROTE, .file = inode(fd), .offset = offset}, NULL, data, parts, done);
    }
    return done;
}

#define WRITES(call, data, parts, offset) \
    char path[PATH_MAX]; ssize_t done; \
    if (trace < 0 || fd == trace || !path_of_fd(fd, path)) return call; \
    GUARDED(done = wrote(fd, data, parts, call, offset)); \
    return done

ssize_t write(int fd, const void *bytes, size_t length) {
    struct iovec data = {(void *)bytes, length};
    WRITES(REAL(write)(fd, bytes, length), &data, 1, -1);
}
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    struct iovec data = {(void *)bytes, length};
    WRITES(REAL(pwrite)(fd, bytes, length, offset), &data, 1, offset);
}
ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t offset) {
    struct iovec data = {(void *)bytes, length};
    WRITES(REAL(pwrite64)(fd, bytes, length, offset), &data, 1, offset);
}
ssize_t writev(int fd, const struct iovec *data, int parts) { WRITES(REAL(writev)(fd, data, parts), data, parts, -1); }
ssize_t pwritev(int fd, const struct iovec *data, int parts, off_t offset) {
    WRITES(REAL(pwritev)(fd, data, parts, offset), data, parts, offset);
}

#define CHANGES(condition, call, after) \
    int result; \
    if (!(condition)) return call; \
    GUARDED({ result = call; if (!result) { after; } }); \
    return result

int ftruncate(int fd, off_t length) {
    char path[PATH_MAX];
    CHANGES(path_of_fd(fd, path), REAL(ftruncate)(fd, length), record((struct head){.kind = CUT, .file = inode(fd), .offset = length}, NULL, NULL, 0, 0));
}
int ftruncate64(int fd, off_t length) { return ftruncate(fd, length); }
int fsync(int fd) {
    char path[PATH_MAX];
    CHANGES(path_of_fd(fd, path), REAL(fsync)(fd), record((struct head){.kind = SYNCED, .file = inode(fd)}, NULL, NULL, 0, 0));
}
int fdatasync(int fd) {
    char path[PATH_MAX];
    CHANGES(path_of_fd(fd, path), REAL(fdatasync)(fd), record((struct head){.kind = SYNCED, .file = inode(fd)}, NULL, NULL, 0, 0));
}

int linkat(int at, const char *old, int to, const char *name, int flags) {
    char path[PATH_MAX];
    CHANGES(path_of_name(to, name, path), REAL(linkat)(at, old, to, name, flags), record((struct head){.kind = NAMED, .file = inode_of(path)}, path, NULL, 0, 0));
}
int link(const char *old, const char *name) { return linkat(AT_FDCWD, old, AT_FDCWD, name, 0); }

static int renamed(int at, const char *old, int to, const char *name, int flags) {
    char from[PATH_MAX], path[PATH_MAX];
    int known = path_of_name(at, old, from);
    int watched = path_of_name(to, name, path);
    if (known != watched || flags & ~RENAME_NOREPLACE) refuse("renaming");
    struct iovec second = {path, strlen(path)};
    CHANGES(watched, REAL(renameat2)(at, old, to, name, flags), record((struct head){.kind = RENAMED}, from, &second, 1, second.iov_len));
}
int rename(const char *old, const char *name) { return renamed(AT_FDCWD, old, AT_FDCWD, name, 0); }
int renameat(int at, const char *old, int to, const char *name) { return renamed(at, old, to, name, 0); }
int renameat2(int at, const char *old, int to, const char *name, unsigned flags) { return renamed(at, old, to, name, flags); }

int unlinkat(int at, const char *name, int flags) {
    char path[PATH_MAX];
    CHANGES(path_of_name(at, name, path), REAL(unlinkat)(at, name, flags), record((struct head){.kind = REMOVED}, path, NULL, 0, 0));
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char *name) { return unlink(name) && errno == EISDIR ? rmdir(name) : 0; }

int mkdirat(int at, const char *name, mode_t mode) {
    char path[PATH_MAX];
    CHANGES(path_of_name(at, name, path), REAL(mkdirat)(at, name, mode), made(inode_of(path), 1, path));
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

/* What nobody does to the files of a table today. */
#define REFUSED(fd, call, what) char path[PATH_MAX]; if (path_of_fd(fd, path)) refuse(what); return call
ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t length, unsigned flags) {
    REFUSED(out, REAL(copy_file_range)(in, from, out, to, length, flags), "a copy");
}
ssize_t sendfile(int out, int in, off_t *offset, size_t length) { REFUSED(out, REAL(sendfile)(out, in, offset, length), "a copy"); }
ssize_t sendfile64(int out, int in, off_t *offset, size_t length) { REFUSED(out, REAL(sendfile64)(out, in, offset, length), "a copy"); }
void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    char path[PATH_MAX];
    if (fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE) && path_of_fd(fd, path)) refuse("a mapping");
    return REAL(mmap)(address, length, protection, flags, fd, offset);
}
