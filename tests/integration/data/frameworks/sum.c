#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int rank, size, sum, length;
    char host[MPI_MAX_PROCESSOR_NAME];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("sum %d of %d on %s\n", sum, size, host);
    MPI_Finalize();
    return 0;
}
