/* What the fast path allocates begins a cache line, as vectors as long as one want it: a load across two lines costs two.
   gfortran's `allocate` has no such option and calls malloc, which the linker turns into this (--wrap=malloc). */
#include <stdint.h>
#include <stdlib.h>

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

void *__wrap_malloc(size_t size)
{
    enum { line = 64, least = 4 * line };
    if (size < least || size > SIZE_MAX - line)
        return __real_malloc(size);
    return aligned_alloc(line, (size + line - 1) / line * line);
}
