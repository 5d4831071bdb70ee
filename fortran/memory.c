/* Memory and threads of the Fortran panels, where the system may refuse them.

   Where it can (MALLOC_IS_WRAPPED), the linker puts `__wrap_malloc` in the place of malloc in the extension modules, since
   gfortran's `allocate` calls malloc. It does three things. What is allocated begins a cache line, as vectors as long as one want it: a
   load across two lines costs two. For large pieces large pages are asked for, as NumPy does: clearing 50 MB of work space a small
   page at a time takes as long as a gradient of attention. And the size of a request that the system refuses is kept for the text of
   Python's MemoryError. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

int64_t trigraph_refused_bytes(void);
int trigraph_reserve_team(int num_threads);

static _Atomic int64_t refused = 0;

#ifdef MALLOC_IS_WRAPPED
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

void *__wrap_malloc(size_t size)
{
    enum { line = 64, least = 4 * line, page = 1 << 21, least_pages = 1 << 22 };
    void *memory;

    if (size < least || size > SIZE_MAX - line)
        memory = __real_malloc(size);
    else
        memory = aligned_alloc(line, (size + line - 1) / line * line);
#ifdef MADV_HUGEPAGE
    if (memory != NULL && size >= least_pages) {
        uintptr_t begin = ((uintptr_t)memory + page - 1) / page * page, end = ((uintptr_t)memory + size) / page * page;
        if (begin < end)
            madvise((void *)begin, end - begin, MADV_HUGEPAGE);
    }
#endif
    if (memory == NULL)
        refused = size > INT64_MAX ? INT64_MAX : (int64_t)size;
    return memory;
}
#endif

/* Bytes of the request that was refused last, or 0; it is forgotten then. */
int64_t trigraph_refused_bytes(void)
{
    return atomic_exchange(&refused, 0);
}

static void *wait_for_start(void *start)
{
    pthread_mutex_lock(start);
    pthread_mutex_unlock(start);
    return NULL;
}

/* Whether the OpenMP runtime will get what it needs for a team of num_threads: 0, or 1 where that is refused. The runtime ends the
   process where a thread cannot be started, so as many threads as it will start are started here first; the C library keeps their
   stacks for the next ones. A team of the size that this thread used last exists already. */
int trigraph_reserve_team(int num_threads)
{
    enum { small = 1 << 16 };  /* bytes of the runtime's own tables for a team, with room to spare */
    static _Thread_local int last = 1;
    pthread_mutex_t start = PTHREAD_MUTEX_INITIALIZER;
    int missing = num_threads - last, started = 0;
    pthread_t *threads;

    threads = malloc(small + (size_t)(missing > 0 ? missing : 0) * sizeof *threads);
    if (threads == NULL)
        return 1;
    pthread_mutex_lock(&start);
    while (started < missing && pthread_create(&threads[started], NULL, wait_for_start, &start) == 0)
        started++;
    pthread_mutex_unlock(&start);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    if (started < missing)
        return 1;
    last = num_threads;
    return 0;
}
