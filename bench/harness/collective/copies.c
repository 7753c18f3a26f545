/* The same all-reduce by two processes that share a board each and nothing else: no deadline, no rank that could be lost, no
 * choice of an algorithm. Block by block, each puts up the half that the other reduces, reduces its own straight from the
 * other's board with the result on both, and takes the other's result off its own: the least that memory of the programs' own
 * allows, as neither can reach it in the other. The three steps go in turn, a piece at a time, each on a block of its own, so
 * that what one waits for arrives while another works. No peer, but what is left for one to be faster by.
 *
 *     copies SECONDS BYTES...
 *
 * Prints one JSON object a size, as mpi.c does. */
#include "bare.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK ((size_t)256 << 10)
#define BLOCKS 3
#define PIECE 512

struct board {
    _Alignas(64) atomic_ulong put;
    _Alignas(64) atomic_ulong reduced;
    _Alignas(64) atomic_ulong turn;
    double number;
    _Alignas(4096) char blocks[BLOCKS][BLOCK];
};

static struct board *boards;
static int me;
static unsigned long before, turn;

static void await(atomic_ulong *word, unsigned long goal) {
    while (atomic_load_explicit(word, memory_order_acquire) < goal) {
#ifdef __x86_64__
        __builtin_ia32_pause();
#endif
    }
}

static void meet(void) {
    atomic_store(&boards[me].turn, ++turn);
    await(&boards[!me].turn, turn);
}

static double both(double mine, int sum) {
    boards[me].number = mine;
    meet();
    double theirs = boards[!me].number;
    meet();
    return sum ? mine + theirs : mine > theirs ? mine : theirs;
}

/* The half of a block that a rank reduces. */
static size_t half(size_t bytes, size_t block, int rank, size_t *start) {
    size_t at = block * BLOCK, len = bytes - at < BLOCK ? bytes - at : BLOCK, first = len / 2 / 64 * 64;
    *start = rank ? first : 0;
    return rank ? len - first : first;
}

static size_t piece(size_t len, size_t at) { return at >= len ? 0 : len - at < PIECE ? len - at : PIECE; }

static void fetch(const char *from) {
    for (size_t at = 0; at < PIECE; at += 64) __builtin_prefetch(from + PIECE + at);
}

static void copy(char *restrict to, const char *restrict from, size_t len, size_t at) {
    len = piece(len, at);
    if (len) fetch(from + at);
    memcpy(to + at, from + at, len);
}

static void reduce(float *restrict own, float *restrict theirs, size_t len, size_t at) {
    len = piece(len, at);
    if (len) fetch((char *)own + at), fetch((char *)theirs + at);
    own += at / sizeof(float), theirs += at / sizeof(float);
    for (size_t i = 0; i < len / sizeof(float); i++) theirs[i] = own[i] += theirs[i];
}

static void call(int rank, char *data, char *scratch, size_t bytes) {
    (void)scratch;
    size_t count = (bytes + BLOCK - 1) / BLOCK;
    for (size_t at = 0; at < count + 2; at++) {
        size_t put = 0, reduced = 0, taken = 0, start;
        char *out = data, *place = data, *own = data, *theirs = data, *into = data, *result = data;
        if (at < count) {
            put = half(bytes, at, !rank, &start);
            out = data + at * BLOCK + start, place = boards[rank].blocks[(before + at) % BLOCKS] + start;
        }
        if (at >= 1 && at - 1 < count) {
            await(&boards[!rank].put, before + at);
            reduced = half(bytes, at - 1, rank, &start);
            own = data + (at - 1) * BLOCK + start, theirs = boards[!rank].blocks[(before + at - 1) % BLOCKS] + start;
        }
        if (at >= 2) {
            await(&boards[!rank].reduced, before + at - 1);
            taken = half(bytes, at - 2, !rank, &start);
            into = data + (at - 2) * BLOCK + start, result = boards[rank].blocks[(before + at - 2) % BLOCKS] + start;
        }
        for (size_t from = 0; from < BLOCK / 2 + 64; from += PIECE) {
            copy(place, out, put, from);
            reduce((float *)own, (float *)theirs, reduced, from);
            copy(into, result, taken, from);
        }
        if (at < count) atomic_store_explicit(&boards[rank].put, before + at + 1, memory_order_release);
        if (at >= 1 && at - 1 < count) atomic_store_explicit(&boards[rank].reduced, before + at, memory_order_release);
    }
    before += count;
}

int main(int argc, char **argv) {
    usage(argc, argv);
    boards = mmap(NULL, 2 * sizeof *boards, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (boards == MAP_FAILED) fail("memory");
    me = fork() == 0;
    measure(me, argc, argv);
    return 0;
}
