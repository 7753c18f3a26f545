/* Plays NCCL against a network plugin: two processes, `west` and `east`, each with this program.
 *
 *   player LIBRARY VERSION SIDE FOLDER SCENE [SECONDS]
 *
 * Handles go through files in FOLDER. Scenes: sizes, groups, many, parallel, stream, truncated, leave,
 * refused between two processes; devices and misuse alone. Ends with 0 and a last line `done`, or with 1 and why. */
#define _GNU_SOURCE
#include "net.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_COMMS = 16, GROUP = 8, MOST_REQUESTS = 512, MIB = 1 << 20 };
static const double PATIENCE = 60;

static const char *folder;
static int west;

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *format, ...) {
	va_list arguments;
	va_start(arguments, format);
	printf("failed: ");
	vprintf(format, arguments);
	printf("\n");
	va_end(arguments);
	exit(1);
}

static void must(const char *what, int result) {
	if (result != OK) fail("%s answered %d", what, result);
}

static void hears(int level, unsigned long subsystems, const char *file, int line, const char *format, ...) {
	va_list arguments;
	(void)subsystems;
	(void)line;
	va_start(arguments, format);
	fprintf(stderr, "%s %s: ", level == LEVEL_WARN ? "WARN" : "INFO", file);
	vfprintf(stderr, format, arguments);
	fprintf(stderr, "\n");
	va_end(arguments);
}

/* A comm, and which way it goes: even ones to the west. */
struct comm {
	void *comm, *listening;
	int receives;
	unsigned char handle[HANDLE_BYTES];
};
static struct comm comms[MOST_COMMS];

static void handle_file(char *path, size_t most, int comm) { snprintf(path, most, "%s/%d.handle", folder, comm); }

static void give_handle(int comm) {
	char path[512], fresh[520];
	handle_file(path, sizeof path, comm);
	snprintf(fresh, sizeof fresh, "%s.new", path);
	FILE *file = fopen(fresh, "w");
	if (!file || fwrite(comms[comm].handle, HANDLE_BYTES, 1, file) != 1 || fclose(file) != 0)
		fail("cannot write %s", fresh);
	rename(fresh, path);
}

static int take_handle(int comm) {
	char path[512];
	handle_file(path, sizeof path, comm);
	FILE *file = fopen(path, "r");
	if (!file) return 0;
	int whole = fread(comms[comm].handle, HANDLE_BYTES, 1, file) == 1;
	fclose(file);
	return whole;
}

/* All comms come about at the same time, as NCCL's do: nothing waits for anything. */
static void meet(int count) {
	int have[MOST_COMMS] = {0}, met = 0;
	double until = now() + PATIENCE;
	for (int i = 0; i < count; i++) {
		comms[i].receives = (i % 2 == 0) == west;
		if (!comms[i].receives) continue;
		must("listen", net_listen(0, comms[i].handle, &comms[i].listening));
		give_handle(i);
	}
	while (met < count) {
		met = 0;
		for (int i = 0; i < count; i++) {
			struct comm *one = &comms[i];
			if (one->comm) {
				met++;
				continue;
			}
			if (one->receives) {
				must("accept", net_accept(one->listening, &one->comm));
			} else if (have[i] || (have[i] = take_handle(i))) {
				must("connect", net_connect(0, one->handle, &one->comm));
			}
		}
		if (now() > until) fail("%d of %d comms after %.0f s", met, count, PATIENCE);
		usleep(200);
	}
	for (int i = 0; i < count; i++)
		if (comms[i].receives) must("closeListen", net_close_listen(comms[i].listening));
}

static void part(int count) {
	double before = now();
	for (int i = 0; i < count; i++) {
		if (comms[i].receives) must("closeRecv", net_close_receive(comms[i].comm));
		else must("closeSend", net_close_send(comms[i].comm));
	}
	if (now() - before > 5) fail("%d comms took %.1f s to close", count, now() - before);
}

static unsigned char byte_of(size_t at, unsigned seed) {
	uint64_t x = (at + 1) * 0x9e3779b97f4a7c15ull ^ (uint64_t)seed * 0xbf58476d1ce4e5b9ull;
	return (unsigned char)(x >> 47);
}

