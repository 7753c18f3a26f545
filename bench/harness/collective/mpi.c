/* All-reduce of fp32 by sum among the ranks of an MPI job, measured as `crowfly bench collective` measures it: one call
 * whose result is checked, one that is timed to choose how many follow, then as many as fill the time. The slowest rank's
 * time counts; CPU seconds are those of all ranks.
 *
 *     mpirun -n RANKS mpi_allreduce SECONDS BYTES...
 *
 * Rank 0 prints one JSON object a size. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define MOST_CALLS 100000

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + 1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static float value(int rank, size_t at) { return (float)((rank * 7 + at * 3) % 5); }

static void call(float *data, size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 3) {
        fprintf(stderr, "usage: %s SECONDS BYTES...\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, 64);
    }
    const double seconds = atof(argv[1]);
    for (int arg = 2; arg < argc; arg++) {
        const size_t bytes = strtoull(argv[arg], NULL, 10), count = bytes / sizeof(float);
        float *data = malloc(count * sizeof(float));
        if (!data) MPI_Abort(MPI_COMM_WORLD, 70);
        for (size_t at = 0; at < count; at++) data[at] = value(rank, at);
        call(data, count);
        double wrong = 0;
        for (size_t at = 0; at < count; at++) {
            float wanted = 0;
            for (int other = 0; other < ranks; other++) wanted += value(other, at);
            wrong += data[at] != wanted;
        }
        memset(data, 0, count * sizeof(float));
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        call(data, count);
        double once = MPI_Wtime() - began;
        MPI_Allreduce(MPI_IN_PLACE, &once, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        double wanted_calls = seconds / (once > 1e-9 ? once : 1e-9);
        long calls = wanted_calls > MOST_CALLS ? MOST_CALLS : wanted_calls < 1 ? 1 : (long)wanted_calls;
        MPI_Barrier(MPI_COMM_WORLD);
        double spent = cpu_seconds();
        began = MPI_Wtime();
        for (long i = 0; i < calls; i++) call(data, count);
        double took = MPI_Wtime() - began;
        spent = cpu_seconds() - spent;
        MPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, &spent, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0)
            printf("{\"bytes\": %zu, \"calls\": %ld, \"seconds\": %.9g, \"cpu_seconds\": %.9g, \"wrong\": %.0f}\n", bytes,
                   calls, took / calls, spent / calls, wrong);
        free(data);
    }
    MPI_Finalize();
    return 0;
}
