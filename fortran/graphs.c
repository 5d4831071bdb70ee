/* Stable counting sorts that build the arrays of graph objects from lists of edges, using several threads for long lists.

   Only trigraph/graphs/counting.py calls these functions; they are not in trigraph.h. They check every index before they write, so the
   arrays must not change during a call. Results do not depend on the number of threads. All sizes and their sums fit in a C int. */
#ifndef INDEX
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { wrong_index = -1, no_memory = -2, two_reverses = -3, no_reverses = -4 };
enum { most_parts = 64, least_part = 1 << 16 };

struct job_part {
    void (*work)(void *job, int number);
    void *job;
    int number;
};

static void *process_part_in_thread(void *given)
{
    struct job_part *part = given;

    part->work(part->job, part->number);
    return NULL;
}

/* Process the parts of a job, each in a new thread, or in the calling thread if the system cannot start a thread. */
static void process_parts(void (*work)(void *, int), void *job, int parts)
{
    struct job_part each[most_parts];
    pthread_t threads[most_parts];
    int is_started[most_parts];

    for (int i = 1; i < parts; i++) {
        each[i] = (struct job_part){work, job, i};
        is_started[i] = pthread_create(&threads[i], NULL, process_part_in_thread, &each[i]) == 0;
    }
    work(job, 0);
    for (int i = 1; i < parts; i++)
        if (is_started[i])
            pthread_join(threads[i], NULL);
        else
            work(job, i);
}

/* Return the number of parts for a list of members: few if there are many keys, because each part has a counter for every key. */
static int choose_num_parts(int num_threads, int members, int keys)
{
    int parts = members / (keys > least_part ? keys : least_part);

    parts = parts < num_threads ? parts : num_threads;
    return parts < 1 ? 1 : parts < most_parts ? parts : most_parts;
}

static int get_part_begin(int members, int parts, int part)
{
    return (int)((int64_t)members * part / parts);
}

#define JOIN(a, b) a##b
#define EXPAND(a, b) JOIN(a, b)
#define NAME(name) EXPAND(name, SUFFIX)

#define INDEX int32_t
#define SUFFIX _i32
#include "graphs.c"
#undef INDEX
#undef SUFFIX
#define INDEX int64_t
#define SUFFIX _i64
#include "graphs.c"
#else

/* A stable counting sort of members by key. If `src` is not NULL, members are edges, and keys are destinations. If loops >= 0,
   self-loops are removed from the list, and a self-loop is added to each of the first `loops` nodes. */
struct NAME(sort) {
    int members, keys, parts, sources, loops;
    const INDEX *key, *src;
    INDEX *offsets, *order, *indices;
    uint32_t *counts;  /* (parts, keys): the number of members, later the position of the next member */
    uint64_t *pairs;  /* source and index of the edge at each position, combined so that each edge needs only one random write */
    int total;
    struct {
        int wrong, rises, kept;
        INDEX first, last;
    } found[most_parts];
};

static void NAME(count)(void *job, int part)
{
    struct NAME(sort) *s = job;
    const INDEX *keys = s->key, *src = s->src;  /* local, because the compiler would reload s->key and s->src after each count */
    uint32_t *counts = s->counts + (size_t)part * s->keys;
    int end = get_part_begin(s->members, s->parts, part + 1), rises = 1, kept = 0, drops = s->loops >= 0;
    INDEX first = 0, last = 0, stop = s->keys, src_stop = s->sources;

    memset(counts, 0, (size_t)s->keys * sizeof *counts);
    s->found[part].wrong = 1;
    for (int m = get_part_begin(s->members, s->parts, part); m < end; m++) {
        INDEX key = keys[m];
        if (key < 0 || key >= stop || (src != NULL && (src[m] < 0 || src[m] >= src_stop)))
            return;
        if (drops && src[m] == key)
            continue;
        if (kept++ == 0)
            first = last = key;
        rises &= key >= last;
        last = key;
        counts[key]++;
    }
    s->found[part].wrong = 0;
    s->found[part].rises = rises;
    s->found[part].kept = kept;
    s->found[part].first = first;
    s->found[part].last = last;
}

