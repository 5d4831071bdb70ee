/* Operators of the fast path for XLA's foreign function interface, which trigraph.jax calls them by on the CPU.

   One handler serves every operator: it calls the shim that the attribute `function` names (see shims.py) on the buffers of the call,
   where they lie, without Python. The structures of the interface are declared here as far as they are read; they are part of its
   version 0, in which members are only added at their ends. The handler states that version, and XLA refuses another one. */
#include <fenv.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

enum { version_major = 0, version_minor = 1, stage_execute = 3, extension_metadata = 1, code_internal = 13, code_exhausted = 8 };

struct extension { size_t size; int type; struct extension *next; };
struct version { size_t size; struct extension *extensions; int major, minor; };
struct metadata { size_t size; struct version version; uint32_t traits; };
struct metadata_extension { struct extension base; struct metadata *metadata; };
struct error_arguments { size_t size; struct extension *extensions; const char *message; int code; };
struct api {
    size_t size; struct extension *extensions; struct version version; const void *internal;
    void *(*create_error)(struct error_arguments *);
};
struct buffer { size_t size; struct extension *extensions; int type; void *data; int64_t rank, *dims; };
struct buffers { size_t size; struct extension *extensions; int64_t number; const int *types; struct buffer **each; };
struct text { const char *start; size_t length; };
struct array { int type; size_t number; const void *data; };
struct attributes {
    size_t size; struct extension *extensions; int64_t number; const int *types; const struct text **names; void **values;
};
struct call {
    size_t size; struct extension *extensions; const struct api *api; void *context; int stage;
    struct buffers arguments, results; struct attributes attributes;
};

typedef void shim(void);
struct function { const char *name; shim *address; };

/* The functions in use, sorted by name: those of one level of the instruction set. Whoever gives others keeps these, which a call may
   be reading. */
static _Atomic(const struct function *) functions = NULL;
static atomic_int number_of_functions = 0;
/* As in threads.py: threads of a call, and the work below which it uses one. A forked process has no others. */
static atomic_int threads = 1;
static _Atomic int64_t least_work = 0;
static pid_t process = 0;

PUBLIC void trigraph_xla_functions(const struct function *given, int number);
PUBLIC void trigraph_xla_threads(int number, int64_t least);
PUBLIC void *trigraph_xla_call(struct call *call);

void trigraph_xla_functions(const struct function *given, int number)
{
    functions = given;
    number_of_functions = number;
}

void trigraph_xla_threads(int number, int64_t least)
{
    process = getpid();
    threads = number;
    least_work = least;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct function *)a)->name, ((const struct function *)b)->name);
}

static shim *find(const char *name)
{
    struct function wanted = {name, NULL}, *found;

    found = bsearch(&wanted, functions, (size_t)number_of_functions, sizeof wanted, by_name);
    return found == NULL ? NULL : found->address;
}

static void *failed(const struct call *call, int code, const char *message)
{
    struct error_arguments arguments = {offsetof(struct error_arguments, code) + sizeof(int), NULL, message, code};

    return call->api->create_error(&arguments);
}

static const void *attribute(const struct attributes *attributes, const char *name)
{
    for (int64_t i = 0; i < attributes->number; i++)
        if (attributes->names[i]->length == strlen(name) && memcmp(attributes->names[i]->start, name, strlen(name)) == 0)
            return attributes->values[i];
    return NULL;
}

static void invoke(shim *function, void **p, int number)
{
    switch (number) {  /* *status stays -1 where there is no such case */
#include "xla_cases.inc"
    }
}

