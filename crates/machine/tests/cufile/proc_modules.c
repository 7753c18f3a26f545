/* Loaded before cuFile on machines whose kernel has no modules and so no /proc/modules: cuFile spins
 * for ever there. Whoever opens the list of modules gets an empty one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *instead(const char *path)
{
    return path != NULL && strcmp(path, "/proc/modules") == 0 ? "/dev/null" : path;
}

FILE *fopen(const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen");
    return real(instead(path), mode);
}

FILE *fopen64(const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen64");
    return real(instead(path), mode);
}

#define OPEN(name)                                                     \
    int name(const char *path, int flags, ...)                         \
    {                                                                  \
        int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
        va_list rest;                                                  \
        va_start(rest, flags);                                         \
        int mode = va_arg(rest, int);                                  \
        va_end(rest);                                                  \
        return real(instead(path), flags, mode);                       \
    }

OPEN(open)
OPEN(open64)