static void NAME(put)(void *job, int part)
{
    struct NAME(sort) *s = job;
    const INDEX *keys = s->key, *src = s->src;
    uint32_t *next = s->counts + (size_t)part * s->keys;
    uint64_t *pairs = s->pairs;
    INDEX *order = s->order;
    int end = get_part_begin(s->members, s->parts, part + 1), number = 0, drops = s->loops >= 0;

    for (int i = 0; i < part; i++)
        number += s->found[i].kept;
    for (int m = get_part_begin(s->members, s->parts, part); m < end; m++) {
        if (drops && src[m] == keys[m])
            continue;
        uint32_t place = next[keys[m]]++;
        if (src == NULL)
            order[place] = number++;
        else
            pairs[place] = (uint64_t)src[m] << 32 | (uint32_t)number++;
    }
}

static void NAME(unpack_pairs)(void *job, int part)
{
    struct NAME(sort) *s = job;
    const uint64_t *pairs = s->pairs;
    INDEX *order = s->order, *indices = s->indices;
    int end = get_part_begin(s->total, s->parts, part + 1);

    for (int place = get_part_begin(s->total, s->parts, part); place < end; place++) {
        order[place] = (INDEX)(uint32_t)pairs[place];
        indices[place] = (INDEX)(pairs[place] >> 32);
    }
}

/* Sort the members. `facts` receives the number of sorted members, the most members per key, and whether keys were sorted. */
static int NAME(sorted)(struct NAME(sort) *s, int num_threads, int *facts)
{
    int total = 0, most = 0, kept = 0, rises = 1, loops = s->loops > 0 ? s->loops : 0;
    INDEX last = 0;

    s->parts = choose_num_parts(num_threads, s->members, s->keys);
    s->counts = malloc((size_t)s->keys * s->parts * sizeof *s->counts + 1);
    s->pairs = s->src == NULL ? NULL : malloc(((size_t)s->members + loops) * sizeof *s->pairs + 1);
    if (s->counts == NULL || (s->src != NULL && s->pairs == NULL)) {
        free(s->counts);
        free(s->pairs);
        return no_memory;
    }
    process_parts(NAME(count), s, s->parts);
    for (int part = 0; part < s->parts; part++)
        if (s->found[part].wrong) {
            free(s->counts);
            free(s->pairs);
            return wrong_index;
        }
    s->offsets[0] = 0;
    for (int key = 0; key < s->keys; key++) {
        int begin = total;
        for (int part = 0; part < s->parts; part++) {
            uint32_t *counts = &s->counts[(size_t)part * s->keys + key], number = *counts;
            *counts = (uint32_t)total;
            total += (int)number;
        }
        total += key < loops;
        s->offsets[key + 1] = total;
        most = total - begin > most ? total - begin : most;
    }
    process_parts(NAME(put), s, s->parts);
    for (int part = 0; part < s->parts; part++)
        if (s->found[part].kept > 0) {
            rises &= s->found[part].rises && s->found[part].first >= last;
            last = s->found[part].last;
            kept += s->found[part].kept;
        }
    for (int i = 0; i < loops; i++)
        s->pairs[s->offsets[i + 1] - 1] = (uint64_t)i << 32 | (uint32_t)(kept + i);
    s->total = total;
    if (s->src != NULL)
        process_parts(NAME(unpack_pairs), s, s->parts);
    free(s->counts);
    free(s->pairs);
    facts[0] = total;
    facts[1] = most;
    facts[2] = rises && (loops == 0 || last == 0);
    return 0;
}

