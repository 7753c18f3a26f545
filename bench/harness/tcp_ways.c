/*
 * Ways of handing memory to one TCP connection, from one process to another, in interleaved rounds: what
 * the results named tcp-ways are made of.
 *
 *     cc -O2 -o tcp_ways tcp_ways.c && ./tcp_ways
 *     ip netns exec NEAR ./tcp_ways ADDRESS /run/netns/FAR     # over a veth pair between two namespaces
 *
 * Messages go round one buffer, two of them under way; the receiver answers each with 40 bytes. One row each:
 * median, least and most GB/s, CPU seconds of both ends per GB, and how many sends without a copy the
 * kernel copied after all. Congestion control is `reno`, which does not pace, unless CONTROL says otherwise.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/io_uring.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 << 20, ROUNDS = 3, ANSWER = 40, AHEAD = 2 };
static const double SECONDS = 0.3;
static const size_t SIZES[] = {64 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20};
enum { SIZE_COUNT = sizeof SIZES / sizeof *SIZES };

enum how { SEND, ZEROCOPY, RING_ZEROCOPY, SENDFILE, SPLICE };
static const char *const NAMES[] = {"send", "send with MSG_ZEROCOPY", "io_uring's send_zc", "sendfile of the memory file",
				    "vmsplice and splice"};
enum { COUNT = sizeof NAMES / sizeof *NAMES };

static char *source;
static int file, pipe_ends[2];
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

static double cpu_of(int who)
{
	struct rusage u;
	getrusage(who, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* A ring with room for a few sends, by bare system calls. */
static struct {
	int fd;
	char *submissions, *completions;
	struct io_uring_sqe *entries;
	struct io_uring_params p;
} ring;

static void open_ring(void)
{
	ring.p.flags = 0;
	ring.fd = syscall(SYS_io_uring_setup, 8, &ring.p);
	must(ring.fd >= 0, "io_uring_setup");
	size_t room = ring.p.sq_off.array + ring.p.sq_entries * sizeof(unsigned);
	size_t ends = ring.p.cq_off.cqes + ring.p.cq_entries * sizeof(struct io_uring_cqe);
	ring.submissions = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQ_RING);
	ring.completions = mmap(NULL, ends, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_CQ_RING);
	ring.entries = mmap(NULL, ring.p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQES);
	must(ring.submissions != MAP_FAILED && ring.completions != MAP_FAILED && ring.entries != MAP_FAILED, "ring");
	struct iovec memory = {source, MOST};
	must(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &memory, 1) == 0, "registering memory");
}

/* Takes what has ended; answers the result of the send among it, or -EAGAIN. */
static int ended(void)
{
	_Atomic unsigned *head = (void *)(ring.completions + ring.p.cq_off.head);
	_Atomic unsigned *tail = (void *)(ring.completions + ring.p.cq_off.tail);
	struct io_uring_cqe *all = (void *)(ring.completions + ring.p.cq_off.cqes);
	int result = -EAGAIN;
	while (*head != atomic_load_explicit(tail, memory_order_acquire)) {
		struct io_uring_cqe *one = &all[*head & (ring.p.cq_entries - 1)];
		if (one->flags & IORING_CQE_F_NOTIF) {
			completions++;
			copied += ((unsigned)one->res & IORING_NOTIF_USAGE_ZC_COPIED) != 0;
		} else {
			result = one->res;
		}
		atomic_store_explicit(head, *head + 1, memory_order_release);
	}
	return result;
}

static ssize_t send_by_ring(int socket, size_t at, size_t bytes)
{
	_Atomic unsigned *tail = (void *)(ring.submissions + ring.p.sq_off.tail);
	unsigned *array = (void *)(ring.submissions + ring.p.sq_off.array);
	unsigned slot = *tail & (ring.p.sq_entries - 1);
	ring.entries[slot] = (struct io_uring_sqe){
		.opcode = IORING_OP_SEND_ZC,
		.fd = socket,
		.addr = (unsigned long)(source + at),
		.len = bytes,
		.ioprio = IORING_RECVSEND_FIXED_BUF | IORING_SEND_ZC_REPORT_USAGE,
	};
	array[slot] = slot;
	atomic_store_explicit(tail, *tail + 1, memory_order_release);
	must(syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) >= 0, "io_uring_enter");
	int result;
	while ((result = ended()) == -EAGAIN)
		syscall(SYS_io_uring_enter, ring.fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	errno = -result;
	return result < 0 ? -1 : result;
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

static ssize_t hand_over(enum how how, int socket, size_t at, size_t bytes)
{
	off_t from = at;
	ssize_t sent;
	switch (how) {
	case SEND:
		return send(socket, source + at, bytes, 0);
	case ZEROCOPY:
		sent = send(socket, source + at, bytes, MSG_ZEROCOPY);
		reap(socket);
		return sent < 0 && errno == ENOBUFS ? 0 : sent;
	case RING_ZEROCOPY:
		return send_by_ring(socket, at, bytes);
	case SENDFILE:
		return sendfile(socket, file, &from, bytes);
	case SPLICE:
		break;
	}
	struct iovec pages = {source + at, bytes};
	ssize_t piped = vmsplice(pipe_ends[1], &pages, 1, 0);
	for (ssize_t done = 0; done < piped;) {
		ssize_t moved = splice(pipe_ends[0], NULL, socket, NULL, piped - done, SPLICE_F_MOVE | SPLICE_F_MORE);
		if (moved <= 0)
			return -1;
		done += moved;
	}
	return piped;
}

static void tune(int socket)
{
	int one = 1;
	const char *control = getenv("CONTROL") ? getenv("CONTROL") : "reno";
	setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, control, strlen(control));
}

