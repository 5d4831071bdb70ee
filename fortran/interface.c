/* The C interface of the fast path (trigraph.h), which chooses the build for the processor and the number of threads for a call.

   For each level of the instruction set, a library in the same folder contains the fast path; the first call opens one of them.
   interface.py writes the functions of the operators. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <float.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#endif
#include "trigraph.h"
#include "interface.inc"  /* first inclusion: the names of the functions */

typedef void shim(void);
int trigraph_cpu_level(void);
void trigraph_use_threads(int num_threads, int64_t least_work);
void trigraph_skip_graph_checks(int trust);

#define NAME(function) #function,
static const char *const function_names[] = {FUNCTIONS(NAME)};
enum { little_work = 1 << 20, most_addresses = 128 };
enum { number_of_functions = sizeof function_names / sizeof *function_names };

struct cpu_level {
    const char *name;
    void *library;
    int64_t (*refused_bytes)(void);
    shim *functions[number_of_functions];
};
#ifdef ONE_LEVEL  /* in the sources from `trigraph fortran`, which contain a single build of the fast path */
#define DECLARE(function) shim function##_;
#define ADDRESS(function) function##_,
FUNCTIONS(DECLARE)
static struct cpu_level levels[] = {{"base", NULL, trigraph_refused_bytes, {FUNCTIONS(ADDRESS)}}};
#else
static struct cpu_level levels[] = {{.name = "base"}, {.name = "v2"}, {.name = "v3"}, {.name = "v4"}};
#endif
enum { number_of_levels = sizeof levels / sizeof *levels };
static _Atomic(const struct cpu_level *) current = NULL;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int trusted = 0;  /* whether checks of graph arrays are skipped, because graph objects have made them */

/* As in threads.py: the number of threads for a call (0 until it is needed), and the work below which a call uses one thread. A
   forked process uses one thread, because OpenMP threads do not survive a fork. */
static atomic_int threads = 0;
static _Atomic int64_t least_work = little_work;
static pid_t process = 0;

static void pause_openmp_before_fork(void)
{
    const struct cpu_level *level = current;
    int (*pause_resources)(int);

    if (level == NULL)
        return;
    *(void **)&pause_resources = dlsym(RTLD_DEFAULT, "omp_pause_resource_all");  /* the definition that the fast path uses */
    if (pause_resources == NULL && level->library != NULL)
        *(void **)&pause_resources = dlsym(level->library, "omp_pause_resource_all");
    if (pause_resources != NULL)
        pause_resources(2);  /* omp_pause_hard, because a forked child would wait for threads that exist only in its parent */
}

__attribute__((constructor)) static void register_fork_handler(void)
{
    process = getpid();
    pthread_atfork(pause_openmp_before_fork, NULL, NULL);
}

/* Open the library of a level that the processor supports, and look up its functions; return whether this succeeded. */
static int open_level_library(struct cpu_level *level)
{
#ifndef ONE_LEVEL
    int highest = trigraph_cpu_level(), number = (int)(level - levels);
    char path[PATH_MAX], name[128];
    const char *slash;
    Dl_info own;

    if (number == 0 ? highest >= 2 : number >= highest)
        return 0;
    if (level->library != NULL)
        return 1;
    if (dladdr((void *)&trigraph_use_threads, &own) == 0 || (slash = strrchr(own.dli_fname, '/')) == NULL)
        return 0;
    snprintf(path, sizeof path, "%.*s/libtrigraph_%s%s", (int)(slash - own.dli_fname), own.dli_fname, level->name, strrchr(slash, '.'));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return 0;
    *(void **)&level->refused_bytes = dlsym(library, "trigraph_refused_bytes");
    for (int i = 0; i < number_of_functions; i++) {
        snprintf(name, sizeof name, "%s_", function_names[i]);
        *(void **)&level->functions[i] = dlsym(library, name);
        if (level->functions[i] == NULL)
            return 0;
    }
    level->library = library;
#endif
    return level->refused_bytes != NULL;
}

int trigraph_set_cpu_level(const char *name)
{
    int status = TRIGRAPH_NO_LEVEL;

    pthread_mutex_lock(&opening);
    for (int i = number_of_levels - 1; i >= 0 && status != 0; i--)
        if ((name == NULL || strcmp(name, levels[i].name) == 0) && open_level_library(&levels[i])) {
            current = &levels[i];
            status = 0;
        }
    pthread_mutex_unlock(&opening);
    return status;
}

static const struct cpu_level *get_or_open_level(void)
{
    const char *name = getenv("TRIGRAPH_CPU_LEVEL");

    if (current == NULL)
        trigraph_set_cpu_level(name != NULL && *name != '\0' ? name : NULL);
    return current;
}

