/* Every rank tells the next one who it is, and all add up who they are. With an argument, the last rank ends with that exit code.
   RING_BYTES is the size of a further message to the next rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "none";
}

int main(int argc, char **argv) {
    int rank, size, received, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 0, &received, 1, MPI_INT, (rank + size - 1) % size, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d on GCD %s of %s received %d, the sum is %d\n", rank, size, variable("IPUOF_VIPU_API_GCD_ID"),
           variable("IPUOF_VIPU_API_PARTITION_ID"), received, sum);
    fflush(stdout);
    if (getenv("RING_BYTES")) {
        int bytes = atoi(getenv("RING_BYTES"));
        char *sent = calloc(2, bytes), *received = sent + bytes;
        MPI_Sendrecv(sent, bytes, MPI_CHAR, (rank + 1) % size, 1, received, bytes, MPI_CHAR, (rank + size - 1) % size, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        free(sent);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (argc > 1 && rank == size - 1) exit(atoi(argv[1]));
    MPI_Finalize();
    return 0;
}