/* Receives and answers, never asleep as long as something comes, until the other end is through. */
static void receive(int listener, size_t size)
{
	char answer[ANSWER] = {0};
	char *target = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(target != MAP_FAILED, "mmap");
	memset(target, 1, size);
	int socket = accept(listener, NULL, NULL);
	tune(socket);
	for (size_t at = 0;;) {
		ssize_t got = recv(socket, target + at, size - at, MSG_DONTWAIT);
		if (got < 0 && errno == EAGAIN) {
			sched_yield();
			continue;
		}
		if (got <= 0)
			_exit(0);
		at += got;
		if (at == size) {
			at = 0;
			must(send(socket, answer, ANSWER, 0) == ANSWER, "answer");
		}
	}
}

static void await_answers(int socket, long *bytes, long wanted)
{
	char answers[ANSWER * 64];
	while (*bytes < wanted * ANSWER) {
		ssize_t got = recv(socket, answers, sizeof answers, MSG_DONTWAIT);
		if (got < 0 && errno == EAGAIN) {
			sched_yield();
			continue;
		}
		must(got > 0, "answers");
		*bytes += got;
	}
}

static void measure(enum how how, size_t size, const char *where, const char *space, double *rate, double *cpu)
{
	int one = 1, port[2];
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t length = sizeof address;
	must(inet_aton(where, &address.sin_addr) && pipe(port) == 0, "address");
	double before = cpu_of(RUSAGE_SELF) + cpu_of(RUSAGE_CHILDREN);
	pid_t child = fork();
	if (child == 0) {
		if (space) {
			int other = open(space, O_RDONLY);
			must(other >= 0 && setns(other, CLONE_NEWNET) == 0, "the other namespace");
		}
		int listener = socket(AF_INET, SOCK_STREAM, 0);
		must(bind(listener, (void *)&address, length) == 0 && listen(listener, 1) == 0, "listen");
		getsockname(listener, (void *)&address, &length);
		must(write(port[1], &address.sin_port, 2) == 2, "port");
		receive(listener, size);
	}
	must(read(port[0], &address.sin_port, 2) == 2, "port");
	int out = socket(AF_INET, SOCK_STREAM, 0);
	must(connect(out, (void *)&address, length) == 0, "connect");
	tune(out);
	if (how == ZEROCOPY)
		must(setsockopt(out, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0, "SO_ZEROCOPY");
	completions = copied = 0;
	long messages = 0, answered = 0;
	double began = clock_now();
	while (clock_now() - began < SECONDS) {
		for (size_t at = 0; at < size;) {
			ssize_t sent = hand_over(how, out, at, size - at);
			must(sent >= 0, NAMES[how]);
			at += sent;
		}
		await_answers(out, &answered, ++messages - (AHEAD - 1));
	}
	await_answers(out, &answered, messages);
	double took = clock_now() - began, gigabytes = messages * size / 1e9;
	close(out);
	waitpid(child, NULL, 0);
	close(port[0]);
	close(port[1]);
	*rate = gigabytes / took;
	*cpu = (cpu_of(RUSAGE_SELF) + cpu_of(RUSAGE_CHILDREN) - before) / gigabytes;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

int main(int count, char **words)
{
	const char *where = count > 1 ? words[1] : "127.0.0.1", *space = count > 2 ? words[2] : NULL;
	file = memfd_create("pages", 0);
	must(file >= 0 && ftruncate(file, MOST) == 0, "memfd_create");
	source = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	must(source != MAP_FAILED && pipe(pipe_ends) == 0, "memory");
	fcntl(pipe_ends[0], F_SETPIPE_SZ, 1 << 20);
	memset(source, 1, MOST);
	open_ring();
	puts("| bytes | way | GB/s median | least | most | CPU s/GB, both ends | copied after all |\n|---|---|---|---|---|---|---|");
	for (int s = 0; s < SIZE_COUNT; s++) {
		static double rates[COUNT][ROUNDS], cpus[COUNT][ROUNDS];
		static long sends[COUNT][2];
		memset(sends, 0, sizeof sends);
		for (int round = 0; round < ROUNDS; round++)
			for (int turn = 0; turn < COUNT; turn++) {
				int i = (turn + round) % COUNT;
				measure(i, SIZES[s], where, space, &rates[i][round], &cpus[i][round]);
				sends[i][0] += completions;
				sends[i][1] += copied;
			}
		for (int i = 0; i < COUNT; i++) {
			qsort(rates[i], ROUNDS, sizeof(double), by_size);
			qsort(cpus[i], ROUNDS, sizeof(double), by_size);
			printf("| %zu | %s | %.2f | %.2f | %.2f | %.2f | ", SIZES[s], NAMES[i], rates[i][ROUNDS / 2], rates[i][0],
			       rates[i][ROUNDS - 1], cpus[i][ROUNDS / 2]);
			if (sends[i][0])
				printf("%ld of %ld |\n", sends[i][1], sends[i][0]);
			else
				puts("– |");
		}
	}
	return 0;
}
