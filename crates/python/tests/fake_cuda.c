/* Two GPUs that exist only in the process that loads this as libcuda.so.1. Their memory has addresses that no core
 * may touch; what they hold lies elsewhere, and only copies get there. The runtime counts them against the order of
 * their PCI addresses. Tests read what they hold with fake_read, and count what was not freed with fake_alive. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, GPUS = 2, MOST = 4096 };
static const char *const BUS[GPUS] = {"0000:81:00.0", "0000:41:00.0"};
static const size_t MEMORY = (size_t)1 << 34;

static struct { uint64_t at; size_t len; unsigned char *held; } table[MOST];
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
int cuCtxPushCurrent_v2(void *context) { return context ? OK : INVALID; }
int cuCtxPopCurrent_v2(void **context) { return *context = NULL, OK; }
int cuMemGetInfo_v2(size_t *left, size_t *total) { return *left = *total = MEMORY, OK; }

int cuMemAlloc_v2(uint64_t *at, size_t len) {
    if (len == 0) return INVALID;
    void *address = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    unsigned char *memory = address == MAP_FAILED ? NULL : malloc(len);
    if (!memory) return NO_MEMORY;
    memset(memory, 0xA5, len);
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < MOST && table[i].held) i++;
    if (i < MOST) table[i].at = *at = (uint64_t)address, table[i].len = len, table[i].held = memory;
    pthread_mutex_unlock(&lock);
    return i < MOST ? OK : NO_MEMORY;
}

int cuMemFree_v2(uint64_t at) {
    int done = INVALID;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST && done != OK; i++)
        if (table[i].held && table[i].at == at) {
            munmap((void *)at, table[i].len);
            free(table[i].held);
            table[i].held = NULL;
            done = OK;
        }
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