static void fill(unsigned char *to, size_t bytes, unsigned seed) {
	for (size_t i = 0; i < bytes; i++) to[i] = byte_of(i, seed);
}

static void check(const unsigned char *have, size_t bytes, unsigned seed, const char *what) {
	for (size_t i = 0; i < bytes; i++)
		if (have[i] != byte_of(i, seed)) fail("%s: byte %zu of %zu is wrong", what, i, bytes);
}

static unsigned char *memory_of(void *comm, size_t bytes, void **handle) {
	unsigned char *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
	if (!memory) fail("no memory");
	must("regMr", net_register(comm, memory, bytes, HOST_MEMORY, handle));
	return memory;
}

static void *wait_posted(void *comm, int count, void **data, size_t *bytes, int *tags, void **memory) {
	void *request = NULL;
	for (double until = now() + PATIENCE; !request && now() < until; sched_yield())
		must("irecv", net_receive(comm, count, data, bytes, tags, memory, &request));
	if (!request) fail("irecv found no room for %.0f s", PATIENCE);
	return request;
}

static void *wait_sent(void *comm, void *data, size_t bytes, int tag, void *memory) {
	void *request = NULL;
	for (double until = now() + PATIENCE; !request && now() < until; sched_yield())
		must("isend", net_send(comm, data, bytes, tag, memory, &request));
	if (!request) fail("isend found no receive with tag %d for %.0f s", tag, PATIENCE);
	return request;
}

static void wait_done(void *request, int *sizes) {
	int done = 0;
	for (double until = now() + PATIENCE; !done && now() < until; sched_yield())
		must("test", net_test(request, &done, sizes));
	if (!done) fail("a request did not end in %.0f s", PATIENCE);
}

/* Each size in each direction, one after the other; the buffer has more room than the message needs. */
static void sizes(void) {
	static const size_t all[] = {0, 1, 4096, 65535, 65536, 65537, 8 * MIB, 3, 0, 1000003};
	meet(2);
	for (int i = 0; i < 2; i++) {
		void *memory, *comm = comms[i].comm;
		size_t room = 8 * MIB + 4096;
		unsigned char *data = memory_of(comm, room, &memory);
		for (unsigned n = 0; n < sizeof all / sizeof *all; n++) {
			int got = -1, tag = 40 + (int)n;
			if (!comms[i].receives) {
				fill(data, all[n], n);
				void *request = wait_sent(comm, data, all[n], tag, memory);
				int again;
				wait_done(request, &got);
				if (net_test(request, &again, NULL) != ARGUMENT) fail("a request that ended is still known");
			} else {
				/* Neither its start nor its end is that of the registered memory. */
				void *to = data + 64;
				size_t space = all[n] == 8 * MIB ? all[n] : all[n] + 77;
				memset(data, 0xee, room);
				wait_done(wait_posted(comm, 1, &to, &space, &tag, &memory), &got);
				check(to, all[n], n, "sizes");
				if (data[63] != 0xee || data[64 + all[n]] != 0xee) fail("bytes beside the message changed");
				void *flushed = (void *)1;
				must("iflush", net_flush(comm, 1, &to, &got, &memory, &flushed));
				if (flushed) fail("a flush of host memory is something to wait for");
			}
			if (got != (int)all[n]) fail("%d bytes instead of %zu", got, all[n]);
		}
		must("deregMr", net_deregister(comm, memory));
		free(data);
	}
	part(2);
}

