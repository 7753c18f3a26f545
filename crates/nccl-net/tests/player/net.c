/* One version of the interface of the four, called alike. */
#define _GNU_SOURCE
#include "net.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int version;
static struct net_8 *v8;
static struct net_9 *v9;
static struct net_10 *v10;
static struct net_11 *v11;
static void *context;

/* Calls what has the same place and arguments in all versions. */
#define ALIKE(function, ...)                            \
	(version == 8	 ? v8->function(__VA_ARGS__)    \
	 : version == 9	 ? v9->function(__VA_ARGS__)    \
	 : version == 10 ? v10->function(__VA_ARGS__)   \
			 : v11->function(__VA_ARGS__))

int net_open(const char *library, int wanted, logger log) {
	char symbol[32];
	void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!opened) {
		fprintf(stderr, "%s\n", dlerror());
		return -1;
	}
	snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", wanted);
	void *table = dlsym(opened, symbol);
	if (!table || wanted < 8 || wanted > 11) {
		fprintf(stderr, "%s has no %s\n", library, symbol);
		return -1;
	}
	version = wanted;
	v8 = table;
	v9 = table;
	v10 = table;
	v11 = table;
	if (strcmp(v8->name, "crowfly") != 0) {
		fprintf(stderr, "the network's name is %s\n", v8->name);
		return -1;
	}
	switch (version) {
	case 8: return v8->init(log);
	case 9: return v9->init(log);
	case 10: return v10->init(log, NULL);
	default: return v11->init(&context, 0x1234, NULL, log, NULL);
	}
}

int net_devices(int *count) { return ALIKE(devices, count); }

int net_properties(int device, struct properties_11 *to) {
	memset(to, 0, sizeof *to);
	if (version == 11) return v11->properties(device, to);
	if (version > 8) return ALIKE(properties, device, (void *)to);
	struct properties_8 old;
	int result = v8->properties(device, &old);
	if (result != OK) return result;
	to->name = old.name;
	to->pci_path = old.pci_path;
	to->pointers = old.pointers;
	to->megabits = old.megabits;
	to->comms = old.comms;
	to->receives = old.receives;
	to->device_type = old.device_type;
	to->nics.count = 1;
	to->nics.devices[0] = device;
	to->most_p2p = 1 << 30;
	return OK;
}

int net_listen(int device, void *handle, void **listening) {
	if (version == 11) return v11->listen(context, device, handle, listening);
	return v8->listen(device, handle, listening);
}

int net_connect(int device, void *handle, void **comm) {
	void *on_device = NULL;
	int traffic_class = -1;
	if (version == 11) return v11->connect(context, device, handle, comm, &on_device);
	if (version == 10) return v10->connect(device, &traffic_class, handle, comm, &on_device);
	return v8->connect(device, handle, comm, &on_device);
}

int net_accept(void *listening, void **comm) {
	void *on_device = NULL;
	return ALIKE(accept, listening, comm, &on_device);
}

int net_register(void *comm, void *data, size_t bytes, int kind, void **memory) {
	return ALIKE(register_memory, comm, data, bytes, kind, memory);
}

int net_register_dma_buf(void *comm, void *data, size_t bytes, int fd, void **memory) {
	return ALIKE(register_dma_buf, comm, data, bytes, GPU_MEMORY, 0, fd, memory);
}

int net_deregister(void *comm, void *memory) { return ALIKE(deregister, comm, memory); }

int net_send(void *comm, void *data, size_t bytes, int tag, void *memory, void **request) {
	if (version == 8) return v8->send(comm, data, (int)bytes, tag, memory, request);
	if (version == 9) return v9->send(comm, data, bytes, tag, memory, request);
	if (version == 10) return v10->send(comm, data, bytes, tag, memory, NULL, request);
	return v11->send(comm, data, bytes, tag, memory, NULL, request);
}

int net_receive(void *comm, int count, void **data, size_t *bytes, int *tags, void **memory, void **request) {
	if (version == 8) {
		int sizes[64];
		for (int i = 0; i < count && i < 64; i++) sizes[i] = (int)bytes[i];
		return v8->receive(comm, count, data, sizes, tags, memory, request);
	}
	/* From version 9 on NCCL may say that it can do without the completion. */
	if (count == 1) *request = (void *)1;
	if (version == 9) return v9->receive(comm, count, data, bytes, tags, memory, request);
	if (version == 10) return v10->receive(comm, count, data, bytes, tags, memory, NULL, request);
	return v11->receive(comm, count, data, bytes, tags, memory, NULL, request);
}

int net_flush(void *comm, int count, void **data, int *sizes, void **memory, void **request) {
	return ALIKE(flush, comm, count, data, sizes, memory, request);
}

int net_test(void *request, int *done, int *sizes) { return ALIKE(test, request, done, sizes); }
int net_close_send(void *comm) { return ALIKE(close_send, comm); }
int net_close_receive(void *comm) { return ALIKE(close_receive, comm); }
int net_close_listen(void *listening) { return ALIKE(close_listen, listening); }
int net_device_memory(void *comm, void *memory, void **to) { return ALIKE(device_memory, comm, memory, to); }

int net_make_virtual(int *device, struct nics *nics) {
	if (version == 8) return USAGE;
	if (version == 9) return v9->make_virtual(device, nics);
	if (version == 10) return v10->make_virtual(device, nics);
	return v11->make_virtual(device, nics);
}

int net_finalize(void) {
	if (version != 11) return OK;
	int hints = 0;
	if (v11->attributes(context, &hints) != OK) return INTERNAL;
	return v11->finalize(context);
}
