/* A storage library that exists only in the processes that load this as libcufile.so.0, beside fake_cuda.c as
 * libcuda.so.1: it brings bytes of files into the memory of the GPUs that are played there, and counts them as if the
 * drive had done it (statistics of cuFile 1.17). Reads on a stream are done at once, or, after fake_hold, when
 * fake_let_go says so: what a stream would do in its time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { int code, gpu_code; } Status;
typedef struct { int kind; union { int fd; void *pointer; } handle; const void *operations; } Descriptor;
typedef int (*Copy)(uint64_t, const void *, size_t, void *);

enum { LEVEL_2 = 1024, GPUS_AT = 1032, PER_GPU = 248, GPUS = 16, UUID = 16, P2P_READS = 5, NVME = 4 };
static const Status DONE = {0, 0};
static uint64_t reads;

typedef struct { int fd; void *to; size_t *len; int64_t *from, *at; ssize_t *done; } Request;
static Request waiting[256];
static int held, count;

static Copy copy_in(void) {
    void *runtime = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return runtime ? (Copy)dlsym(runtime, "cuMemcpyHtoDAsync_v2") : NULL;
}

/* Bytes of a file into a GPU's memory; how many. */
static ssize_t bring(int fd, void *to, size_t len, int64_t from, int64_t at) {
    Copy copy = copy_in();
    void *bytes = NULL;
    /* Files are open for O_DIRECT. */
    if (!copy || posix_memalign(&bytes, 4096, len + 4096)) return -5011;
    ssize_t got = pread(fd, bytes, len, from);
    if (got > 0 && copy((uint64_t)(uintptr_t)to + (uint64_t)at, bytes, (size_t)got, NULL) != 0) got = -5011;
    free(bytes);
    reads += got > 0;
    return got;
}

static void act(const Request *r) { *r->done = bring(r->fd, r->to, *r->len, *r->from, *r->at); }

void fake_hold(void) { held = 1; }
int fake_let_go(void) {
    int acted = count;
    for (int i = 0; i < count; i++) act(&waiting[i]);
    held = count = 0;
    return acted;
}

Status cuFileDriverOpen(void) { return DONE; }
Status cuFileDriverClose_v2(void) { return DONE; }
Status cuFileGetVersion(int *version) { return *version = 1170, DONE; }
Status cuFileSetParameterBool(int parameter, bool value) { return (void)parameter, (void)value, DONE; }
Status cuFileSetStatsLevel(int level) { return (void)level, DONE; }
Status cuFileStatsStart(void) { return DONE; }
Status cuFileDriverGetP2PFlags(int kind, unsigned *flags) { return *flags = kind == NVME, DONE; }
Status cuFileHandleRegister(void **handle, Descriptor *file) { return *handle = (void *)(intptr_t)(file->handle.fd + 1), DONE; }
void cuFileHandleDeregister(void *handle) { (void)handle; }
Status cuFileBufRegister(const void *start, size_t len, int flags) { return (void)start, (void)len, (void)flags, DONE; }
Status cuFileBufDeregister(const void *start) { return (void)start, DONE; }

ssize_t cuFileRead(void *handle, void *to, size_t len, int64_t from, int64_t at) {
    return bring((int)(intptr_t)handle - 1, to, len, from, at);
}
ssize_t cuFileWrite(void *handle, const void *of, size_t len, int64_t to, int64_t at) {
    return (void)handle, (void)of, (void)len, (void)to, (void)at, -5030;
}
Status cuFileReadAsync(void *handle, void *to, size_t *len, int64_t *from, int64_t *at, ssize_t *done, void *stream) {
    Request request = {(int)(intptr_t)handle - 1, to, len, from, at, done};
    if (stream == (void *)1234) return (Status){5030, 0};
    if (held && count < 256) waiting[count++] = request;
    else act(&request);
    return DONE;
}
Status cuFileWriteAsync(void *handle, void *of, size_t *len, int64_t *to, int64_t *at, ssize_t *done, void *stream) {
    return (void)handle, (void)of, (void)len, (void)to, (void)at, (void)done, (void)stream, (Status){5030, 0};
}
Status cuFileGetStatsL3(void *statistics) {
    unsigned char *room = statistics;
    memset(room, 0, GPUS_AT + GPUS * PER_GPU);
    uint32_t gpus = 1;
    memcpy(room + LEVEL_2, &gpus, sizeof gpus);
    memcpy(room + GPUS_AT + UUID + P2P_READS * 8, &reads, sizeof reads);
    return DONE;
}