/* Groups of receives whose messages come in another order, shorter than their buffers, some empty. */
static void groups(void) {
	enum { ROUNDS = 40, ROOM = 32768 };
	meet(1);
	void *memory, *comm = comms[0].comm;
	unsigned char *data = memory_of(comm, GROUP * ROOM, &memory);
	for (int round = 0; round < ROUNDS; round++) {
		void *at[GROUP], *memories[GROUP], *requests[GROUP];
		size_t space[GROUP];
		int tags[GROUP], got[GROUP];
		for (int i = 0; i < GROUP; i++) {
			at[i] = data + (size_t)i * ROOM;
			memories[i] = memory;
			space[i] = ROOM;
			tags[i] = round * 100 + i;
			got[i] = -1;
		}
		int n = round % GROUP + 1;
		if (comms[0].receives) {
			wait_done(wait_posted(comm, n, at, space, tags, memories), got);
			for (int i = 0; i < n; i++) {
				size_t wanted = i == 3 ? 0 : (size_t)(i * 4000 + round);
				if ((size_t)got[i] != wanted) fail("%d bytes with tag %d instead of %zu", got[i], tags[i], wanted);
				check(at[i], wanted, (unsigned)tags[i], "groups");
			}
			continue;
		}
		for (int i = n - 1; i >= 0; i--) {
			size_t bytes = i == 3 ? 0 : (size_t)(i * 4000 + round);
			fill(at[i], bytes, (unsigned)tags[i]);
			requests[i] = wait_sent(comm, at[i], bytes, tags[i], memory);
		}
		for (int i = 0; i < n; i++) wait_done(requests[i], NULL);
	}
	must("deregMr", net_deregister(comm, memory));
	part(1);
}

/* As many requests as NCCL may have under way, and more until there is no room; messages with tags in
 * another order than the receives, and several with the same tag, which keep theirs. */
static void many(void) {
	enum { BYTES = 5000, MOST = 300 };
	meet(1);
	void *memory, *comm = comms[0].comm;
	unsigned char *data = memory_of(comm, (size_t)MOST * BYTES, &memory);
	void *requests[MOST];
	char path[512];
	snprintf(path, sizeof path, "%s/posted", folder);
	if (comms[0].receives) {
		int posted = 0, full = 0;
		for (; posted < MOST && !full; posted++) {
			void *to = data + (size_t)posted * BYTES, *request = NULL;
			size_t space = BYTES;
			/* Every eighth has a tag that others have as well. */
			int tag = posted % 8 == 7 ? 7 : 1000 + posted;
			for (double until = now() + 0.5; !request && now() < until;)
				must("irecv", net_receive(comm, 1, &to, &space, &tag, &memory, &request));
			full = !request;
			if (!full) requests[posted] = request;
		}
		if (full) posted--;
		if (!full || posted < 32 * GROUP) fail("room for %d receives", posted);
		FILE *file = fopen(path, "w");
		if (!file || fprintf(file, "%d\n", posted) < 0 || fclose(file) != 0) fail("cannot write %s", path);
		for (int i = posted - 1; i >= 0; i--) {
			int got = -1;
			wait_done(requests[i], &got);
			if (got != BYTES - i) fail("%d bytes instead of %d", got, BYTES - i);
			check(data + (size_t)i * BYTES, (size_t)got, (unsigned)i, "many");
		}
		printf("posted %d\n", posted);
	} else {
		int posted = 0;
		for (double until = now() + PATIENCE; !posted && now() < until; usleep(1000)) {
			FILE *file = fopen(path, "r");
			if (!file) continue;
			if (fscanf(file, "%d\n", &posted) != 1) posted = 0;
			fclose(file);
		}
		for (int step = 0; step < posted; step++) {
			/* Those with the common tag in their order, all others backwards. */
			int i = step % 8 == 7 ? step : posted / 8 * 8 - 1 - (step / 8 * 8 + step % 8);
			if (step >= posted / 8 * 8) i = step;
			else if (step % 8 != 7) i = (posted / 8 - 1 - step / 8) * 8 + (6 - step % 8);
			int tag = i % 8 == 7 ? 7 : 1000 + i;
			unsigned char *from = data + (size_t)i * BYTES;
			fill(from, (size_t)(BYTES - i), (unsigned)i);
			requests[step] = wait_sent(comm, from, (size_t)(BYTES - i), tag, memory);
		}
		for (int i = 0; i < posted; i++) wait_done(requests[i], NULL);
	}
	must("deregMr", net_deregister(comm, memory));
	part(1);
}

/* Several comms in both directions at once, each with messages under way, served in turn by one thread
 * that never waits, as NCCL's proxy does. */
