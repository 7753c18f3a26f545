/* What the bare contenders have in common: what they reduce, and how they are measured. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define MOST_CALLS 100000

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + 1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static float value(int rank, size_t at) { return (float)((rank * 7 + at * 3) % 5); }

/* One all-reduce of `bytes` in place; `scratch` is as large. */
static void call(int rank, char *data, char *scratch, size_t bytes);
/* The greater, or the sum, of a number of both. */
static double both(double mine, int sum);

static void usage(int argc, char **argv) {
    if (argc >= 3) return;
    fprintf(stderr, "usage: %s SECONDS BYTES...\n", argv[0]);
    exit(64);
}

static void measure(int rank, int argc, char **argv) {
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(rank, &own);
    sched_setaffinity(0, sizeof own, &own);
    for (int arg = 2; arg < argc; arg++) {
        const size_t bytes = strtoull(argv[arg], NULL, 10), count = bytes / sizeof(float);
        float *data = malloc(bytes);
        char *scratch = malloc(bytes);
        if (!data || !scratch) fail("memory");
        for (size_t at = 0; at < count; at++) data[at] = value(rank, at);
        call(rank, (char *)data, scratch, bytes);
        double wrong = 0;
        for (size_t at = 0; at < count; at++) wrong += data[at] != value(0, at) + value(1, at);
        memset(data, 0, bytes);
        both(0, 0);
        double began = now();
        call(rank, (char *)data, scratch, bytes);
        double calls = atof(argv[1]) / both(now() - began, 0);
        long count_calls = calls > MOST_CALLS ? MOST_CALLS : calls < 1 ? 1 : (long)calls;
        both(0, 0);
        double spent = cpu_seconds();
        began = now();
        for (long i = 0; i < count_calls; i++) call(rank, (char *)data, scratch, bytes);
        double took = both(now() - began, 0);
        spent = both(cpu_seconds() - spent, 1);
        wrong = both(wrong, 1);
        if (!rank)
            printf("{\"bytes\": %zu, \"calls\": %ld, \"seconds\": %.9g, \"cpu_seconds\": %.9g, \"wrong\": %.0f}\n", bytes,
                   count_calls, took / count_calls, spent / count_calls, wrong);
        free(data);
        free(scratch);
    }
}
