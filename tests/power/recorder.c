/* Records what a process does to the files below a folder, in the order in which a disk would be told of it.
 *
 * Preloaded (LD_PRELOAD) into every process of a load. POWER_FOLDER is the folder, POWER_JOURNAL the file that each call is
 * appended to; several processes share it, as a record is one write with O_APPEND. tests/power/journal.py reads it.
 *
 * The order of the records is what a promise of the disk is judged by, so it errs to the strict side. A change is
 * recorded when it is done. A sync is recorded twice: its beginning before the call, its end after it. It covers the changes recorded
 * before its beginning, and is a promise from its end on.
 *
 * Files are known by their inodes, so that it does not matter by which name or descriptor they are changed. Not seen: writes
 * through a mapping, by io_uring, and by system calls without the C library. Writes of stdio are seen when they are flushed.
 * Whoever records compares the folder at the end with what the journal makes of it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* As in tests/power/journal.py. */
enum kind {
    CREATE = 1, /* file, path (empty: no name yet) */
    WRITE,      /* file, a = offset, data */
    RESIZE,     /* file, a = size */
    EXTEND,     /* file, a = size at least */
    ZERO,       /* file, a = offset, b = length */
    SYNC_BEGIN, /* file or folder, a = thread */
    SYNC_END,   /* the same */
    MKDIR,      /* folder, path */
    RENAME,     /* path, data = new path */
    EXCHANGE,   /* path, data = other path */
    LINK,       /* file, path */
    UNLINK,     /* path */
    RMDIR,      /* path */
    UNSEEN = 99 /* path, data = what cannot be recorded */
};

struct head {
    uint32_t total;
    uint32_t kind;
    uint64_t file;
    uint64_t a;
    uint64_t b;
    uint32_t path_bytes;
    uint32_t data_bytes;
};

static char folder[PATH_MAX];
static size_t folder_bytes;
static char journal[PATH_MAX];
static int journal_fd = -1;
static dev_t journal_dev, folder_dev;
static ino_t journal_ino;

#define REAL(type, name, ...)                                                                                          \
    static type (*real)(__VA_ARGS__);                                                                                  \
    if (!real)                                                                                                         \
    *(void **)&real = dlsym(RTLD_NEXT, name)

static void fail(const char *what) {
    dprintf(2, "recorder: %s: %s\n", what, strerror(errno));
    _exit(97);
}

__attribute__((constructor)) static void begin(void) {
    const char *told = getenv("POWER_FOLDER"), *where = getenv("POWER_JOURNAL");
    struct stat found;
    if (!told || !where || folder_bytes || stat(told, &found))
        return;
    folder_dev = found.st_dev;
    snprintf(journal, sizeof journal, "%s", where);
    if (!realpath(told, folder))
        fail(told);
    folder_bytes = strlen(folder);
}

/* -- the journal --------------------------------------------------------------------------------------------- */

static int journal_descriptor(void) {
    struct stat found;
    if (journal_fd >= 0 && !fstat(journal_fd, &found) && found.st_ino == journal_ino && found.st_dev == journal_dev)
        return journal_fd;
    /* The process has closed it, or it is the first record. */
    int fd = syscall(SYS_openat, AT_FDCWD, journal, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0)
        fail(journal);
    /* Out of the way: programs expect the lowest numbers. */
    journal_fd = fcntl(fd, F_DUPFD_CLOEXEC, 400);
    syscall(SYS_close, fd);
    if (journal_fd < 0 || fstat(journal_fd, &found))
        fail(journal);
    journal_dev = found.st_dev;
    journal_ino = found.st_ino;
    return journal_fd;
}

static void record(enum kind kind, uint64_t file, uint64_t a, uint64_t b, const char *path, const void *data, size_t bytes) {
    int saved = errno;
    size_t path_bytes = path ? strlen(path) : 0;
    struct head head = {sizeof head + path_bytes + bytes, kind, file, a, b, path_bytes, bytes};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)path, path_bytes}, {(void *)data, bytes}};
    if (syscall(SYS_writev, journal_descriptor(), parts, 3) != (ssize_t)head.total)
        fail("cannot append to the journal");
    errno = saved;
}

/* -- what is in the folder ----------------------------------------------------------------------------------- */

/* The path below the folder; NULL if it is elsewhere. */
static const char *below(const char *path) {
    if (strncmp(path, folder, folder_bytes) || (path[folder_bytes] != '/' && path[folder_bytes]))
        return NULL;
    return path + folder_bytes + (path[folder_bytes] == '/');
}