static void parallel(void) {
	enum { COMMS = 8, DEEP = 8, MESSAGES = 48, BYTES = 200000 };
	static void *requests[COMMS][DEEP];
	static unsigned char *data[COMMS];
	void *memory[COMMS];
	int begun[COMMS] = {0}, ended[COMMS] = {0}, left = COMMS * MESSAGES;
	double slowest = 0, until = now() + PATIENCE;
	meet(COMMS);
	for (int c = 0; c < COMMS; c++) data[c] = memory_of(comms[c].comm, DEEP * BYTES, &memory[c]);
	while (left > 0) {
		for (int c = 0; c < COMMS; c++) {
			struct comm *one = &comms[c];
			double before = now();
			if (begun[c] < MESSAGES && begun[c] - ended[c] < DEEP) {
				int slot = begun[c] % DEEP;
				void *at = data[c] + (size_t)slot * BYTES, *request = NULL;
				size_t space = BYTES;
				int tag = 5;
				unsigned seed = (unsigned)(c * MESSAGES + begun[c]);
				if (!one->receives) fill(at, BYTES, seed);
				before = now();
				if (one->receives) must("irecv", net_receive(one->comm, 1, &at, &space, &tag, &memory[c], &request));
				else must("isend", net_send(one->comm, at, BYTES, tag, memory[c], &request));
				requests[c][slot] = request;
				if (request) begun[c]++;
			}
			if (ended[c] < begun[c]) {
				int slot = ended[c] % DEEP, done = 0, got = 0;
				must("test", net_test(requests[c][slot], &done, &got));
				if (now() - before > slowest) slowest = now() - before;
				if (done) {
					if (got != BYTES) fail("%d bytes instead of %d", got, BYTES);
					if (one->receives)
						check(data[c] + (size_t)slot * BYTES, BYTES, (unsigned)(c * MESSAGES + ended[c]), "parallel");
					ended[c]++;
					left--;
				}
			}
		}
		if (now() > until) fail("%d messages were left after %.0f s", left, PATIENCE);
		sched_yield();
	}
	for (int c = 0; c < COMMS; c++) must("deregMr", net_deregister(comms[c].comm, memory[c]));
	part(COMMS);
	printf("slowest pair of calls %.3f s\n", slowest);
}

/* Messages follow each other from east to west until the time is up, or something fails: then how soon. */
static void stream(double seconds) {
	enum { DEEP = 4, BYTES = MIB };
	meet(1);
	void *memory, *comm = comms[0].comm, *requests[DEEP];
	unsigned char *data = memory_of(comm, DEEP * BYTES, &memory);
	unsigned long begun = 0, ended = 0;
	double start = now(), last = start;
	int result = OK, said = 0;
	/* The end that sends is the first to stop, so that it is not its peer's parting that ends it. */
	if (comms[0].receives) seconds += 10;
	fill(data, DEEP * BYTES, 1);
	while (result == OK && (now() - start < seconds || ended < begun)) {
		if (begun - ended < DEEP && now() - start < seconds) {
			void *at = data + begun % DEEP * BYTES, *request = NULL;
			size_t space = BYTES;
			int tag = 1;
			result = comms[0].receives ? net_receive(comm, 1, &at, &space, &tag, &memory, &request)
						   : net_send(comm, at, BYTES, tag, memory, &request);
			if (result == OK && request) requests[begun++ % DEEP] = request;
		}
		if (result == OK && ended < begun) {
			int done = 0, got;
			result = net_test(requests[ended % DEEP], &done, &got);
			if (result == OK && done) {
				ended++;
				last = now();
				if (!said++) {
					printf("moving\n");
					fflush(stdout);
				}
			} else if (comms[0].receives && now() - start > seconds) {
				/* Receives that nobody will send to. */
				break;
			} else {
				sched_yield();
			}
		}
	}
	printf("ended %d after %lu messages, %.1f s after the last\n", result, ended, now() - last);
	fflush(stdout);
	if (comms[0].receives && result == OK) {
		/* The memory of what is posted is taken back all the same, and the comm has had its day. */
		net_deregister(comm, memory);
		net_close_receive(comm);
		return;
	}
	int freed = net_deregister(comm, memory);
	if (freed != OK) fail("deregMr of what failed answered %d", freed);
	part(1);
}

