/* Preloaded: a disk that returns EIO for some of the reads of one file, at a regular interval. The file is the
one with a path that begins with the text given to `fail_reads`; the reads are counted from that call on, from 1. Declared by
hand, since the compiler may be installed without the headers of libc. */

#define NEXT ((void *)-1L)
#define EIO 5

extern int snprintf(char *, unsigned long, const char *, ...), strncmp(const char *, const char *, unsigned long);
extern unsigned long strlen(const char *);
extern char *strncpy(char *, const char *, unsigned long);
extern long readlink(const char *, char *, unsigned long);
extern int *__errno_location(void);
extern void *dlsym(void *, const char *);

static char failing[4096];
static long first, number, step, seen;

void fail_reads(const char *path, long from, long count, long every)
{
    strncpy(failing, path, sizeof failing - 1);
    first = from;
    number = count;
    step = every;
    seen = 0;
}

long reads_seen(void)
{
    return seen;
}

static int fails(int file)
{
    char link[64], path[4096];
    long length;
    if (!failing[0])
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    if (strncmp(path, failing, strlen(failing)) != 0)
        return 0;
    seen++;
    if (seen < first || seen >= first + number || (seen - first) % step)
        return 0;
    *__errno_location() = EIO;
    return 1;
}

long read(int file, void *to, unsigned long size)
{
    return fails(file) ? -1 : ((long (*)(int, void *, unsigned long))dlsym(NEXT, "read"))(file, to, size);
}

long pread(int file, void *to, unsigned long size, long at)
{
    return fails(file) ? -1 : ((long (*)(int, void *, unsigned long, long))dlsym(NEXT, "pread"))(file, to, size, at);
}

long pread64(int file, void *to, unsigned long size, long at)
{
    return fails(file) ? -1 : ((long (*)(int, void *, unsigned long, long))dlsym(NEXT, "pread64"))(file, to, size, at);
}
