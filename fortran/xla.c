/* The handler through which XLA's foreign function interface calls the fast path, for trigraph.jax on the CPU.

   This handler serves all operators: it passes the buffers of the call to the function of trigraph.h named by the attribute `function`,
   without using Python. The structures of the interface are declared below, up to the last member that is read. They belong to version
   0 of the interface, in which members are only added at the end. The handler reports this version, and XLA rejects any other. */
#include <fenv.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "trigraph.h"

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
struct call_frame {
    size_t size; struct extension *extensions; const struct api *api; void *context; int stage;
    struct buffers arguments, results; struct attributes attributes;
};

/* A function that receives the addresses of its arguments. xla_functions.py writes all entries, sorted by name. */
struct function { const char *name; int (*call)(void **); size_t arguments; };
#include "xla_functions.inc"

void trigraph_skip_graph_checks(int trust);
PUBLIC void *trigraph_xla_call(struct call_frame *call);

static int compare_function_names(const void *a, const void *b)
{
    return strcmp(((const struct function *)a)->name, ((const struct function *)b)->name);
}

static void *make_error(const struct call_frame *call, int code, const char *message)
{
    struct error_arguments arguments = {offsetof(struct error_arguments, code) + sizeof(int), NULL, message, code};

    return call->api->create_error(&arguments);
}

static const void *find_attribute(const struct attributes *attributes, const char *name)
{
    for (int64_t i = 0; i < attributes->number; i++)
        if (attributes->names[i]->length == strlen(name) && memcmp(attributes->names[i]->start, name, strlen(name)) == 0)
            return attributes->values[i];
    return NULL;
}

void *trigraph_xla_call(struct call_frame *call)
{
    enum { most = 256, most_name = 128 };
    static const int64_t none = -1;  /* replaces absent arrays: index -1 as an integer, NaN as a real number */
    const struct text *name;
    const struct array *integers, *numbers, *given, *flags, *wanted;
    const struct function *function;
    char called[most_name], message[3 * most_name];
    void *pointers[most];
    int64_t unused[most], refused, argument = 0, result = 0;
    fenv_t environment;
    int status, number = 0, team = 0;  /* 0: libtrigraph chooses the number of threads */

    if (call->extensions != NULL && call->extensions->type == extension_metadata) {
        struct metadata *metadata = ((struct metadata_extension *)call->extensions)->metadata;
        metadata->version.major = version_major;
        metadata->version.minor = version_minor;
        metadata->traits = 0;
        return NULL;
    }
    name = find_attribute(&call->attributes, "function");
    integers = find_attribute(&call->attributes, "integers");
    numbers = find_attribute(&call->attributes, "numbers");
    given = find_attribute(&call->attributes, "given");
    flags = find_attribute(&call->attributes, "flags");
    wanted = find_attribute(&call->attributes, "wanted");
    if (name == NULL || integers == NULL || numbers == NULL || given == NULL || flags == NULL || wanted == NULL
        || name->length >= most_name)
        return make_error(call, code_internal, "trigraph: the program was compiled by another version; compile it again");
    memcpy(called, name->start, name->length);
    called[name->length] = '\0';
    function = bsearch(&(struct function){.name = called}, functions, sizeof functions / sizeof *functions, sizeof *functions,
                       compare_function_names);
    if (function == NULL || function->arguments > most
        || function->arguments != 1 + integers->number + numbers->number + given->number + flags->number + wanted->number) {
        snprintf(message, sizeof message, "trigraph: %s is not a function of this version", called);
        return make_error(call, code_internal, message);
    }
    pointers[number++] = &team;
    for (size_t i = 0; i < integers->number; i++)
        pointers[number++] = (int *)integers->data + i;
    for (size_t i = 0; i < numbers->number; i++)
        pointers[number++] = (double *)numbers->data + i;
    /* The flags in `given` are 1 for arrays that are operands; the flags in `wanted` are 1 for fields that are results. */
    for (size_t i = 0; i < given->number; i++) {
        int is_present = ((const int *)given->data)[i] && argument < call->arguments.number;
        const struct buffer *buffer = is_present ? call->arguments.each[argument++] : NULL;
        pointers[number++] = is_present ? buffer->data : (void *)&none;
    }
    for (size_t i = 0; i < flags->number; i++)
        pointers[number++] = (int *)flags->data + i;
    for (size_t i = 0; i < wanted->number; i++) {
        int is_present = ((const int *)wanted->data)[i] && result < call->results.number;
        const struct buffer *buffer = is_present ? call->results.each[result++] : NULL;
        pointers[number++] = is_present ? buffer->data : (void *)&unused[i];
    }
    if (argument != call->arguments.number || result != call->results.number) {
        snprintf(message, sizeof message, "trigraph: %s got %d arrays and %d results; expected %d and %d", called,
                 (int)call->arguments.number, (int)call->results.number, (int)argument, (int)result);
        return make_error(call, code_internal, message);
    }
    fegetenv(&environment);  /* XLA's threads flush subnormal numbers to zero, which would change results */
    fesetenv(FE_DFL_ENV);
    trigraph_skip_graph_checks(1);  /* graph objects have already checked their arrays */
    status = function->call(pointers);
    trigraph_skip_graph_checks(0);
    fesetenv(&environment);
    if (status == 0)
        return NULL;
    refused = status == TRIGRAPH_REFUSED ? trigraph_refused_bytes() : 0;
    if (refused > 0)
        snprintf(message, sizeof message, "%s: the system refused %lld bytes of workspace", called, (long long)refused);
    else if (status == TRIGRAPH_REFUSED)
        snprintf(message, sizeof message, "%s: the system refused workspace, or threads", called);
    else
        snprintf(message, sizeof message, "%s: %s", called, trigraph_status_text(status));
    return make_error(call, status == TRIGRAPH_REFUSED ? code_exhausted : code_internal, message);
}