/* Sort members by key or, if src is given, edges by destination. Without src, indices is NULL. Sources are below num_src_nodes. */
int NAME(trigraph_sort)(int num_threads, int members, int keys, int num_src_nodes, int loops, const INDEX *key, const INDEX *src,
                        INDEX *offsets, INDEX *order, INDEX *indices, int *facts)
{
    struct NAME(sort) s = {.members = members, .keys = keys, .sources = num_src_nodes, .loops = loops, .key = key, .src = src,
                           .offsets = offsets, .order = order, .indices = indices};

    return NAME(sorted)(&s, num_threads, facts);
}

struct NAME(spread) {
    int num_dst_nodes, num_positions, parts;
    const INDEX *offsets, *edge_ids;
    INDEX *destinations, *row_positions;
};

/* Write the destinations of the positions, and fill row_positions with -1, which marks rows without a position. */
static void NAME(spread)(void *job, int part)
{
    struct NAME(spread) *s = job;
    int begin = get_part_begin(s->num_positions, s->parts, part), end = get_part_begin(s->num_positions, s->parts, part + 1);

    for (int i = get_part_begin(s->num_dst_nodes, s->parts, part); i < get_part_begin(s->num_dst_nodes, s->parts, part + 1); i++)
        for (INDEX p = s->offsets[i]; p < s->offsets[i + 1]; p++)
            s->destinations[p] = i;
    if (s->edge_ids != NULL)
        memset(s->row_positions + begin, -1, (size_t)(end - begin) * sizeof(INDEX));
}

/* Write the position of each row; the result is valid if each row has exactly one position. */
static void NAME(invert)(void *job, int part)
{
    struct NAME(spread) *s = job;

    for (int p = get_part_begin(s->num_positions, s->parts, part); p < get_part_begin(s->num_positions, s->parts, part + 1); p++)
        if (s->edge_ids[p] >= 0 && s->edge_ids[p] < s->num_positions)  /* atomic: two threads may write to the same row */
            __atomic_store_n(&s->row_positions[s->edge_ids[p]], p, __ATOMIC_RELAXED);
}

/* Write the permutations of a CSC that derivatives need. The CSC is checked, because a compiled program may pass modified tensors.
   edge_ids and row_positions are NULL if the row of each position is the position itself. */
int NAME(trigraph_csc_orders)(int num_threads, int num_src_nodes, int num_dst_nodes, int num_positions, int num_edges,
                              const INDEX *offsets, const INDEX *indices, const INDEX *edge_ids, INDEX *destinations,
                              INDEX *src_offsets, INDEX *src_positions, INDEX *row_offsets, INDEX *row_positions)
{
    int may_be_inverted = edge_ids != NULL && num_edges == num_positions, facts[3];
    struct NAME(spread) s = {num_dst_nodes, num_positions, choose_num_parts(num_threads, num_positions, 0), offsets,
                             may_be_inverted ? edge_ids : NULL, destinations, row_positions};
    int status, wrong = offsets[0] != 0 || offsets[num_dst_nodes] != num_positions;

    for (int i = 0; i < num_dst_nodes; i++)
        wrong |= offsets[i] > offsets[i + 1];
    status = wrong ? wrong_index
                   : NAME(trigraph_sort)(num_threads, num_positions, num_src_nodes, 0, -1, indices, NULL, src_offsets, src_positions,
                                         NULL, facts);
    if (status != 0)
        return status;
    process_parts(NAME(spread), &s, s.parts);
    if (may_be_inverted) {
        process_parts(NAME(invert), &s, s.parts);
        for (int row = 0; row < num_edges; row++)  /* as many rows as positions: if no row lacks one, each has exactly one */
            may_be_inverted &= row_positions[row] >= 0;
    }
    if (edge_ids != NULL && !may_be_inverted)
        return NAME(trigraph_sort)(num_threads, num_positions, num_edges, 0, -1, edge_ids, NULL, row_offsets, row_positions, NULL,
                                   facts);
    for (int row = 0; row < num_edges; row++)
        row_offsets[row] = row < num_positions ? row : num_positions;
    row_offsets[num_edges] = num_positions;
    return 0;
}

