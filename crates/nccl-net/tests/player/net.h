/* NCCL's network plugin interface, versions 8 to 11, as far as the player needs it. Declared anew from
 * its public facts, and apart from the plugin's own declarations: where the two differ, tests fail. */
#ifndef PLAYER_NET_H
#define PLAYER_NET_H

#include <stddef.h>
#include <stdint.h>

enum { OK = 0, SYSTEM = 2, INTERNAL = 3, ARGUMENT = 4, USAGE = 5, REMOTE = 6 };
enum { LEVEL_WARN = 2, LEVEL_INFO = 3 };
enum { HANDLE_BYTES = 128, HOST_MEMORY = 1, GPU_MEMORY = 2 };

typedef void (*logger)(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);
typedef void *profiler;

struct nics {
	int count;
	int devices[4];
};

struct properties_8 {
	char *name, *pci_path;
	uint64_t guid;
	int pointers, global_memory, megabits, port;
	float latency;
	int comms, receives, device_type, device_version;
};

struct properties_9 {
	char *name, *pci_path;
	uint64_t guid;
	int pointers, global_memory, force_flush, megabits, port;
	float latency;
	int comms, receives, device_type, device_version;
	struct nics nics;
	size_t most_p2p, most_collective;
};

struct properties_11 {
	char *name, *pci_path;
	uint64_t guid;
	int pointers, global_memory, force_flush, megabits, port;
	float latency;
	int comms, receives, device_type, device_version;
	struct nics nics;
	size_t most_p2p, most_collective;
	int multi_request;
};

_Static_assert(sizeof(struct properties_8) == 64, "properties of version 8");
_Static_assert(offsetof(struct properties_8, latency) == 40, "properties of version 8");
_Static_assert(sizeof(struct nics) == 20, "virtual devices");
_Static_assert(sizeof(struct properties_9) == 104, "properties of versions 9 and 10");
_Static_assert(offsetof(struct properties_9, nics) == 64, "properties of versions 9 and 10");
_Static_assert(offsetof(struct properties_9, most_p2p) == 88, "properties of versions 9 and 10");
_Static_assert(sizeof(struct properties_11) == 112, "properties of version 11");
_Static_assert(offsetof(struct properties_11, multi_request) == 104, "properties of version 11");

/* What the versions have in common, in this order, from `accept` on. */
#define MEMORY_PART                                                                                     \
	int (*accept)(void *listening, void **comm, void **on_device);                                  \
	int (*register_memory)(void *comm, void *data, size_t bytes, int kind, void **memory);          \
	int (*register_dma_buf)(void *comm, void *data, size_t bytes, int kind, uint64_t offset, int fd, \
				void **memory);                                                         \
	int (*deregister)(void *comm, void *memory);

#define END_PART                                                                                        \
	int (*flush)(void *comm, int count, void **data, int *sizes, void **memory, void **request);    \
	int (*test)(void *request, int *done, int *sizes);                                              \
	int (*close_send)(void *comm);                                                                  \
	int (*close_receive)(void *comm);                                                               \
	int (*close_listen)(void *listening);                                                           \
	int (*device_memory)(void *comm, void *memory, void **to);                                      \
	int (*consumed)(void *comm, int count, void *request);

struct net_8 {
	const char *name;
	int (*init)(logger);
	int (*devices)(int *);
	int (*properties)(int, struct properties_8 *);
	int (*listen)(int device, void *handle, void **listening);
	int (*connect)(int device, void *handle, void **comm, void **on_device);
	MEMORY_PART
	int (*send)(void *comm, void *data, int bytes, int tag, void *memory, void **request);
	int (*receive)(void *comm, int count, void **data, int *bytes, int *tags, void **memory, void **request);
	END_PART
};

struct net_9 {
	const char *name;
	int (*init)(logger);
	int (*devices)(int *);
	int (*properties)(int, struct properties_9 *);
	int (*listen)(int device, void *handle, void **listening);
	int (*connect)(int device, void *handle, void **comm, void **on_device);
	MEMORY_PART
	int (*send)(void *comm, void *data, size_t bytes, int tag, void *memory, void **request);
	int (*receive)(void *comm, int count, void **data, size_t *bytes, int *tags, void **memory, void **request);
	END_PART
	int (*make_virtual)(int *device, struct nics *);
};

struct net_10 {
	const char *name;
	int (*init)(logger, profiler);
	int (*devices)(int *);
	int (*properties)(int, struct properties_9 *);
	int (*listen)(int device, void *handle, void **listening);
	int (*connect)(int device, void *config, void *handle, void **comm, void **on_device);
	MEMORY_PART
	int (*send)(void *comm, void *data, size_t bytes, int tag, void *memory, void *profile, void **request);
	int (*receive)(void *comm, int count, void **data, size_t *bytes, int *tags, void **memory, void **profile,
		       void **request);
	END_PART
	int (*make_virtual)(int *device, struct nics *);
};

struct net_11 {
	const char *name;
	int (*init)(void **context, uint64_t communicator, void *config, logger, profiler);
	int (*devices)(int *);
	int (*properties)(int, struct properties_11 *);
	int (*listen)(void *context, int device, void *handle, void **listening);
	int (*connect)(void *context, int device, void *handle, void **comm, void **on_device);
	MEMORY_PART
	int (*send)(void *comm, void *data, size_t bytes, int tag, void *memory, void *profile, void **request);
	int (*receive)(void *comm, int count, void **data, size_t *bytes, int *tags, void **memory, void **profile,
		       void **request);
	END_PART
	int (*make_virtual)(int *device, struct nics *);
	int (*finalize)(void *context);
	int (*attributes)(void *context, void *hints);
};

_Static_assert(sizeof(struct net_8) == 19 * 8, "functions of version 8");
_Static_assert(sizeof(struct net_9) == 20 * 8, "functions of version 9");
_Static_assert(sizeof(struct net_10) == 20 * 8, "functions of version 10");
_Static_assert(sizeof(struct net_11) == 22 * 8, "functions of version 11");

/* One version of the four, called alike. */
int net_open(const char *library, int version, logger);
int net_devices(int *count);
int net_properties(int device, struct properties_11 *);
int net_listen(int device, void *handle, void **listening);
int net_connect(int device, void *handle, void **comm);
int net_accept(void *listening, void **comm);
int net_register(void *comm, void *data, size_t bytes, int kind, void **memory);
int net_register_dma_buf(void *comm, void *data, size_t bytes, int fd, void **memory);
int net_deregister(void *comm, void *memory);
int net_send(void *comm, void *data, size_t bytes, int tag, void *memory, void **request);
int net_receive(void *comm, int count, void **data, size_t *bytes, int *tags, void **memory, void **request);
int net_flush(void *comm, int count, void **data, int *sizes, void **memory, void **request);
int net_test(void *request, int *done, int *sizes);
int net_close_send(void *comm);
int net_close_receive(void *comm);
int net_close_listen(void *listening);
int net_device_memory(void *comm, void *memory, void **to);
int net_make_virtual(int *device, struct nics *);
int net_finalize(void);

#endif
