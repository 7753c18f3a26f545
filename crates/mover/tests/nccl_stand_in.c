/* A library with NCCL's functions that checks how it is called and moves nothing. What it finds wrong, and what it was
 * called with last, it says as its last error. Built with -DOLD it lacks what version 2.14 brought. */
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { size_t size; unsigned magic, version; int blocking; } ncclConfig_v21400_t;
struct comm { int rank, ranks, looks; };

static char said[256];
static int aborted, grouped;

int ncclGetVersion(int *version) { *version = 29901; return 0; }

int ncclGetUniqueId(ncclUniqueId *id) {
    for (int at = 0; at < 128; at++) id->internal[at] = (char)(at * 3 + 1);
    return 0;
}

#ifndef OLD
static struct comm comms[8];
static int made;

int ncclCommInitRankConfig(struct comm **comm, int ranks, ncclUniqueId id, int rank, ncclConfig_v21400_t *config) {
    for (int at = 0; at < 128; at++)
        if (id.internal[at] != (char)(at * 3 + 1)) {
            snprintf(said, sizeof said, "byte %d of the identity", at);
            return 4;
        }
    if (config->size != 24 || config->magic != 0xcafebeefu || config->version != 21400 || config->blocking != 0) {
        snprintf(said, sizeof said, "configuration %zu %x %u %d", config->size, config->magic, config->version, config->blocking);
        return 4;
    }
    *comm = &comms[made++];
    **comm = (struct comm){rank, ranks, 0};
    return 7;
}
#endif

/* With others, which never come, it goes on for ever; alone it takes a few looks. */
int ncclCommGetAsyncError(struct comm *comm, int *state) {
    *state = comm->ranks > 1 || ++comm->looks < 4 ? 7 : 0;
    return 0;
}

int ncclCommDestroy(struct comm *comm) { comm->ranks = INT_MIN; return 0; }
int ncclCommAbort(struct comm *comm) { comm->ranks = INT_MIN; aborted++; return 0; }
const char *ncclGetErrorString(int code) { return code == 4 ? "invalid argument" : "unhandled system error"; }
const char *ncclGetLastError(struct comm *comm) { (void)comm; return said; }

static int refuse(const char *call, const void *from, const void *to, size_t count, int kind, int op, int root, void *stream) {
    snprintf(said, sizeof said, "%s %d %zu kind %d op %d root %d %s in group %d, aborted %d", call, from == to, count, kind,
             op, root, stream ? "on a stream" : "on none", grouped, aborted);
    return 4;
}

int ncclAllReduce(const void *f, void *t, size_t n, int k, int o, struct comm *c, void *s) { (void)c; return refuse("AllReduce", f, t, n, k, o, -1, s); }
int ncclReduceScatter(const void *f, void *t, size_t n, int k, int o, struct comm *c, void *s) { (void)c; return refuse("ReduceScatter", f, t, n, k, o, -1, s); }
int ncclAllGather(const void *f, void *t, size_t n, int k, struct comm *c, void *s) { (void)c; return refuse("AllGather", f, t, n, k, -1, -1, s); }
int ncclBroadcast(const void *f, void *t, size_t n, int k, int r, struct comm *c, void *s) { (void)c; return refuse("Broadcast", f, t, n, k, -1, r, s); }
int ncclReduce(const void *f, void *t, size_t n, int k, int o, int r, struct comm *c, void *s) { (void)c; return refuse("Reduce", f, t, n, k, o, r, s); }
int ncclSend(const void *f, size_t n, int k, int r, struct comm *c, void *s) { (void)c; return refuse("Send", f, f, n, k, -1, r, s); }
int ncclRecv(void *t, size_t n, int k, int r, struct comm *c, void *s) { (void)c; return refuse("Recv", t, t, n, k, -1, r, s); }
int ncclGroupStart(void) { grouped++; return 0; }
int ncclGroupEnd(void) { grouped--; return 0; }
