/* Two GPUs that exist only in the processes that load this as libcuda.so.1. Their memory has addresses that no core
 * may touch; what they hold lies elsewhere, and only copies get there. The runtime counts them against the order of
 * their PCI addresses. Tests read what they hold with fake_read, and count what was not freed with fake_alive.
 *
 * What an allocation holds is a memory file, and its handle for other processes says which one, of which process: it
 * is stale once the memory was freed or the process is gone. As with CUDA, a process cannot open a handle of its own. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    OK = 0, INVALID = 1, NO_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400,
    GPUS = 2, MOST = 4096, DEPTH = 64, DEVICE_MEMORY = 2, MEMORY_TYPE = 2, DEVICE_ORDINAL = 9,
};
static const char *const BUS[GPUS] = {"0000:81:00.0", "0000:41:00.0"};
static const size_t MEMORY = (size_t)1 << 34;

static struct { uint64_t at; size_t len; unsigned char *held; int file, device, opened; } table[MOST];
static __thread int current[DEPTH], depth;

/* What another process opens memory by: 64 bytes, as CUDA's. */
typedef struct { int64_t process; int64_t file; uint64_t inode; uint64_t len; int64_t device; char rest[24]; } Ipc;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned char *held(uint64_t at, size_t len) {
    unsigned char *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST && !found; i++)
        if (table[i].held && at >= table[i].at && at + len <= table[i].at + table[i].len)
            found = table[i].held + (at - table[i].at);
    pthread_mutex_unlock(&lock);
    return found;
}

int fake_read(void *to, uint64_t at, size_t len) {
    unsigned char *from = held(at, len);
    return from ? (memcpy(to, from, len), OK) : INVALID;
}

int fake_alive(void) {
    int alive = 0;
    for (int i = 0; i < MOST; i++) alive += table[i].held != NULL;
    return alive;
}

int cuInit(unsigned flags) { return flags ? INVALID : OK; }
int cuDeviceGetCount(int *count) { return *count = GPUS, OK; }
int cuDeviceGet(int *device, int ordinal) { return ordinal >= GPUS ? INVALID : (*device = ordinal, OK); }
int cuDeviceGetName(char *text, int len, int device) { return snprintf(text, len, "Fake %d", device), OK; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return (void)device, *bytes = MEMORY, OK; }
int cuDeviceGetPCIBusId(char *text, int len, int device) { return snprintf(text, len, "%s", BUS[device]), OK; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)(intptr_t)(device + 1), OK; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, OK; }
int cuCtxPushCurrent_v2(void *context) {
    if (!context || depth == DEPTH) return INVALID;
    return current[depth++] = (int)(intptr_t)context - 1, OK;
}
int cuCtxPopCurrent_v2(void **context) {
    if (depth == 0) return INVALID_CONTEXT;
    return *context = (void *)(intptr_t)(current[--depth] + 1), OK;
}
int cuGetErrorString(int code, const char **text) {
    switch (code) {
    case INVALID: *text = "invalid argument"; break;
    case NO_MEMORY: *text = "out of memory"; break;
    case INVALID_CONTEXT: *text = "invalid device context"; break;
    case INVALID_HANDLE: *text = "invalid resource handle"; break;
    default: return INVALID;
    }
    return OK;
}
/* Compute capability 9.0; nothing else is said. */
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    if (attribute != 75 && attribute != 76) return INVALID;
    return *value = attribute == 75 ? 9 : 0, OK;
}
int cuDeviceCanAccessPeer(int *can, int device, int peer) { return *can = device != peer, OK; }
int cuCtxEnablePeerAccess(void *peer, unsigned flags) { return peer && !flags ? OK : INVALID; }
int cuMemGetInfo_v2(size_t *left, size_t *total) { return *left = *total = MEMORY, OK; }

/* Gives memory addresses of its own, with `file` behind them. */
static int add(uint64_t *at, size_t len, int file, int device, int opened) {
    unsigned char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void *address = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || address == MAP_FAILED) return NO_MEMORY;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < MOST && table[i].held) i++;
    if (i < MOST) {
        table[i].at = *at = (uint64_t)address, table[i].len = len, table[i].held = memory;
        table[i].file = file, table[i].device = device, table[i].opened = opened;
    }
    pthread_mutex_unlock(&lock);
    return i < MOST ? OK : NO_MEMORY;
}