struct NAME(reverse_search) {
    int num_edges, parts, wanted;
    const INDEX *src, *dst, *shifts, *dst_offsets, *dst_edge_index;
    INDEX *start, *stop, *edge_start, *edge_stop, *reverse_edge;
    int wrong[most_parts];
};

/* Return the first position in low .. high whose edge has a source >= node, by bisection; edges are sorted by source. */
static INDEX NAME(find_first_source_not_below)(const struct NAME(reverse_search) *s, INDEX low, INDEX high, INDEX node)
{
    while (low < high) {
        INDEX middle = low + (high - low) / 2;
        if (s->src[s->dst_edge_index[middle]] < node)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void NAME(find_reverse)(void *job, int part)
{
    struct NAME(reverse_search) *s = job;
    int end = get_part_begin(s->num_edges, s->parts, part + 1);

    s->wrong[part] = 0;
    for (int e = get_part_begin(s->num_edges, s->parts, part); e < end; e++) {
        INDEX last = s->dst_offsets[s->src[e] + 1], place = -1;
        s->start[e] = NAME(find_first_source_not_below)(s, s->dst_offsets[s->src[e]], last, s->dst[e]);
        s->stop[e] = NAME(find_first_source_not_below)(s, s->start[e], last, s->dst[e] + 1);
        if (!s->wanted)
            continue;
        for (INDEX p = s->start[e]; p < s->stop[e]; p++) {
            int64_t own = 3 * (int64_t)e, other = 3 * (int64_t)s->dst_edge_index[p];
            const INDEX *shift = s->shifts;
            if (shift == NULL ? own == other : shift[own] != -shift[other] || shift[own + 1] != -shift[other + 1]
                                                   || shift[own + 2] != -shift[other + 2])
                continue;
            s->wrong[part] |= place >= 0;
            place = p;
        }
        s->reverse_edge[e] = place < 0 ? -1 : s->dst_edge_index[place];
        s->edge_start[e] = place < 0 ? s->start[e] : place;
        s->edge_stop[e] = s->edge_start[e] + (place >= 0);
    }
}

/* Find the reverse edges of edges sorted by source, given their order by destination: the range of all edges in the opposite
   direction and, if `wanted`, the edge among them with the opposite shift (the only edge if shifts are NULL). facts[0] is the largest
   number of parallel edges. If they have no shifts or are too many, the status is no_reverses, and reverse_edge is not written. */
int NAME(trigraph_edges_back)(int num_threads, int num_nodes, int num_edges, int wanted, const INDEX *src, const INDEX *dst,
                              const INDEX *shifts, const INDEX *dst_offsets, const INDEX *dst_edge_index, INDEX *start, INDEX *stop,
                              INDEX *edge_start, INDEX *edge_stop, INDEX *reverse_edge, int *facts)
{
    enum { many = 256 };
    int most = 0, wrong = 0;

    for (int i = 0; i < num_nodes; i++) {
        int number = 0;
        for (INDEX p = dst_offsets[i]; p < dst_offsets[i + 1]; p++) {
            int is_parallel = p > dst_offsets[i] && src[dst_edge_index[p]] == src[dst_edge_index[p - 1]];
            number = is_parallel ? number + 1 : 1;
            most = number > most ? number : most;
        }
    }
    wanted = wanted && (shifts == NULL ? most < 2 : most <= many);
    struct NAME(reverse_search) s = {num_edges, choose_num_parts(num_threads, num_edges, 0), wanted, src, dst, shifts,
                           dst_offsets, dst_edge_index, start, stop, edge_start, edge_stop, reverse_edge, {0}};
    process_parts(NAME(find_reverse), &s, s.parts);
    facts[0] = most;
    for (int part = 0; part < s.parts; part++)
        wrong |= s.wrong[part];
    return wrong ? two_reverses : wanted ? 0 : no_reverses;
}
#endif
