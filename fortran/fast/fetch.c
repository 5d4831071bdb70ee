/* Asks the processor for rows that will be read soon: Fortran has no word for it. */
#include <stddef.h>
#include <stdint.h>

#define LINE 64 /* bytes of a cache line */

void trigraph_fetch(int n, const int *id, size_t row, size_t width, const char *x);

/* The first `width` bytes of row id[q] of x, for q = 0 .. n - 1; rows are numbered from 1 and lie `row` bytes apart. */
void trigraph_fetch(int n, const int *id, size_t row, size_t width, const char *x)
{
    for (int q = 0; q < n; q++) {
        const char *begin = x + (size_t)(id[q] - 1)*row, *line = begin - (uintptr_t)begin%LINE;
        for (; line < begin + width; line += LINE)
            __builtin_prefetch(line);
    }
}
