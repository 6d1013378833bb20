/* Preloaded into the agent: system calls that never return, as with a disk or a name server that does not respond.

HANG is a folder. From the moment at which a file `fsync`, `lookup` or `lstat` is in it, that call hangs: `lookup` for names
in `.test`, `lstat` for the path in HANG_PATH. A hanging call creates the file `hanging` there. Declared by hand, since
the compiler may be installed without the headers of libc. */

#define NEXT ((void *)-1L)

extern int access(const char *, int), creat(const char *, unsigned), pause(void), strcmp(const char *, const char *);
extern int snprintf(char *, unsigned long, const char *, ...);
extern char *getenv(const char *), *strstr(const char *, const char *);
extern void *dlsym(void *, const char *);

static void hang(const char *call)
{
    char path[4096];
    const char *folder = getenv("HANG");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "", call);
    if (!folder || access(path, 0) != 0)
        return;
    snprintf(path, sizeof path, "%s/hanging", folder);
    creat(path, 0600);
    for (;;)
        pause();
}

int fsync(int file)
{
    hang("fsync");
    return ((int (*)(int))dlsym(NEXT, "fsync"))(file);
}

int fdatasync(int file)
{
    hang("fsync");
    return ((int (*)(int))dlsym(NEXT, "fdatasync"))(file);
}

static int look(const char *name, const char *path, void *status)
{
    const char *stuck = getenv("HANG_PATH");
    if (stuck && strcmp(path, stuck) == 0)
        hang("lstat");
    return ((int (*)(const char *, void *))dlsym(NEXT, name))(path, status);
}

int lstat(const char *path, void *status)
{
    return look("lstat", path, status);
}

int lstat64(const char *path, void *status)
{
    return look("lstat64", path, status);
}

int getaddrinfo(const char *host, const char *service, const void *hints, void *found)
{
    if (host && strstr(host, ".test"))
        hang("lookup");
    return ((int (*)(const char *, const char *, const void *, void *))dlsym(NEXT, "getaddrinfo"))(
        host, service, hints, found);
}