/* A message that is longer than its buffer is an error at both ends, and overwrites nothing. */
static void truncated(void) {
	meet(1);
	void *memory, *comm = comms[0].comm;
	unsigned char *data = memory_of(comm, 8192, &memory);
	double until = now() + PATIENCE;
	int result = OK, done = 0, got;
	if (comms[0].receives) {
		void *at = data, *request;
		size_t space = 4096;
		int tag = 1;
		memset(data, 0xee, 8192);
		request = wait_posted(comm, 1, &at, &space, &tag, &memory);
		while (result == OK && !done && now() < until) result = net_test(request, &done, &got);
		for (int i = 0; i < 8192; i++)
			if (data[i] != 0xee) fail("byte %d was overwritten", i);
		if (result != REMOTE) fail("a message that was too long answered %d", result);
	} else {
		void *request = NULL;
		while (result == OK && !request && now() < until) result = net_send(comm, data, 4097, 1, memory, &request);
		if (result != USAGE) fail("a message that was too long answered %d", result);
		/* The receiver is to hear of it before this end closes. */
		char path[512];
		snprintf(path, sizeof path, "%s/told", folder);
		while (access(path, F_OK) != 0 && now() < until) usleep(1000);
	}
	if (comms[0].receives) {
		char path[512];
		snprintf(path, sizeof path, "%s/told", folder);
		FILE *file = fopen(path, "w");
		if (!file || fclose(file) != 0) fail("cannot write %s", path);
	}
	net_deregister(comm, memory);
	part(1);
}

/* One message, and then the process ends as programs do that close nothing. */
static void leave(void) {
	meet(1);
	void *memory, *comm = comms[0].comm;
	unsigned char *data = memory_of(comm, 1000, &memory);
	void *at = data;
	size_t space = 1000;
	int tag = 1;
	if (comms[0].receives) {
		wait_done(wait_posted(comm, 1, &at, &space, &tag, &memory), NULL);
	} else {
		fill(data, 1000, 1);
		wait_done(wait_sent(comm, data, 1000, tag, memory), NULL);
		/* Until its last record is there. */
		usleep(300000);
	}
	printf("done\n");
	exit(0);
}

/* West listens for nobody; east is refused when it connects. */
static void refused(void) {
	double until = now() + PATIENCE;
	char path[512];
	snprintf(path, sizeof path, "%s/refused", folder);
	if (west) {
		must("listen", net_listen(0, comms[0].handle, &comms[0].listening));
		give_handle(0);
		while (access(path, F_OK) != 0 && now() < until) {
			void *comm = NULL;
			must("accept", net_accept(comms[0].listening, &comm));
			if (comm) fail("a comm was accepted that the policy rules out");
			usleep(1000);
		}
		must("closeListen", net_close_listen(comms[0].listening));
		return;
	}
	int result = OK;
	while (!take_handle(0) && now() < until) usleep(1000);
	while (result == OK && !comms[0].comm && now() < until) result = net_connect(0, comms[0].handle, &comms[0].comm);
	FILE *file = fopen(path, "w");
	if (file) fclose(file);
	if (result != SYSTEM || comms[0].comm) fail("connect answered %d", result);
}

static void devices(void) {
	int count = 0;
	must("devices", net_devices(&count));
	for (int i = 0; i < count; i++) {
		struct properties_11 p;
		must("getProperties", net_properties(i, &p));
		printf("device %d: %s, %s, %d Mb/s, pointers %d, %d receives, most %zu, %d NICs from %d\n", i, p.name,
		       p.pci_path ? p.pci_path : "no PCI device", p.megabits, p.pointers, p.receives, p.most_p2p,
		       p.nics.count, p.nics.devices[0]);
		if (p.device_type != 0) fail("a device that runs code of its own");
	}
	struct properties_11 none;
	if (net_properties(count, &none) != ARGUMENT) fail("properties of a device that does not exist");
	if (net_properties(-1, &none) != ARGUMENT) fail("properties of a device that does not exist");
}