static const char *named(int fd, const char *path, char *buffer) {
    char whole[PATH_MAX], parent[PATH_MAX], link[64];
    if (!folder_bytes || !path)
        return NULL;
    if (path[0] == '/') {
        snprintf(whole, sizeof whole, "%s", path);
    } else {
        char base[PATH_MAX];
        if (fd == AT_FDCWD) {
            if (!getcwd(base, sizeof base))
                return NULL;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            ssize_t got = readlink(link, base, sizeof base - 1);
            if (got < 0)
                return NULL;
            base[got] = 0;
        }
        if ((size_t)snprintf(whole, sizeof whole, "%s/%s", base, path) >= sizeof whole)
            return NULL;
    }
    for (size_t end = strlen(whole); end > 1 && whole[end - 1] == '/'; end--)
        whole[end - 1] = 0;
    /* The last part may be a symbolic link, which is itself meant. */
    char *slash = strrchr(whole, '/');
    if (!slash)
        return NULL;
    const char *last = slash + 1;
    char name[NAME_MAX + 1];
    snprintf(name, sizeof name, "%s", last);
    slash[slash == whole] = 0;
    if (!realpath(whole, parent))
        return NULL;
    if ((size_t)snprintf(buffer, PATH_MAX, "%s/%s", parent, name) >= PATH_MAX)
        return NULL;
    return below(buffer);
}

/* The inode of a file or folder below the folder that this descriptor is of; 0 if it is of something else. */
static uint64_t held(int fd) {
    struct stat found;
    char link[64], path[PATH_MAX];
    int saved = errno;
    uint64_t file = 0;
    if (folder_bytes && !fstat(fd, &found) && found.st_dev == folder_dev &&
        (S_ISREG(found.st_mode) || S_ISDIR(found.st_mode))) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t got = readlink(link, path, sizeof path - 1);
        if (got > 0) {
            path[got] = 0;
            if (below(path))
                file = found.st_ino;
        }
    }
    errno = saved;
    return file;
}

static uint64_t inode(int fd, const char *path, int flags) {
    struct stat found;
    return fstatat(fd, path, &found, flags) ? 0 : found.st_ino;
}

/* Record bytes that got into the file by another way than from this process' memory. */
static void record_range(int fd, uint64_t file, off_t offset, size_t bytes) {
    char link[64], *data = malloc(bytes ? bytes : 1);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int reading = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC);
    if (!data || reading < 0)
        fail("cannot read what was copied");
    ssize_t got = syscall(SYS_pread64, reading, data, bytes, offset);
    syscall(SYS_close, reading);
    if (got > 0)
        record(WRITE, file, offset, 0, "", data, got);
    free(data);
}

/* -- opening ------------------------------------------------------------------------------------------------- */

static int has_mode(int flags) { return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE; }

static void opened(int fd, const char *path, int flags, int existed) {
    int saved = errno;
    uint64_t file = held(fd);
    if (file) {
        if ((flags & O_TMPFILE) == O_TMPFILE)
            record(CREATE, file, 0, 0, "", NULL, 0);
        else if (flags & O_CREAT && !existed)
            record(CREATE, file, 0, 0, path, NULL, 0);
        else if (flags & O_TRUNC && (flags & O_ACCMODE) != O_RDONLY)
            record(RESIZE, file, 0, 0, "", NULL, 0);
        if (flags & O_DSYNC)
            record(UNSEEN, file, 0, 0, path, "O_DSYNC", 7);
    }
    errno = saved;
}

static int open_at(int (*real)(int, const char *, int, ...), int at, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    const char *name = flags & (O_CREAT | O_TRUNC | O_DSYNC) || has_mode(flags) ? named(at, path, buffer) : NULL;
    int existed = name && inode(at, path, 0);
    int fd = real(at, path, flags, mode);
    if (fd >= 0 && name)
        opened(fd, name, flags, existed);
    return fd;
}

#define MODE                                                                                                           \
    mode_t mode = 0;                                                                                                   \
    if (has_mode(flags)) {                                                                                             \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode = va_arg(more, mode_t);                                                                                   \
        va_end(more);                                                                                                  \
    }

