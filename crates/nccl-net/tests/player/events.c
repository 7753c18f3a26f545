/* Plays the part of NCCL that tells a profiler of its calls, interface versions 4 and 5. Declared anew from the
 * interface's public facts, and apart from the plugin's own declarations: where the two differ, tests fail.
 *
 *     events LIBRARY VERSION SCENE */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLLECTIVE = 1 << 1, PAIR = 1 << 2, KERNEL = 1 << 6, GROUP_CALL = 1 << 8 };

typedef void (*logger)(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);

#define COLLECTIVE_PART                \
	uint64_t sequence;             \
	const char *what;              \
	const void *from;              \
	void *to;                      \
	size_t count;                  \
	int root;                      \
	const char *kind;              \
	uint8_t channels, warps;       \
	const char *algorithm, *protocol;

#define PAIR_PART          \
	const char *what;  \
	void *at;          \
	const char *kind;  \
	size_t count;      \
	int peer;          \
	uint8_t channels;

struct event_4 {
	uint8_t type;
	void *parent;
	int rank;
	union {
		struct { COLLECTIVE_PART } collective;
		struct { PAIR_PART } pair;
		struct { uint8_t channel; uint64_t timer; } kernel;
	};
};

struct event_5 {
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct { bool captured; int depth; } group_call;
		struct { COLLECTIVE_PART void *group; } collective;
		struct { PAIR_PART void *group; } pair;
		struct { uint8_t channel; uint64_t timer; } kernel;
	};
};

_Static_assert(sizeof(struct event_4) == 104, "events of version 4");
_Static_assert(sizeof(struct event_5) == 112, "events of version 5");

struct profiler_4 {
	const char *name;
	int (*init)(void **context, int *mask, const char *name, uint64_t number, int nodes, int ranks, int rank, logger);
	int (*start)(void *context, void **handle, struct event_4 *);
	int (*stop)(void *handle);
	int (*record)(void *handle, int state, void *arguments);
	int (*finalize)(void *context);
};

struct profiler_5 {
	const char *name;
	int (*init)(void **context, uint64_t number, int *mask, const char *name, int nodes, int ranks, int rank, logger);
	int (*start)(void *context, void **handle, struct event_5 *);
	int (*stop)(void *handle);
	int (*record)(void *handle, int state, void *arguments);
	int (*finalize)(void *context);
};

static int version;
static struct profiler_4 *v4;
static struct profiler_5 *v5;

static void fail(const char *what) {
	printf("%s\n", what);
	exit(1);
}

static void must(const char *what, bool holds) {
	if (!holds) fail(what);
}

static void hears(int level, unsigned long subsystems, const char *file, int line, const char *format, ...) {
	va_list more;
	(void)level, (void)subsystems, (void)file, (void)line;
	va_start(more, format);
	vfprintf(stderr, format, more);
	va_end(more);
	fputc('\n', stderr);
}

static int init(void **context, uint64_t number, int *mask, const char *name, int nodes, int ranks, int rank) {
	if (version == 4) return v4->init(context, mask, name, number, nodes, ranks, rank, hears);
	return v5->init(context, number, mask, name, nodes, ranks, rank, hears);
}

static int finalize(void *context) { return version == 4 ? v4->finalize(context) : v5->finalize(context); }

/* One event from its start to its end, as NCCL goes about it: a handle of null is never used. */
static void tell(void *context, struct event_5 *event) {
	void *handle = (void *)1;
	int result;
	if (version == 4) {
		struct event_4 old = { .type = (uint8_t)event->type, .parent = event->parent, .rank = event->rank };
		memcpy(&old.collective, &event->collective, sizeof old.collective);
		result = v4->start(context, &handle, &old);
	} else {
		result = v5->start(context, &handle, event);
	}
	must("an event is taken", result == 0);
	if (!handle) return;
	must("its state is taken", (version == 4 ? v4->record : v5->record)(handle, 22, NULL) == 0);
	must("its end is taken", (version == 4 ? v4->stop : v5->stop)(handle) == 0);
}

