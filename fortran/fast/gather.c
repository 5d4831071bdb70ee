/* What gathering rows costs here: the ceiling of `trigraph bench` for operators that do little else. */
#include <stdint.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { lanes = 16, most = 16, ahead = 8 };  /* numbers of a vector; vectors of a row; rows from one to that prefetched */

/* Numbers of 32 bits are added as integers: their bits do not matter then, nor do those of half a float64. */
typedef uint32_t vector __attribute__((vector_size(4 * lanes), aligned(4), may_alias));

int trigraph_gather(int num_threads, int64_t n, int64_t width, const int32_t *id, const uint32_t *x, uint32_t *sum);

/* sum += rows id[0] .. id[n - 1] of x, of V vectors each; the sum stays in registers. */
#define SUM_ROWS(V)                                                                                   \
    static void sum_rows_##V(int64_t n, const int32_t *id, const uint32_t *x, vector *sum)            \
    {                                                                                                 \
        vector s[V] = {{0}};                                                                          \
        for (int64_t q = 0; q < n; q++) {                                                             \
            const uint32_t *next = x + (int64_t)id[q + ahead < n ? q + ahead : n - 1] * (V * lanes);  \
            const uint32_t *row = x + (int64_t)id[q] * (V * lanes);                                   \
            for (int v = 0; v < V; v++)                                                               \
                __builtin_prefetch(next + v * lanes);                                                 \
            for (int v = 0; v < V; v++)                                                               \
                s[v] += *(const vector *)(row + v * lanes);                                           \
        }                                                                                             \
        for (int v = 0; v < V; v++)                                                                   \
            sum[v] += s[v];                                                                           \
    }
SUM_ROWS(1)
SUM_ROWS(2)
SUM_ROWS(4)
SUM_ROWS(8)
SUM_ROWS(16)

/* The sum over q of row id[q] of x, as integers of 32 bits that wrap around. id has n numbers from 0 on, rows of x and sum have
   `width` numbers. 1 where the width is not 1, 2, 4, 8 or 16 vectors of 16 numbers: then nothing is done. */
int trigraph_gather(int num_threads, int64_t n, int64_t width, const int32_t *id, const uint32_t *x, uint32_t *sum)
{
    void (*sum_rows)(int64_t, const int32_t *, const uint32_t *, vector *) =
        width == lanes ? sum_rows_1 : width == 2 * lanes ? sum_rows_2 : width == 4 * lanes ? sum_rows_4 :
        width == 8 * lanes ? sum_rows_8 : width == 16 * lanes ? sum_rows_16 : 0;

    if (sum_rows == 0)
        return 1;
    for (int64_t i = 0; i < width; i++)
        sum[i] = 0;
#pragma omp parallel num_threads(num_threads)
    {
        int64_t thread = 0, team = 1;
        vector own[most] = {{0}};
#ifdef _OPENMP
        thread = omp_get_thread_num();
        team = omp_get_num_threads();
#endif
        sum_rows(n * (thread + 1) / team - n * thread / team, id + n * thread / team, x, own);
#pragma omp critical
        for (int64_t i = 0; i < width; i++)
            sum[i] += own[i / lanes][i % lanes];
    }
    return 0;
}
