/* Memory and threads for the Fortran backends, and errors if the system refuses them.

   If the linker supports it (MALLOC_IS_WRAPPED), `__wrap_malloc` replaces malloc in the extension modules, because gfortran's `allocate`
   calls malloc. It aligns allocations with cache lines, because loading a vector that crosses two lines takes as long as two loads. It
   requests large pages for large allocations, as NumPy does, because clearing 50 MB of workspace in small pages takes as long as an
   attention gradient. It also records the size of a refused request for the message of Python's MemoryError.

   In modules with parallel regions (REGIONS_ARE_WRAPPED), `__wrap_GOMP_parallel` also replaces the function with which GCC's OpenMP
   runtime starts a region. This function allocates tables, even for one thread, and ends the process if the allocation fails. */
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

enum { runtime_tables = 1 << 16 };  /* bytes reserved for the OpenMP runtime's tables of a team; more than needed */
static _Thread_local void *reserved = NULL;  /* memory kept for the runtime, so that the called procedure cannot allocate it */
/* Threads that wait for `start`, and thus reserve stacks for the threads of the runtime. */
static _Thread_local pthread_t *waiting = NULL;
static _Thread_local int num_waiting = 0;
static _Thread_local pthread_mutex_t start;

static void end_waiting_threads(void)
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

/* Free the reserved memory for the runtime during one parallel region, and reserve it again for the next region. */
void __wrap_GOMP_parallel(void (*body)(void *), void *data, unsigned num_threads, unsigned flags)
{
    int again = reserved != NULL;

    trigraph_release_team();  /* also ends the waiting threads, which frees their stacks */
    __real_GOMP_parallel(body, data, num_threads, flags);
    if (again)
        reserved = malloc(runtime_tables);
}
#endif

/* Return the size in bytes of the last refused request, or 0, and reset it to 0. */
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

/* Reserve the resources that the OpenMP runtime needs for a team of num_threads; return 0, or 1 if the system refuses them. The runtime
   ends the process if it cannot start a thread, so this function first starts as many threads as the runtime will start. They wait
   until the first parallel region begins, so that their stacks are not freed earlier, whether or not the C library keeps stacks.
   Threads from the last team of this thread already exist. Single-threaded calls leave that team waiting and do not count as the last:
   otherwise each large call after a small call would start a thread, which takes 0.3 ms while other threads of a team spin. Memory for
   the runtime's tables is reserved until trigraph_release_team, except in parallel regions, so that the procedure cannot allocate it. */
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
    end_waiting_threads();
#endif
    if (num_threads > 1)
        last = num_threads;
    return 0;
}

/* Free the memory that trigraph_reserve_team reserved, and end the waiting threads. */
void trigraph_release_team(void)
{
    end_waiting_threads();
    free(reserved);
    reserved = NULL;
}