int openat(int at, const char *path, int flags, ...) {
    MODE REAL(int, "openat", int, const char *, int, ...);
    return open_at(real, at, path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) {
    MODE REAL(int, "openat64", int, const char *, int, ...);
    return open_at(real, at, path, flags, mode);
}
int open(const char *path, int flags, ...) { MODE return openat(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return openat64(AT_FDCWD, path, flags, mode); }
int __open_2(const char *path, int flags) { return openat(AT_FDCWD, path, flags); }
int __open64_2(const char *path, int flags) { return openat64(AT_FDCWD, path, flags); }
int __openat_2(int at, const char *path, int flags) { return openat(at, path, flags); }
int __openat64_2(int at, const char *path, int flags) { return openat64(at, path, flags); }
int creat(const char *path, mode_t mode) { return openat(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return openat64(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* -- stdio: its writes are calls within the C library ------------------------------------------------------------ */

static FILE *open_stream(FILE *(*real)(const char *, const char *), const char *path, const char *mode) {
    char buffer[PATH_MAX];
    const char *name = strpbrk(mode, "wa+") ? named(AT_FDCWD, path, buffer) : NULL;
    int existed = name && inode(AT_FDCWD, path, 0);
    FILE *stream = real(path, mode);
    if (stream && name)
        opened(fileno(stream), name, mode[0] == 'r' ? O_RDWR : O_WRONLY | O_CREAT | (mode[0] == 'w' ? O_TRUNC : 0), existed);
    return stream;
}
FILE *fopen(const char *path, const char *mode) {
    REAL(FILE *, "fopen", const char *, const char *);
    return open_stream(real, path, mode);
}
FILE *fopen64(const char *path, const char *mode) {
    REAL(FILE *, "fopen64", const char *, const char *);
    return open_stream(real, path, mode);
}

static void flushed(FILE *stream) {
    struct stat found;
    int fd = fileno(stream);
    uint64_t file = fd < 0 ? 0 : held(fd);
    int saved = errno;
    if (file && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY && !fstat(fd, &found) && S_ISREG(found.st_mode))
        record_range(fd, file, 0, found.st_size);
    errno = saved;
}
int fflush(FILE *stream) {
    REAL(int, "fflush", FILE *);
    int result = real(stream);
    if (stream && !result && folder_bytes)
        flushed(stream);
    return result;
}
int fclose(FILE *stream) {
    REAL(int, "fclose", FILE *);
    if (folder_bytes)
        fflush(stream);
    return real(stream);
}

/* -- writing ------------------------------------------------------------------------------------------------- */

ssize_t write(int fd, const void *data, size_t bytes) {
    REAL(ssize_t, "write", int, const void *, size_t);
    ssize_t done = real(fd, data, bytes);
    uint64_t file = done > 0 ? held(fd) : 0;
    if (file)
        record(WRITE, file, lseek(fd, 0, SEEK_CUR) - done, 0, "", data, done);
    return done;
}

static ssize_t pwritten(int fd, const void *data, ssize_t done, off_t offset) {
    uint64_t file = done > 0 ? held(fd) : 0;
    if (file)
        record(WRITE, file, offset, 0, "", data, done);
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    return pwritten(fd, data, real(fd, data, bytes, offset), offset);
}
ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t offset) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off_t);
    return pwritten(fd, data, real(fd, data, bytes, offset), offset);
}

static ssize_t vector_written(int fd, const struct iovec *parts, int count, ssize_t done, off_t offset) {
    uint64_t file = done > 0 ? held(fd) : 0;
    ssize_t left = done;
    for (int i = 0; file && i < count && left > 0; i++) {
        size_t bytes = parts[i].iov_len < (size_t)left ? parts[i].iov_len : (size_t)left;
        record(WRITE, file, offset + done - left, 0, "", parts[i].iov_base, bytes);
        left -= bytes;
    }
    return done;
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    ssize_t done = real(fd, parts, count);
    return done > 0 && held(fd) ? vector_written(fd, parts, count, done, lseek(fd, 0, SEEK_CUR) - done) : done;
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    REAL(ssize_t, "pwritev", int, const struct iovec *, int, off_t);
    return vector_written(fd, parts, count, real(fd, parts, count, offset), offset);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t offset) {
    REAL(ssize_t, "pwritev64", int, const struct iovec *, int, off_t);
    return vector_written(fd, parts, count, real(fd, parts, count, offset), offset);
}

ssize_t sendfile(int out, int in, off_t *offset, size_t bytes) {
    REAL(ssize_t, "sendfile", int, int, off_t *, size_t);
    ssize_t done = real(out, in, offset, bytes);
    uint64_t file = done > 0 ? held(out) : 0;
    if (file)
        record_range(out, file, lseek(out, 0, SEEK_CUR) - done, done);
    return done;
}
ssize_t sendfile64(int out, int in, off_t *offset, size_t bytes) { return sendfile(out, in, offset, bytes); }
ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t bytes, unsigned flags) {
    REAL(ssize_t, "copy_file_range", int, off_t *, int, off_t *, size_t, unsigned);
    ssize_t done = real(in, from, out, to, bytes, flags);
    uint64_t file = done > 0 ? held(out) : 0;
    if (file)
        record_range(out, file, (to ? *to : lseek(out, 0, SEEK_CUR)) - done, done);
    return done;
}

static int resized(int fd, int result, off_t size) {
    uint64_t file = result ? 0 : held(fd);
    if (file)
        record(RESIZE, file, size, 0, "", NULL, 0);
    return result;
}
int ftruncate(int fd, off_t size) {
    REAL(int, "ftruncate", int, off_t);
    return resized(fd, real(fd, size), size);
}
int ftruncate64(int fd, off_t size) {
    REAL(int, "ftruncate64", int, off_t);
    return resized(fd, real(fd, size), size);
}
static int resized_path(const char *path, int result, off_t size) {
    char buffer[PATH_MAX];
    if (!result && named(AT_FDCWD, path, buffer))
        record(RESIZE, inode(AT_FDCWD, path, 0), size, 0, "", NULL, 0);
    return result;
}
int truncate(const char *path, off_t size) {
    REAL(int, "truncate", const char *, off_t);
    return resized_path(path, real(path, size), size);
}
int truncate64(const char *path, off_t size) {
    REAL(int, "truncate64", const char *, off_t);
    return resized_path(path, real(path, size), size);
}

static int allocated(int fd, int result, int mode, off_t offset, off_t bytes) {
    uint64_t file = result ? 0 : held(fd);
    if (file && mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
        record(ZERO, file, offset, bytes, "", NULL, 0);
    else if (file && mode & ~FALLOC_FL_KEEP_SIZE)
        record(UNSEEN, file, 0, 0, "", "fallocate", 9);
    if (file && !(mode & FALLOC_FL_KEEP_SIZE))
        record(EXTEND, file, offset + bytes, 0, "", NULL, 0);
    return result;
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    REAL(int, "fallocate", int, int, off_t, off_t);
    return allocated(fd, real(fd, mode, offset, bytes), mode, offset, bytes);
}
int fallocate64(int fd, int mode, off_t offset, off_t bytes) {
    REAL(int, "fallocate64", int, int, off_t, off_t);
    return allocated(fd, real(fd, mode, offset, bytes), mode, offset, bytes);
}
int posix_fallocate(int fd, off_t offset, off_t bytes) {
    REAL(int, "posix_fallocate", int, off_t, off_t);
    return allocated(fd, real(fd, offset, bytes), 0, offset, bytes);
}
int posix_fallocate64(int fd, off_t offset, off_t bytes) {
    REAL(int, "posix_fallocate64", int, off_t, off_t);
    return allocated(fd, real(fd, offset, bytes), 0, offset, bytes);
}

/* -- syncing: sync_file_range promises nothing of sizes and names, so it is no sync here -------------------------------- */

static int synced(int (*real)(int), int fd) {
    uint64_t file = held(fd), thread = syscall(SYS_gettid);
    if (file)
        record(SYNC_BEGIN, file, thread, 0, "", NULL, 0);
    int result = real(fd);
    if (file && !result)
        record(SYNC_END, file, thread, 0, "", NULL, 0);
    return result;
}
int fsync(int fd) {
    REAL(int, "fsync", int);
    return synced(real, fd);
}
int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    return synced(real, fd);
}

/* -- names --------------------------------------------------------------------------------------------------- */

static int rename_with(int from, const char *old, int to, const char *new, unsigned flags) {
    char buffers[2][PATH_MAX];
    const char *before = named(from, old, buffers[0]), *after = named(to, new, buffers[1]);
    /* The old C library of a wheel has no renameat2. */
    int result = syscall(SYS_renameat2, from, old, to, new, flags);
    if (!result && before && after)
        record(flags & 2 /* RENAME_EXCHANGE */ ? EXCHANGE : RENAME, 0, 0, 0, before, after, strlen(after));
    else if (!result && (before || after))
        record(UNSEEN, 0, 0, 0, before ? before : after, "a rename out of or into the folder", 34);
    return result;
}
int rename(const char *old, const char *new) { return rename_with(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return rename_with(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return rename_with(from, old, to, new, flags);
}

int linkat(int from, const char *old, int to, const char *new, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int);
    char buffer[PATH_MAX];
    const char *name = named(to, new, buffer);
    int result = real(from, old, to, new, flags);
    if (!result && name)
        record(LINK, inode(to, new, AT_SYMLINK_NOFOLLOW), 0, 0, name, NULL, 0);
    return result;
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int unlinkat(int at, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    char buffer[PATH_MAX];
    const char *name = named(at, path, buffer);
    int result = real(at, path, flags);
    if (!result && name)
        record(flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, 0, 0, name, NULL, 0);
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    struct stat found;
    return unlinkat(AT_FDCWD, path, !lstat(path, &found) && S_ISDIR(found.st_mode) ? AT_REMOVEDIR : 0);
}

int mkdirat(int at, const char *path, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    char buffer[PATH_MAX];
    const char *name = named(at, path, buffer);
    int result = real(at, path, mode);
    if (!result && name)
        record(MKDIR, inode(at, path, 0), 0, 0, name, NULL, 0);
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
