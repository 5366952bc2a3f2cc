/* walk.c - merging the axes of arrays that are visited together. */
#include "tensor/walk.h"

/* Whether axis b continues axis a in every array. */
static bool one_run(const tni_walk *w, int a, int b)
{
    for (int k = 0; k < TNI_WALK_ARRAYS; k++)
        if (w->stride[a][k] != w->stride[b][k] * w->size[b]) return false;
    return true;
}

void tni_walk_init(tni_walk *w, int n, const tni_array *const *arrays)
{
    const tni_array *first = arrays[0];
    int rank = 0;
    w->n = n;
    w->numel = 1;
    for (int d = 0; d < first->rank; d++) {
        w->numel *= first->size[d];
        if (first->size[d] == 1) continue;
        int at = rank++;
        for (; at > 0 && first->stride[d] > w->stride[at - 1][0]; at--) {
            w->size[at] = w->size[at - 1];
            for (int k = 0; k < TNI_WALK_ARRAYS; k++) w->stride[at][k] = w->stride[at - 1][k];
        }
        w->size[at] = first->size[d];
        for (int k = 0; k < TNI_WALK_ARRAYS; k++)
            w->stride[at][k] = k < n ? arrays[k]->stride[d] : 0;
    }
    int last = 0;
    for (int d = 1; d < rank; d++) {
        if (one_run(w, last, d)) {
            w->size[last] *= w->size[d];
        } else {
            last++;
            w->size[last] = w->size[d];
        }
        for (int k = 0; k < TNI_WALK_ARRAYS; k++) w->stride[last][k] = w->stride[d][k];
    }
    w->rank = last + 1;
    if (rank == 0) {
        w->size[0] = 1;
        for (int k = 0; k < TNI_WALK_ARRAYS; k++) w->stride[0][k] = k < n;
    }
}

void tni_cursor_seek(tni_cursor *c, const tni_walk *w, int64_t i)
{
    for (int k = 0; k < TNI_WALK_ARRAYS; k++) c->at[k] = 0;
    for (int d = w->rank - 1; d >= 0; d--) {
        c->index[d] = d ? i % w->size[d] : i;
        i = d ? i / w->size[d] : 0;
        for (int k = 0; k < TNI_WALK_ARRAYS; k++) c->at[k] += c->index[d] * w->stride[d][k];
    }
}

void tni_cursor_step(tni_cursor *c, const tni_walk *w, int64_t n)
{
    int d = w->rank - 1;
    c->index[d] += n;
    for (int k = 0; k < TNI_WALK_ARRAYS; k++) c->at[k] += n * w->stride[d][k];
    while (d > 0 && c->index[d] == w->size[d]) {
        for (int k = 0; k < TNI_WALK_ARRAYS; k++)
            c->at[k] += w->stride[d - 1][k] - w->size[d] * w->stride[d][k];
        c->index[d] = 0;
        d--;
        c->index[d]++;
    }
}