const char *trigraph_get_cpu_level(void)
{
    const struct cpu_level *level = get_or_open_level();

    return level == NULL ? NULL : level->name;
}

static int count_processors(void)
{
#ifdef __linux__
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
#endif
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static int get_max_threads(void)
{
    long all = 4 * sysconf(_SC_NPROCESSORS_ONLN);

    return all > 16 ? (int)all : 16;
}

void trigraph_use_threads(int num_threads, int64_t least)
{
    threads = num_threads;
    least_work = least;
}

int trigraph_set_num_threads(int num_threads)
{
    if (num_threads < 1 || num_threads > get_max_threads())
        return TRIGRAPH_WRONG_NUMBER;
    if (num_threads > 1 && getpid() != process)
        return TRIGRAPH_REFUSED;
    trigraph_use_threads(num_threads, 0);
    return 0;
}

int trigraph_get_num_threads(void)
{
    const char *given = getenv("OMP_NUM_THREADS");
    int number = threads;

    if (getpid() != process)
        return 1;
    if (number == 0) {
        long first = given == NULL ? 0 : strtol(given, NULL, 10);
        threads = number = first >= 1 && first <= get_max_threads() ? (int)first : count_processors();
    }
    return number;
}

void trigraph_skip_graph_checks(int trust)
{
    trusted = trust;
}

#ifndef ONE_LEVEL
int64_t trigraph_refused_bytes(void)
{
    const struct cpu_level *level = current;

    return level == NULL ? 0 : level->refused_bytes();
}
#endif

const char *trigraph_status_text(int status)
{
    static const char *const texts[] = {
        "success",
        "the system refused memory or threads",
        "a size, a choice, a number or the number of threads is out of range",
        "a location of an extremum is not an in-edge of its destination",
        "a graph array has an index that is out of range, or offsets that decrease",
        "there is no build of the fast path that this processor can run, or none that TRIGRAPH_CPU_LEVEL names",
    };

    return status < 0 || (size_t)status >= sizeof texts / sizeof *texts ? "unknown status" : texts[status];
}

static int choose_num_threads(double work)
{
    return work < (double)least_work ? 1 : trigraph_get_num_threads();
}

/* locations_ checks that each location is an in-edge of its destination, or -1 for a destination without in-edges; rises_ checks
   that offsets start at 0, never decrease and end at `last`; within_ checks that all elements are in least .. stop - 1. */
#define DEFINE_CHECKS(index)                                                                                        \
    static int locations_##index(const index##_t *offsets, int num_dst_nodes, int dim, const index##_t *location)   \
    {                                                                                                               \
        for (int64_t i = 0; i < num_dst_nodes; i++)                                                                 \
            for (int64_t k = i * dim; k < (i + 1) * (int64_t)dim; k++)                                              \
                if (!(offsets[i] == offsets[i + 1] ? location[k] == -1                                              \
                                                   : offsets[i] <= location[k] && location[k] < offsets[i + 1]))    \
                    return 0;                                                                                       \
        return 1;                                                                                                   \
    }                                                                                                               \
    static int rises_##index(const index##_t *offsets, int number, int last)                                        \
    {                                                                                                               \
        int wrong = offsets[0] != 0 || offsets[number] != last;                                                     \
        for (int i = 0; i < number; i++)                                                                            \
            wrong |= offsets[i] > offsets[i + 1];                                                                   \
        return !wrong;                                                                                              \
    }                                                                                                               \
    static int within_##index(const index##_t *a, int number, int least, int stop)                                  \
    {                                                                                                               \
        int wrong = 0;                                                                                              \
        for (int i = 0; i < number; i++)                                                                            \
            wrong |= (a[i] < least) | (a[i] >= stop);                                                               \
        return !wrong;                                                                                              \
    }
DEFINE_CHECKS(int32)
DEFINE_CHECKS(int64)

static void call_with_addresses(shim *function, void **p, int number)
{
    switch (number) {  /* without a matching case, the status remains -1 */
#include "xla_cases.inc"
    }
}

/* Call a procedure of the level in use with the addresses of its arguments and status, and of a length for each array. */
static int call_procedure(int function, void **given, int number, int arrays)
{
    const struct cpu_level *level = get_or_open_level();
    int64_t length = 1;  /* a dummy value for every array: the procedures compute lengths from sizes */
    void *p[most_addresses];
    int status = -1;

    if (level == NULL)
        return TRIGRAPH_NO_LEVEL;
    memcpy(p, given, (size_t)number * sizeof *p);
    p[number] = &status;
    for (int i = 1; i <= arrays; i++)
        p[number + i] = &length;
    call_with_addresses(level->functions[function], p, number + 1 + arrays);
    return status > 0 ? TRIGRAPH_REFUSED : status;
}

#include "interface.inc"
