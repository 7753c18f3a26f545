/*
 * What one TCP connection between two processes of this host carries at the most: bytes of a buffer of SIZE
 * go out by large sends and into a buffer of SIZE by large receives, with nothing else done. No peer, but the
 * limit of whoever moves as much memory by sockets: where buffers are small they stay in a core's cache, where
 * they are large they do not.
 *
 *     cc -O2 -o tcp_limit tcp_limit.c && ./tcp_limit SIZE SECONDS [ADDRESS /run/netns/FAR]
 *
 * Every mebibyte is answered, and eight of them are under way. Nobody sleeps while something may come.
 * Congestion control is `reno`, which does not pace.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 1 << 20, AHEAD = 8, ANSWER = 40 };

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

static void tune(int socket)
{
	int one = 1;
	setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

/* Memory of a memory file, as crowfly's buffers are. */
static char *memory(size_t size)
{
	int file = memfd_create("memory", 0);
	must(file >= 0 && ftruncate(file, size) == 0, "memfd_create");
	char *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	must(bytes != MAP_FAILED, "mmap");
	memset(bytes, 1, size);
	return bytes;
}

/* The next part of a buffer that is gone round, up to the end of the piece. */
static size_t part(size_t size, size_t at, size_t of_piece)
{
	size_t left = PIECE - of_piece;
	return size - at < left ? size - at : left;
}

static void receive(int socket, char *target, size_t size)
{
	char answer[ANSWER] = {0};
	for (size_t at = 0, of_piece = 0;;) {
		ssize_t got = recv(socket, target + at, part(size, at, of_piece), MSG_DONTWAIT);
		if (got < 0 && errno == EAGAIN) {
			sched_yield();
			continue;
		}
		if (got <= 0)
			_exit(0);
		at = (at + got) % size;
		of_piece = (of_piece + got) % PIECE;
		if (of_piece == 0)
			must(send(socket, answer, ANSWER, 0) == ANSWER, "answer");
	}
}

static long answered(int socket, int flags)
{
	char answers[ANSWER * 64];
	ssize_t got = recv(socket, answers, sizeof answers, flags);
	return got > 0 ? got : 0;
}

int main(int count, char **words)
{
	must(count >= 3, "say SIZE SECONDS [ADDRESS NAMESPACE]");
	size_t size = atol(words[1]);
	double seconds = atof(words[2]);
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t length = sizeof address;
	int port[2];
	must(inet_aton(count > 3 ? words[3] : "127.0.0.1", &address.sin_addr) && pipe(port) == 0, "address");
	pid_t child = fork();
	if (child == 0) {
		if (count > 4) {
			int other = open(words[4], O_RDONLY);
			must(other >= 0 && setns(other, CLONE_NEWNET) == 0, "the other namespace");
		}
		int listener = socket(AF_INET, SOCK_STREAM, 0);
		must(bind(listener, (void *)&address, length) == 0 && listen(listener, 1) == 0, "listen");
		getsockname(listener, (void *)&address, &length);
		char *target = memory(size);
		must(write(port[1], &address.sin_port, 2) == 2, "port");
		int in = accept(listener, NULL, NULL);
		tune(in);
		receive(in, target, size);
	}
	char *source = memory(size);
	must(read(port[0], &address.sin_port, 2) == 2, "port");
	int out = socket(AF_INET, SOCK_STREAM, 0);
	must(connect(out, (void *)&address, length) == 0, "connect");
	tune(out);
	long pieces = 0, answers = 0;
	size_t at = 0, of_piece = 0;
	double began = clock_now();
	while (of_piece > 0 || clock_now() - began < seconds) {
		ssize_t sent = -1;
		if (pieces - answers / ANSWER < AHEAD) {
			sent = send(out, source + at, part(size, at, of_piece), MSG_DONTWAIT);
			must(sent >= 0 || errno == EAGAIN, "send");
		}
		if (sent > 0) {
			at = (at + sent) % size;
			of_piece = (of_piece + sent) % PIECE;
			pieces += of_piece == 0;
		} else {
			sched_yield();
		}
		answers += answered(out, MSG_DONTWAIT);
	}
	while (answers < pieces * ANSWER) {
		long more = answered(out, 0);
		must(more > 0, "answers");
		answers += more;
	}
	double took = clock_now() - began;
	close(out);
	waitpid(child, NULL, 0);
	printf("{\"bytes\": %ld, \"seconds\": %.4f}\n", pieces * PIECE, took);
	return 0;
}
