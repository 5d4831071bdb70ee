/* Memory and threads of the Fortran backends, which the system may refuse.

   If the linker supports it (MALLOC_IS_WRAPPED), `__wrap_malloc` replaces malloc in the extension modules, because gfortran's `allocate`
   calls malloc. It does three things. Allocations start at a cache line, as vectors of this length require: a load across two lines
   costs two. For large allocations it requests large pages, as NumPy does: clearing 50 MB of work space one small page at a time takes
   as long as a gradient of attention. And it records the size of a request that the system refuses, for the text of Python's
   MemoryError.

   In modules with parallel regions (REGIONS_ARE_WRAPPED), `__wrap_GOMP_parallel` also replaces the function with which GCC's OpenMP
   runtime starts a region. That function allocates tables, even for one thread, and ends the process if they are refused. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

int64_t trigraph_refused_bytes(void);
int trigraph_reserve_team(int num_threads);
void trigraph_release_team(void);

static _Atomic int64_t refused = 0;

enum { runtime_tables = 1 << 16 };  /* bytes for the OpenMP runtime's tables of a team, more than needed */
static _Thread_local void *reserved = NULL;  /* memory kept away from the procedure, for the runtime */
/* Threads that wait for `start`; their stacks are kept away from the procedure, for the runtime's threads. */
static _Thread_local pthread_t *waiting = NULL;
static _Thread_local int num_waiting = 0;
static _Thread_local pthread_mutex_t start;

static void end_waiting(void)
{
    if (waiting == NULL)
        return;
    pthread_mutex_unlock(&start);
    for (int i = 0; i < num_waiting; i++)
        pthread_join(waiting[i], NULL);
    pthread_mutex_destroy(&start);
    free(waiting);
    waiting = NULL;
    num_waiting = 0;
}

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

#ifdef REGIONS_ARE_WRAPPED
void __real_GOMP_parallel(void (*body)(void *), void *data, unsigned num_threads, unsigned flags);
void __wrap_GOMP_parallel(void (*body)(void *), void *data, unsigned num_threads, unsigned flags);

/* Give the reserved memory to the runtime for one parallel region, and reserve it again for the next one. */
void __wrap_GOMP_parallel(void (*body)(void *), void *data, unsigned num_threads, unsigned flags)
{
    int again = reserved != NULL;

    trigraph_release_team();  /* also the waiting threads */
    __real_GOMP_parallel(body, data, num_threads, flags);
    if (again)
        reserved = malloc(runtime_tables);
}
#endif

/* Return the bytes of the request that was last refused, or 0, and forget it. */
int64_t trigraph_refused_bytes(void)
{
    return atomic_exchange(&refused, 0);
}

static void *wait_for_start(void *mutex)
{
    pthread_mutex_lock(mutex);
    pthread_mutex_unlock(mutex);
    return NULL;
}

/* Return 0 if the OpenMP runtime will get the resources for a team of num_threads, 1 if they are refused. The runtime ends the process
   if it cannot start a thread, so as many threads as it will start are started here first. They wait until the first parallel region
   begins, so that their stacks become free then and not before, whether or not the C library keeps stacks. A team of the size that this
   thread used last exists already. Calls with one thread leave it waiting, and do not count: otherwise each large call after a small one
   would start a thread, which takes 0.3 ms while other threads of a team spin. Memory for the runtime's tables stays reserved while the
   procedure allocates its work space, until each parallel region and after it, up to trigraph_release_team. */
int trigraph_reserve_team(int num_threads)
{
    static _Thread_local int last = 1;
    int missing = num_threads - last;

    waiting = malloc((size_t)(missing > 0 ? missing : 1) * sizeof *waiting);
    reserved = malloc(runtime_tables);
    if (waiting == NULL || reserved == NULL) {
        free(waiting);
        waiting = NULL;
        trigraph_release_team();
        return 1;
    }
    pthread_mutex_init(&start, NULL);
    pthread_mutex_lock(&start);
    while (num_waiting < missing && pthread_create(&waiting[num_waiting], NULL, wait_for_start, &start) == 0)
        num_waiting++;
    if (num_waiting < missing) {
        trigraph_release_team();
        return 1;
    }
#ifndef REGIONS_ARE_WRAPPED
    end_waiting();
#endif
    if (num_threads > 1)
        last = num_threads;
    return 0;
}

/* Free the memory that trigraph_reserve_team reserved, and end the threads that wait. */
void trigraph_release_team(void)
{
    end_waiting();
    free(reserved);
    reserved = NULL;
}