void *trigraph_xla_call(struct call *call)
{
    enum { most = 256, most_name = 128 };
    static const int64_t none = -1;  /* what an array that is absent points to: an index, or no number */
    const struct text *name;
    const struct array *integers, *numbers, *given, *flags, *wanted, *work;
    shim *function, *refused_bytes;
    char called[most_name], message[2 * most_name];
    void *pointers[most];
    int64_t sizes[most / 2], unused[most / 2], refused = 0, argument = 0, result = 0;
    fenv_t environment;
    int status = -1, number = 0, arrays = 0, team;

    if (call->extensions != NULL && call->extensions->type == extension_metadata) {
        struct metadata *metadata = ((struct metadata_extension *)call->extensions)->metadata;
        metadata->version.major = version_major;
        metadata->version.minor = version_minor;
        metadata->traits = 0;
        return NULL;
    }
    name = attribute(&call->attributes, "function");
    integers = attribute(&call->attributes, "integers");
    numbers = attribute(&call->attributes, "numbers");
    given = attribute(&call->attributes, "given");
    flags = attribute(&call->attributes, "flags");
    wanted = attribute(&call->attributes, "wanted");
    work = attribute(&call->attributes, "work");
    if (name == NULL || integers == NULL || numbers == NULL || given == NULL || flags == NULL || wanted == NULL
        || work == NULL || name->length >= most_name)
        return failed(call, code_internal, "trigraph: a call of another version; compile the program again");
    memcpy(called, name->start, name->length);
    called[name->length] = '\0';
    function = find(called);
    if (function == NULL || 2 + integers->number + numbers->number + 2 * given->number + 3 * wanted->number > most) {
        snprintf(message, sizeof message, "trigraph: %s is not a function of this version", called);
        return failed(call, code_internal, message);
    }
    team = *(const int64_t *)work->data < least_work || getpid() != process ? 1 : threads;
    pointers[number++] = &team;
    for (size_t i = 0; i < integers->number; i++)
        pointers[number++] = (int *)integers->data + i;
    for (size_t i = 0; i < numbers->number; i++)
        pointers[number++] = (double *)numbers->data + i;
    /* `given` and `wanted` say of each array whether it is an operand, and of each field whether it is a result. */
    for (size_t i = 0; i < given->number; i++, arrays++) {
        int there = ((const int *)given->data)[i] && argument < call->arguments.number;
        const struct buffer *buffer = there ? call->arguments.each[argument++] : NULL;
        sizes[arrays] = 1;
        for (int64_t k = 0; there && k < buffer->rank; k++)
            sizes[arrays] *= buffer->dims[k];
        pointers[number++] = there ? buffer->data : (void *)&none;
    }
    for (size_t i = 0; i < flags->number; i++)
        pointers[number++] = (int *)flags->data + i;
    for (size_t i = 0; i < wanted->number; i++, arrays++) {
        int there = ((const int *)wanted->data)[i] && result < call->results.number;
        const struct buffer *buffer = there ? call->results.each[result++] : NULL;
        sizes[arrays] = 1;
        for (int64_t k = 0; there && k < buffer->rank; k++)
            sizes[arrays] *= buffer->dims[k];
        pointers[number++] = there ? buffer->data : (void *)&unused[i];
    }
    if (argument != call->arguments.number || result != call->results.number) {
        snprintf(message, sizeof message, "trigraph: %s got %d arrays and %d results; expected %d and %d", called,
                 (int)call->arguments.number, (int)call->results.number, (int)argument, (int)result);
        return failed(call, code_internal, message);
    }
    pointers[number++] = &status;
    for (int i = 0; i < arrays; i++)
        pointers[number++] = &sizes[i];
    fegetenv(&environment);  /* XLA's threads take subnormal numbers for zeros, ours do not */
    fesetenv(FE_DFL_ENV);
    invoke(function, pointers, number);
    fesetenv(&environment);
    if (status == 0)
        return NULL;
    refused_bytes = find("refused_bytes");
    if (refused_bytes != NULL)
        ((void (*)(int64_t *))refused_bytes)(&refused);
    if (refused > 0)
        snprintf(message, sizeof message, "%s: the system refused %lld bytes of work space", called, (long long)refused);
    else
        snprintf(message, sizeof message, "%s: the system refused work space, or threads", called);
    return failed(call, code_exhausted, message);
}