static int take_away(uint64_t at, int opened) {
    int done = INVALID;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST && done != OK; i++)
        if (table[i].held && table[i].at == at && table[i].opened == opened) {
            munmap((void *)at, table[i].len);
            munmap(table[i].held, table[i].len);
            close(table[i].file);
            table[i].held = NULL;
            done = OK;
        }
    pthread_mutex_unlock(&lock);
    return done;
}

int cuMemAlloc_v2(uint64_t *at, size_t len) {
    if (len == 0 || depth == 0) return len ? INVALID_CONTEXT : INVALID;
    int file = memfd_create("fake-gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)len) != 0) return NO_MEMORY;
    int done = add(at, len, file, current[depth - 1], 0);
    if (done == OK) memset(held(*at, len), 0xA5, len);
    return done;
}
int cuMemFree_v2(uint64_t at) { return take_away(at, 0); }

int cuIpcGetMemHandle(Ipc *handle, uint64_t at) {
    int done = INVALID;
    memset(handle, 0, sizeof *handle);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST; i++)
        if (table[i].held && table[i].at == at && !table[i].opened) {
            struct stat file;
            fstat(table[i].file, &file);
            handle->process = getpid(), handle->file = table[i].file, handle->inode = file.st_ino;
            handle->len = table[i].len, handle->device = table[i].device;
            done = OK;
        }
    pthread_mutex_unlock(&lock);
    return done;
}

int cuIpcOpenMemHandle_v2(uint64_t *at, Ipc handle, unsigned flags) {
    if (flags != 1) return INVALID;
    if (depth == 0 || handle.process == getpid() || handle.device != current[depth - 1]) return INVALID_CONTEXT;
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/fd/%ld", (long)handle.process, (long)handle.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    struct stat found;
    if (file < 0) return INVALID_HANDLE;
    if (fstat(file, &found) != 0 || found.st_ino != handle.inode || (uint64_t)found.st_size != handle.len)
        return close(file), INVALID_HANDLE;
    return add(at, handle.len, file, (int)handle.device, 1);
}
int cuIpcCloseMemHandle(uint64_t at) { return take_away(at, 1); }

int cuPointerGetAttribute(void *value, int attribute, uint64_t at) {
    int done = INVALID;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST; i++)
        if (table[i].held && at >= table[i].at && at < table[i].at + table[i].len) {
            *(int *)value = attribute == MEMORY_TYPE ? DEVICE_MEMORY : table[i].device;
            done = attribute == MEMORY_TYPE || attribute == DEVICE_ORDINAL ? OK : INVALID;
        }
    pthread_mutex_unlock(&lock);
    return done;
}
int cuMemGetAddressRange_v2(uint64_t *start, size_t *len, uint64_t at) {
    int done = INVALID;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST; i++)
        if (table[i].held && at >= table[i].at && at < table[i].at + table[i].len)
            *start = table[i].at, *len = table[i].len, done = OK;
    pthread_mutex_unlock(&lock);
    return done;
}

int cuMemHostRegister_v2(void *start, size_t len, unsigned flags) { return (void)flags, start && len ? OK : INVALID; }
int cuMemHostUnregister(void *start) { return start ? OK : INVALID; }
int cuStreamCreate(void **stream, unsigned flags) { return (void)flags, *stream = (void *)16, OK; }
int cuStreamDestroy_v2(void *stream) { return (void)stream, OK; }
int cuStreamSynchronize(void *stream) { return (void)stream, OK; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return (void)stream, (void)event, (void)flags, OK; }
int cuEventCreate(void **event, unsigned flags) { return (void)flags, *event = (void *)32, OK; }
int cuEventDestroy_v2(void *event) { return (void)event, OK; }
int cuEventRecord(void *event, void *stream) { return (void)event, (void)stream, OK; }
int cuEventQuery(void *event) { return (void)event, OK; }
int cuEventSynchronize(void *event) { return (void)event, OK; }

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t len, void *stream) {
    unsigned char *memory = held(to, len);
    return (void)stream, memory ? (memcpy(memory, from, len), OK) : INVALID;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t len, void *stream) {
    return (void)stream, fake_read(to, from, len);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t len, void *stream) {
    unsigned char *memory = held(to, len), *source = held(from, len);
    return (void)stream, memory && source ? (memmove(memory, source, len), OK) : INVALID;
}
int cuMemcpyPeerAsync(uint64_t to, void *into, uint64_t from, void *out_of, size_t len, void *stream) {
    return into && out_of ? cuMemcpyDtoDAsync_v2(to, from, len, stream) : INVALID;
}
int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t len, void *stream) {
    unsigned char *memory = held(to, len);
    return (void)stream, memory ? (memset(memory, byte, len), OK) : INVALID;
}
