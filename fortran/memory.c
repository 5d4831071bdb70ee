/* Memory and threads of the Fortran backends, where the system may refuse them.

   Where the linker can (MALLOC_IS_WRAPPED), it puts `__wrap_malloc` in the place of malloc in the extension modules, since
   gfortran's `allocate` calls malloc. It does three things. What is allocated begins a cache line, as vectors as long as one want it: a
   load across two lines costs two. For large pieces large pages are asked for, as NumPy does: clearing 50 MB of work space a small
   page at a time takes as long as a gradient of attention. And the size of a request that the system refuses is kept for the text of
   Python's MemoryError.

   In modules with parallel regions (REGIONS_ARE_WRAPPED) it also puts `__wrap_GOMP_parallel` in the place of the function by which GCC's
   OpenMP runtime begins one. That function allocates tables, even for one thread, and ends the process where they are refused. */
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

enum { runtime_tables = 1 << 16 };  /* bytes of the OpenMP runtime's tables for a team, with room to spare */
static _Thread_local void *reserved = NULL;  /* memory that is kept from the procedure, so that the runtime finds it */
/* Threads that wait for `start`, whose stacks are kept from the procedure for those of the runtime. */
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

/* Leave the runtime the reserved memory for one parallel region, and reserve it again for the next one. */
void __wrap_GOMP_parallel(void (*body)(void *), void *data, unsigned num_threads, unsigned flags)
{
    int again = reserved != NULL;

    trigraph_release_team();  /* the threads that wait, too */
    __real_GOMP_parallel(body, data, num_threads, flags);
    if (again)
        reserved = malloc(runtime_tables);
}
#endif

/* Bytes of the request that was refused last, or 0; it is forgotten then. */
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

/* Whether the OpenMP runtime will get what it needs for a team of num_threads: 0, or 1 where that is refused. The runtime ends the
   process where a thread cannot be started, so as many threads as it will start are started here first. They wait until the first
   parallel region begins, so that their stacks are free then and not before, whether or not the C library keeps stacks. A team of the
   size that this thread used last exists already. Calls with one thread leave it waiting, and do not count: else each large call after a
   small one would start a thread, which takes 0.3 ms while other threads of a team spin. Memory for the runtime's tables stays reserved
   while the procedure allocates its work space, until each parallel region and after it, up to trigraph_release_team. */
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

/* Give back the memory that trigraph_reserve_team reserved, and end the threads that wait. */
void trigraph_release_team(void)
{
    end_waiting();
    free(reserved);
    reserved = NULL;
}
