/* The same all-reduce by two processes with a TCP connection over loopback between them and nothing else: no handshake,
 * no header, no deadline, no rank that could be lost. Each sends the half that the other reduces, reduces its own, and
 * sends that back, in as few calls as the kernel lets it, never asleep. No peer, but what is left for one to be faster by.
 *
 *     sockets SECONDS BYTES...
 *
 * Prints one JSON object a size, as mpi.c does. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST_CALLS 100000
/* What is reduced at a time, out of a core's nearest cache. */
#define BLOCK (16 << 10)

static int line;

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

/* Sends and receives at once; what comes is added to `sum`, where there is one. */
static void exchange(const char *out, size_t out_bytes, char *in, size_t in_bytes, float *sum) {
    size_t sent = 0, came = 0, added = 0;
    while (sent < out_bytes || came < in_bytes) {
        if (sent < out_bytes) {
            ssize_t done = send(line, out + sent, out_bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (done > 0) sent += done;
            else if (errno != EAGAIN) fail("send");
        }
        if (came < in_bytes) {
            ssize_t done = recv(line, in + came, in_bytes - came, MSG_DONTWAIT);
            if (done > 0) came += done;
            else if (done == 0) exit(1);
            else if (errno != EAGAIN) fail("recv");
        }
        while (sum && (came - added >= BLOCK || (came == in_bytes && added < in_bytes))) {
            size_t end = came - added >= BLOCK ? added + BLOCK : in_bytes;
            for (size_t at = added / sizeof(float); at < end / sizeof(float); at++) sum[at] += ((float *)in)[at];
            added = end;
        }
    }
}

static void call(int rank, char *data, char *scratch, size_t bytes) {
    size_t half = bytes / sizeof(float) / 2 * sizeof(float);
    char *parts[] = {data, data + half};
    size_t sizes[] = {half, bytes - half};
    exchange(parts[!rank], sizes[!rank], scratch, sizes[rank], (float *)parts[rank]);
    exchange(parts[rank], sizes[rank], parts[!rank], sizes[!rank], NULL);
}

/* The greater, or the sum, of a number of both. */
static double both(double mine, int sum) {
    double theirs;
    exchange((char *)&mine, sizeof mine, (char *)&theirs, sizeof theirs, NULL);
    return sum ? mine + theirs : mine > theirs ? mine : theirs;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s SECONDS BYTES...\n", argv[0]);
        return 64;
    }
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof here;
    int door = socket(AF_INET, SOCK_STREAM, 0);
    if (door < 0 || bind(door, (void *)&here, length) || listen(door, 1) || getsockname(door, (void *)&here, &length))
        fail("listen");
    int rank = fork() == 0;
    if (rank) {
        line = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(line, (void *)&here, length)) fail("connect");
    } else if ((line = accept(door, NULL, NULL)) < 0) fail("accept");
    int on = 1;
    setsockopt(line, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(line, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
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
    return 0;
}
