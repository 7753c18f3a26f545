/*
 * Ways of handing 64 MiB of a memory file to a TCP connection over loopback, in interleaved rounds: what
 * the results named tcp-ways are made of.
 *
 *     cc -O2 -o tcp_ways tcp_ways.c -lpthread && ./tcp_ways
 *
 * One row each: median, least and most GB/s, and CPU seconds of both ends per GB.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 64 << 20, ROUNDS = 7 };
static const double SECONDS = 0.8;

enum how { SEND, ZEROCOPY, SENDFILE, SPLICE };

struct way {
	const char *name;
	enum how how;
	size_t chunk;
	int buffers;   /* bytes of the sockets' buffers; 0: as the kernel likes */
	int busy_poll; /* microseconds */
};

static const struct way WAYS[] = {
	{"send, 64 KiB", SEND, 64 << 10, 0, 0},
	{"send, 1 MiB", SEND, 1 << 20, 0, 0},
	{"send, 1 MiB, socket buffers of 8 MiB", SEND, 1 << 20, 8 << 20, 0},
	{"send, 1 MiB, busy poll of 50 us", SEND, 1 << 20, 0, 50},
	{"send with MSG_ZEROCOPY, 1 MiB", ZEROCOPY, 1 << 20, 0, 0},
	{"sendfile of the memory file, 1 MiB", SENDFILE, 1 << 20, 0, 0},
	{"vmsplice and splice, 1 MiB", SPLICE, 1 << 20, 0, 0},
};
enum { COUNT = sizeof WAYS / sizeof *WAYS };

static char *source, *target;
static int file;
static long completions, copied;

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static double clock_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu_now(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

struct receiver {
	int socket;
	size_t chunk, total;
};

static void *receive(void *argument)
{
	struct receiver *r = argument;
	size_t at = 0;
	for (;;) {
		size_t room = BYTES - at < r->chunk ? BYTES - at : r->chunk;
		ssize_t got = recv(r->socket, target + at, room, 0);
		if (got <= 0)
			return NULL;
		r->total += got;
		at = (at + got) % BYTES;
	}
}

/* Takes the kernel's notices that it is through with pages, and counts those it copied after all. */
static void reap(int socket)
{
	char control[256];
	for (;;) {
		struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
		if (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
			return;
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
			struct sock_extended_err *e = (void *)CMSG_DATA(c);
			if (e->ee_origin != SO_EE_ORIGIN_ZEROCOPY)
				continue;
			long done = e->ee_data - e->ee_info + 1;
			completions += done;
			if (e->ee_code & SO_EE_CODE_ZEROCOPY_COPIED)
				copied += done;
		}
	}
}

static ssize_t hand_over(const struct way *way, int socket, int *ends, size_t at, size_t bytes)
{
	if (way->how == SEND)
		return send(socket, source + at, bytes, 0);
	if (way->how == ZEROCOPY) {
		ssize_t sent = send(socket, source + at, bytes, MSG_ZEROCOPY);
		if (sent < 0 && errno == ENOBUFS) {
			struct pollfd wait = {socket, 0, 0};
			poll(&wait, 1, 10);
			sent = 0;
		}
		reap(socket);
		return sent;
	}
	if (way->how == SENDFILE) {
		off_t from = at;
		return sendfile(socket, file, &from, bytes);
	}
	struct iovec pages = {source + at, bytes};
	ssize_t piped = vmsplice(ends[1], &pages, 1, 0);
	for (ssize_t done = 0; done < piped;) {
		ssize_t moved = splice(ends[0], NULL, socket, NULL, piped - done, SPLICE_F_MOVE | SPLICE_F_MORE);
		if (moved <= 0)
			return -1;
		done += moved;
	}
	return piped;
}

static void measure(const struct way *way, double *rate, double *cpu)
{
	int one = 1, ends[2] = {-1, -1};
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), out = socket(AF_INET, SOCK_STREAM, 0);
	must(bind(listener, (void *)&address, length) == 0 && listen(listener, 1) == 0, "listen");
	getsockname(listener, (void *)&address, &length);
	if (way->buffers)
		setsockopt(out, SOL_SOCKET, SO_SNDBUF, &way->buffers, sizeof way->buffers);
	must(connect(out, (void *)&address, length) == 0, "connect");
	struct receiver receiver = {accept(listener, NULL, NULL), way->chunk, 0};
	if (way->buffers)
		setsockopt(receiver.socket, SOL_SOCKET, SO_RCVBUF, &way->buffers, sizeof way->buffers);
	if (way->busy_poll)
		setsockopt(receiver.socket, SOL_SOCKET, SO_BUSY_POLL, &way->busy_poll, sizeof way->busy_poll);
	setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (way->how == ZEROCOPY)
		must(setsockopt(out, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0, "SO_ZEROCOPY");
	if (way->how == SPLICE) {
		must(pipe(ends) == 0, "pipe");
		fcntl(ends[0], F_SETPIPE_SZ, 1 << 20);
	}
	pthread_t thread;
	double before = cpu_now(), began = clock_now();
	pthread_create(&thread, NULL, receive, &receiver);
	for (size_t at = 0; clock_now() - began < SECONDS;) {
		size_t bytes = BYTES - at < way->chunk ? BYTES - at : way->chunk;
		ssize_t sent = hand_over(way, out, ends, at, bytes);
		must(sent >= 0, way->name);
		at = (at + sent) % BYTES;
	}
	shutdown(out, SHUT_WR);
	pthread_join(thread, NULL);
	*rate = receiver.total / (clock_now() - began) / 1e9;
	*cpu = (cpu_now() - before) / (receiver.total / 1e9);
	if (way->how == ZEROCOPY)
		reap(out);
	close(out);
	close(receiver.socket);
	close(listener);
	if (way->how == SPLICE) {
		close(ends[0]);
		close(ends[1]);
	}
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

int main(void)
{
	file = memfd_create("pages", 0);
	must(file >= 0 && ftruncate(file, BYTES) == 0, "memfd_create");
	source = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	target = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(source != MAP_FAILED && target != MAP_FAILED, "mmap");
	memset(source, 1, BYTES);
	memset(target, 1, BYTES);
	static double rates[COUNT][ROUNDS], cpus[COUNT][ROUNDS];
	for (int round = 0; round < ROUNDS; round++)
		for (int turn = 0; turn < COUNT; turn++) {
			int i = (turn + round) % COUNT;
			measure(&WAYS[i], &rates[i][round], &cpus[i][round]);
		}
	for (int i = 0; i < COUNT; i++) {
		qsort(rates[i], ROUNDS, sizeof(double), by_size);
		qsort(cpus[i], ROUNDS, sizeof(double), by_size);
		printf("| %s | %.2f | %.2f | %.2f | %.2f |\n", WAYS[i].name, rates[i][ROUNDS / 2], rates[i][0],
		       rates[i][ROUNDS - 1], cpus[i][ROUNDS / 2]);
	}
	printf("\nSends with MSG_ZEROCOPY: %ld, of which the kernel copied after all: %ld.\n", completions, copied);
	return 0;
}
