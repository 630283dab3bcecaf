/* Each rank learns of the next one by PMI-2 alone. */
#include <slurm/pmi2.h>
#include <stdio.h>

int main(void) {
    int spawned, size, rank, apps, length;
    char job[256], key[16], value[16];
    if (PMI2_Init(&spawned, &size, &rank, &apps) || PMI2_Job_GetId(job, sizeof job)) return 1;
    snprintf(key, sizeof key, "rank-%d", rank);
    snprintf(value, sizeof value, "%d", rank);
    if (PMI2_KVS_Put(key, value) || PMI2_KVS_Fence()) return 2;
    snprintf(key, sizeof key, "rank-%d", (rank + 1) % size);
    if (PMI2_KVS_Get(job, PMI2_ID_NULL, key, value, sizeof value, &length)) return 3;
    printf("rank %d of %d, next is %s\n", rank, size, value);
    fflush(stdout);
    return PMI2_Finalize();
}
