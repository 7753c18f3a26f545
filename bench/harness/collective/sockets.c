/* The same all-reduce by two processes with a TCP connection over loopback between them and nothing else: no handshake,
 * no header, no deadline, no rank that could be lost. Each sends the half that the other reduces, reduces its own, and
 * sends that back, in as few calls as the kernel lets it, never asleep. No peer, but what is left for one to be faster by.
 *
 *     sockets SECONDS BYTES...
 *
 * Prints one JSON object a size, as mpi.c does. */
#include "bare.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

/* What is reduced at a time, out of a core's nearest cache. */
#define BLOCK (16 << 10)

static int line;

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

static double both(double mine, int sum) {
    double theirs;
    exchange((char *)&mine, sizeof mine, (char *)&theirs, sizeof theirs, NULL);
    return sum ? mine + theirs : mine > theirs ? mine : theirs;
}

int main(int argc, char **argv) {
    usage(argc, argv);
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
    measure(rank, argc, argv);
    return 0;
}