/* What a broken caller might do comes to an error, and to nothing worse. */
static void misuse(void) {
	int done, count = 1;
	void *out = NULL, *null = NULL;
	unsigned char handle[HANDLE_BYTES] = {0};
	char other[64];
	size_t bytes = 1;
	int tag = 0;
	void *made_up[] = {NULL, (void *)1, (void *)0x1234, other, (void *)-1};
#define IS(wanted, call)                                                                \
	do {                                                                            \
		int result = call;                                                      \
		if (result != (wanted)) fail("%s answered %d", #call, result);          \
	} while (0)
	IS(ARGUMENT, net_devices(NULL));
	IS(ARGUMENT, net_listen(0, NULL, &out));
	IS(ARGUMENT, net_listen(0, handle, NULL));
	IS(ARGUMENT, net_listen(77, handle, &out));
	IS(ARGUMENT, net_connect(0, handle, &out));
	IS(ARGUMENT, net_connect(0, NULL, &out));
	IS(ARGUMENT, net_connect(0, handle, NULL));
	for (unsigned i = 0; i < sizeof made_up / sizeof *made_up; i++) {
		void *it = made_up[i];
		IS(ARGUMENT, net_accept(it, &out));
		IS(ARGUMENT, net_register(it, other, 64, HOST_MEMORY, &out));
		IS(ARGUMENT, net_deregister(it, it));
		IS(ARGUMENT, net_send(it, other, 1, 0, it, &out));
		IS(ARGUMENT, net_receive(it, 1, &it, &bytes, &tag, &it, &out));
		IS(ARGUMENT, net_flush(it, 1, &it, &count, &it, &out));
		IS(ARGUMENT, net_test(it, &done, NULL));
		IS(ARGUMENT, net_close_send(it));
		IS(ARGUMENT, net_close_receive(it));
		IS(ARGUMENT, net_close_listen(it));
		IS(ARGUMENT, net_device_memory(it, it, &out));
	}
	IS(ARGUMENT, net_receive(other, 0, &null, &bytes, &tag, &null, &out));
	IS(ARGUMENT, net_receive(other, 1000, &null, &bytes, &tag, &null, &out));
	IS(ARGUMENT, net_register_dma_buf(other, other, 64, 0, &out));
	void *listening;
	IS(OK, net_listen(0, handle, &listening));
	/* Neither end waits for the other: nobody has connected, and then nobody accepts. */
	unsigned char ours[HANDLE_BYTES];
	memcpy(ours, handle, sizeof ours);
	for (int i = 0; i < 50; i++) {
		out = other;
		IS(OK, net_accept(listening, &out));
		if (out) fail("a comm from nobody");
	}
	for (int i = 0; i < 50; i++, usleep(2000)) {
		out = other;
		IS(OK, net_connect(0, ours, &out));
		if (out) fail("a comm that nobody accepted");
	}
	/* One that listens is none that sends. */
	IS(ARGUMENT, net_close_send(listening));
	IS(ARGUMENT, net_send(listening, other, 1, 0, NULL, &out));
	handle[4] = 99;
	IS(ARGUMENT, net_connect(0, handle, &out));
	IS(OK, net_close_listen(listening));
	IS(ARGUMENT, net_close_listen(listening));
}

int main(int count, char **arguments) {
	if (count < 6) fail("player LIBRARY VERSION SIDE FOLDER SCENE [SECONDS]");
	const char *scene = arguments[5];
	double seconds = count > 6 ? atof(arguments[6]) : 5;
	west = strcmp(arguments[3], "west") == 0;
	folder = arguments[4];
	int begun = net_open(arguments[1], atoi(arguments[2]), hears);
	if (strcmp(scene, "init") == 0) {
		printf("init answered %d\n", begun);
		return 0;
	}
	must("init", begun);
	if (strcmp(scene, "sizes") == 0) sizes();
	else if (strcmp(scene, "groups") == 0) groups();
	else if (strcmp(scene, "many") == 0) many();
	else if (strcmp(scene, "parallel") == 0) parallel();
	else if (strcmp(scene, "stream") == 0) stream(seconds);
	else if (strcmp(scene, "truncated") == 0) truncated();
	else if (strcmp(scene, "leave") == 0) leave();
	else if (strcmp(scene, "refused") == 0) refused();
	else if (strcmp(scene, "devices") == 0) devices();
	else if (strcmp(scene, "misuse") == 0) misuse();
	else fail("there is no scene %s", scene);
	must("finalize", net_finalize());
	printf("done\n");
	return 0;
}