static void collective(void *context, const char *what, const char *kind, size_t count, const char *algorithm,
		       const char *protocol, int channels) {
	static uint64_t sequence;
	struct event_5 event = { .type = COLLECTIVE, .rank = 1 };
	event.collective.sequence = sequence++;
	event.collective.what = what;
	event.collective.kind = kind;
	event.collective.count = count;
	event.collective.root = -1;
	event.collective.channels = (uint8_t)channels;
	event.collective.warps = 16;
	event.collective.algorithm = algorithm;
	event.collective.protocol = protocol;
	tell(context, &event);
}

static void pair(void *context, const char *what, size_t count, int peer) {
	struct event_5 event = { .type = PAIR, .rank = 1 };
	event.pair.what = what;
	event.pair.kind = "ncclInt8";
	event.pair.count = count;
	event.pair.peer = peer;
	event.pair.channels = 1;
	tell(context, &event);
}

static void calls(void) {
	void *closed = NULL, *open = NULL;
	int mask = 0;
	must("the first begins", init(&closed, 0xfeed, &mask, "tensor parallel", 2, 16, 9) == 0);
	must("collectives and pairs are asked for", mask == (COLLECTIVE | PAIR));
	must("the second begins", init(&open, 0xbeef, &mask, NULL, 1, 2, 1) == 0);
	must("each has a context", closed && open && closed != open);
	for (int i = 0; i < 3; i++) collective(closed, "AllReduce", "ncclBfloat16", 1000, "RING", "LL128", 4 + i);
	collective(closed, "AllReduce", "ncclBfloat16", 1 << 20, "NVLS", "SIMPLE", 16);
	collective(closed, "AllGather", "ncclFloat32", 7, "RING", "LL", 1);
	pair(closed, "Send", 100, 3);
	pair(closed, "Send", 28, 4);
	pair(closed, "Recv", 128, 3);
	/* Events that nobody asked for: NCCL tells of those that are above the ones that were. */
	struct event_5 other = { .type = version == 4 ? KERNEL : GROUP_CALL, .rank = 1 };
	memset(&other.collective, 0xff, sizeof other.collective);
	tell(closed, &other);
	collective(open, "Broadcast", "ncclUint8", 5, NULL, NULL, 2);
	must("the first ends", finalize(closed) == 0);
}

static void misuse(void) {
	void *context = NULL, *handle = NULL;
	int mask = 0;
	must("no room for a context", init(NULL, 1, &mask, NULL, 1, 1, 0) != 0);
	must("no room for the events", init(&context, 1, NULL, NULL, 1, 1, 0) != 0 && !context);
	/* What follows is never NCCL's failure. */
	collective((void *)0x1234, "AllReduce", "ncclFloat32", 1, "RING", "LL", 1);
	must("no event", (version == 4 ? v4->start(NULL, &handle, NULL) : v5->start(NULL, &handle, NULL)) == 0);
	must("no room for a handle", (version == 4 ? v4->start(NULL, NULL, NULL) : v5->start(NULL, NULL, NULL)) == 0);
	must("none to end", finalize((void *)0x1234) == 0);
}

int main(int count, char **arguments) {
	if (count != 4) fail("events LIBRARY VERSION SCENE");
	version = atoi(arguments[2]);
	void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
	if (!library) fail(dlerror());
	if (version == 4) v4 = dlsym(library, "ncclProfiler_v4");
	if (version == 5) v5 = dlsym(library, "ncclProfiler_v5");
	must("the library has this version", v4 || v5);
	must("its name", strcmp(v4 ? v4->name : v5->name, "crowfly") == 0);
	if (strcmp(arguments[3], "calls") == 0) calls();
	else if (strcmp(arguments[3], "misuse") == 0) misuse();
	else fail("there is no such scene");
	printf("done\n");
	return 0;
}
