/*
 * draw.c - a way to draw every kind of argument. A sound one is what a careful user would pass with
 * the other arguments of the call; its parts (pick.c) become odd now and then.
 */
#include "draw.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "callbacks.h"
#include "pool.h"

#define DRAW(kind) static void draw_##kind(world *w, slot *s)
/* A kind drawn by one expression. */
#define SIMPLE(kind, expression)                                                                   \
    DRAW(kind)                                                                                     \
    {                                                                                              \
        (void)w;                                                                                   \
        s->v.kind = (expression);                                                                  \
    }
#define SAME(kind, as)                                                                             \
    DRAW(kind)                                                                                     \
    {                                                                                              \
        draw_##as(w, s);                                                                           \
    }

/* ---- tensors --------------------------------------------------------------------------------- */

static tn_tensor *filled(world *w, tn_shape shape, tn_dtype dtype)
{
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.size[i];
    double *values = malloc((size_t)(n ? n : 1) * sizeof *values);
    if (!values) return NULL; /* a request was refused */
    bool whole = !tn_dtype_is_float(dtype);
    for (int64_t i = 0; i < n; i++)
        values[i] =
            whole ? (double)below(w, dtype == TN_BOOL ? 2 : 3) : ((double)below(w, 257) - 128) / 64;
    tn_tensor *t = tn_to_dtype(tn_from_data(values, shape, TN_F64), dtype);
    free(values);
    return t;
}

tn_tensor *make_tensor(world *w, tn_shape shape, tn_dtype dtype, int layout)
{
    int last = shape.rank - 1;
    if (layout == TRANSPOSED && shape.rank >= 2) {
        tn_shape other = shape;
        other.size[0] = shape.size[last];
        other.size[last] = shape.size[0];
        return tn_transpose(filled(w, other, dtype), 0, last);
    }
    if (layout == STRIDED && shape.rank >= 1) {
        tn_shape other = shape;
        other.size[last] = 2 * shape.size[last] + 1;
        return tn_slice(filled(w, other, dtype), last, 1, other.size[last], 2);
    }
    if (layout == EXPANDED && shape.rank >= 1) {
        tn_shape other = shape;
        other.size[0] = 1;
        return tn_expand(filled(w, other, dtype), shape);
    }
    return filled(w, shape, dtype);
}

tn_tensor *make_leaf(world *w, tn_shape shape, tn_dtype dtype)
{
    bool was = tn_set_grad_enabled(false);
    tn_tensor *t = filled(w, shape, dtype);
    tn_set_grad_enabled(was);
    if (t) tn_set_requires_grad(t, true);
    return t;
}

tn_tensor *any_tensor(world *w)
{
    int at = (int)below(w, TENSORS);
    for (int i = 0; i < TENSORS; i++)
        if (w->tensor[(at + i) % TENSORS]) return w->tensor[(at + i) % TENSORS];
    return NULL;
}

static tn_shape small_shape(world *w)
{
    static const tn_shape shapes[] = { { 2, { 2, 3 } },    { 2, { 4, 3 } }, { 1, { 3 } },
                                       { 2, { 3, 3 } },    { 0, { 0 } },    { 1, { 1 } },
                                       { 3, { 2, 3, 4 } }, { 2, { 2, 3 } } };
    return shapes[below(w, 8)];
}

/* Floating, of the pool or new. */
static tn_tensor *floating(world *w, int min_rank)
{
    for (int i = 0; i < 4 && w->mode != SWEEP; i++) {
        tn_tensor *t = any_tensor(w);
        if (t && tn_dtype_is_float(tn_dtype_of(t)) && tn_rank(t) >= min_rank) return t;
    }
    tn_shape shape = small_shape(w);
    if (shape.rank < min_rank) shape = TN_SHAPE(2, 3);
    return make_tensor(w, shape, below(w, 6) ? TN_F32 : TN_F64,
                       below(w, 3) ? PLAIN : (int)below(w, LAYOUTS));
}

static tn_tensor *leaf(world *w)
{
    return below(w, 2) ? make_leaf(w, small_shape(w), TN_F32)
                       : make_tensor(w, small_shape(w), TN_F32, PLAIN);
}

static tn_tensor *recorded(world *w)
{
    for (int i = 0; i < 6 && w->mode != SWEEP; i++) {
        tn_tensor *t = any_tensor(w);
        if (t && tn_requires_grad(t) && !tn_is_leaf(t)) return t;
    }
    return tn_mul_scalar(make_leaf(w, small_shape(w), TN_F32), 2);
}

static tn_tensor *loss(world *w)
{
    tn_tensor *t = recorded(w);
    return t && tn_numel(t) != 1 ? tn_sum(t, NULL, 0, false) : t;
}

/* The earlier tensor argument that gives the sizes. */
static tn_tensor *first_tensor(world *w)
{
    for (int i = 0; i < w->row->n; i++) switch (w->row->kinds[i]) {
        case K_any: return w->slot[i].v.any;
        case K_tensor: return w->slot[i].v.tensor;
        case K_target: return w->slot[i].v.target;
        case K_target_matrix: return w->slot[i].v.target_matrix;
        case K_leaf: return w->slot[i].v.leaf;
        case K_matrix: return w->slot[i].v.matrix;
        case K_boolean: return w->slot[i].v.boolean;
        case K_recorded: return w->slot[i].v.recorded;
        case K_image: return w->slot[i].v.image;
        case K_query: return w->slot[i].v.query;
        case K_steps: return w->slot[i].v.steps;
        case K_ids: return w->slot[i].v.ids;
        case K_tensors:
            return w->slot[i].have > 0 && w->slot[i].v.tensors ? w->slot[i].v.tensors[0] : NULL;
        default: break;
        }
    return NULL;
}

static bool there(const tn_tensor *t)
{
    return t && !tn_is_none(t);
}

static tn_shape shape_of_first(world *w)
{
    tn_tensor *t = first_tensor(w);
    return there(t) && tn_numel(t) <= MAX_NUMEL ? tn_shape_get(t) : TN_SHAPE(2, 3);
}
static tn_dtype dtype_of_first(world *w)
{
    tn_tensor *t = first_tensor(w);
    return there(t) ? tn_dtype_of(t) : TN_F32;
}
static int64_t size_of_first(world *w, int axis) /* negative: from the end */
{
    tn_shape shape = shape_of_first(w);
    axis += axis < 0 ? shape.rank : 0;
    return axis >= 0 && axis < shape.rank ? shape.size[axis] : 1;
}
/* The axis argument, if there is one. */
static int axis_argument(world *w)
{
    int rank = shape_of_first(w).rank;
    for (int i = 0; i < w->row->n; i++)
        if (w->row->kinds[i] == K_axis) {
            int axis = w->slot[i].v.axis;
            return axis < 0 ? axis + rank : axis;
        }
    return 0;
}

static tn_tensor *whole_below(world *w, tn_shape shape, int64_t n)
{
    int64_t numel = 1;
    for (int i = 0; i < shape.rank; i++) numel *= shape.size[i];
    int64_t *values = malloc((size_t)(numel ? numel : 1) * sizeof *values);
    if (!values) return NULL;
    for (int64_t i = 0; i < numel; i++) values[i] = below(w, n > 0 ? n : 1);
    /* one of them may be out of range */
    if (numel > 0) values[0] = pick_long(w, values[0], values[0]);
    tn_tensor *t = tn_from_ints(values, shape);
    free(values);
    return below(w, 8) ? t : tn_to_dtype(t, TN_I32);
}

static tn_tensor *wide(world *w)
{
    tn_shape shape = shape_of_first(w);
    int64_t way = below(w, 4);
    if (way == 0) shape.rank = 0;
    if (way == 1 && shape.rank > 0) shape.size[0] = 1;
    return make_tensor(w, shape, below(w, 4) ? dtype_of_first(w) : (tn_dtype)below(w, 8),
                       (int)below(w, LAYOUTS));
}

SIMPLE(any, pick_tensor(w, below(w, 2) && w->mode != SWEEP ? any_tensor(w) : floating(w, 0)))
SIMPLE(tensor, pick_tensor(w, floating(w, 1)))
SIMPLE(target,
       pick_tensor(w, make_tensor(w, small_shape(w), below(w, 4) ? TN_F32 : (tn_dtype)below(w, 8),
                                  below(w, 3) ? PLAIN : STRIDED)))
SIMPLE(target_matrix, pick_tensor(w, make_tensor(w, TN_SHAPE(3, 4), TN_F32, PLAIN)))
SIMPLE(single, pick_tensor(w, make_tensor(w, TN_SHAPE(1), (tn_dtype)below(w, 8), PLAIN)))
SIMPLE(leaf, pick_tensor(w, leaf(w)))
SIMPLE(matrix, pick_tensor(w, floating(w, 2)))
SIMPLE(boolean, pick_tensor(w, make_tensor(w, small_shape(w), TN_BOOL, (int)below(w, LAYOUTS))))
SIMPLE(recorded, pick_tensor(w, recorded(w)))
SIMPLE(loss, pick_tensor(w, loss(w)))
/* n, n and `size` along each axis of the images that the function is about. */
static tn_shape images(const world *w, int64_t n, int64_t size)
{
    const char *name = w->row->name;
    int axes = strstr(name, "1d") ? 1 : strstr(name, "3d") ? 3 : 2;
    return (tn_shape){ axes + 2, { n, n, size, size, size } };
}
static tn_shape single_image(tn_shape s)
{
    memmove(s.size, s.size + 1, sizeof s.size - sizeof *s.size);
    s.rank--;
    return s;
}
static tn_tensor *picture(world *w)
{
    tn_tensor *t = make_tensor(w, TN_SHAPE(below(w, 2) ? 3 : 1, 1 + below(w, 4), 2 + below(w, 3)),
                               below(w, 2) ? TN_U8 : TN_F32, PLAIN);
    return t;
}
SIMPLE(picture, pick_tensor(w, picture(w)))
SIMPLE(flip_axis, pick_int(w, -2, -1))
SIMPLE(image_property, (tn_image_property)pick_enum(w, 4))
static const double ones[] = { 1 };
SIMPLE(ones, pick_pointer(w, (void *)(uintptr_t)ones))
SIMPLE(image,
       pick_tensor(w, make_tensor(w, below(w, 4) ? images(w, 2, 5) : single_image(images(w, 2, 5)),
                                  below(w, 6) ? TN_F32 : TN_F64, (int)below(w, LAYOUTS))))
SIMPLE(query, pick_tensor(w, make_leaf(w, TN_SHAPE(2, 3, 4), below(w, 4) ? TN_F32 : TN_F64)))
SIMPLE(sequence, pick_tensor(w, make_tensor(w, TN_SHAPE(2, 3, 4), TN_F32, (int)below(w, LAYOUTS))))
SIMPLE(steps, pick_tensor(w, make_leaf(w, TN_SHAPE(3, 2, 3),
                                       below(w, 4) ? TN_F32 : (tn_dtype)below(w, 4))))
SIMPLE(ids, pick_tensor(w, whole_below(w, below(w, 2) ? TN_SHAPE(3) : TN_SHAPE(2, 2), 2)))
SIMPLE(lengths, pick_tensor(w, whole_below(w, TN_SHAPE(2), 3)))
SIMPLE(like,
       pick_tensor(w, make_tensor(w, shape_of_first(w), dtype_of_first(w), (int)below(w, LAYOUTS))))
SIMPLE(wide, pick_tensor(w, wide(w)))
SIMPLE(mask, pick_tensor(w, make_tensor(w, shape_of_first(w), TN_BOOL, PLAIN)))
SIMPLE(no_mask, pick_tensor(w, TN_NONE))
SIMPLE(optional_like,
       pick_tensor(w, below(w, 2) ? TN_NONE
                                  : make_tensor(w, shape_of_first(w), dtype_of_first(w), PLAIN)))
SIMPLE(right, pick_tensor(w, make_tensor(w, TN_SHAPE(size_of_first(w, -1), 2), dtype_of_first(w),
                                         (int)below(w, LAYOUTS))))
SIMPLE(weight,
       pick_tensor(w, make_tensor(w, TN_SHAPE(2, size_of_first(w, -1)), dtype_of_first(w), PLAIN)))
SIMPLE(bias, pick_tensor(w, below(w, 2) ? TN_NONE : make_leaf(w, TN_SHAPE(2), dtype_of_first(w))))
SIMPLE(last, pick_tensor(w, below(w, 3) ? make_tensor(w, TN_SHAPE(size_of_first(w, -1)),
                                                      dtype_of_first(w), PLAIN)
                                        : TN_NONE))
SIMPLE(channel,
       pick_tensor(w, make_tensor(w, TN_SHAPE(size_of_first(w, 1)), dtype_of_first(w), PLAIN)))
SIMPLE(running, pick_tensor(w, tn_ones(TN_SHAPE(size_of_first(w, 1)))))
SIMPLE(kernel, pick_tensor(w, make_tensor(w, images(w, 2, 3), dtype_of_first(w), PLAIN)))
SIMPLE(key_like, pick_tensor(w, make_tensor(w, shape_of_first(w), dtype_of_first(w), PLAIN)))
/* Of one of three recurrent layers with 2 elements of state, x as steps is. */
static int64_t gates_of(const world *w)
{
    const char *name = w->row->name;
    return strcmp(name, "tn_lstm") == 0 ? 8 : strcmp(name, "tn_gru") == 0 ? 6 : 2;
}
SIMPLE(state_of, pick_tensor(w, below(w, 2) ? TN_NONE
                                            : make_tensor(w, TN_SHAPE(size_of_first(w, 1), 2),
                                                          dtype_of_first(w), PLAIN)))
SIMPLE(gates_in,
       pick_tensor(w, make_leaf(w, TN_SHAPE(gates_of(w), size_of_first(w, -1)), dtype_of_first(w))))
SIMPLE(gates_state, pick_tensor(w, make_tensor(w, TN_SHAPE(gates_of(w), 2), dtype_of_first(w),
                                               (int)below(w, LAYOUTS))))
SIMPLE(gates_bias, pick_tensor(w, below(w, 2) ? TN_NONE
                                              : make_tensor(w, TN_SHAPE(gates_of(w)),
                                                            dtype_of_first(w), PLAIN)))
SIMPLE(index, pick_tensor(w, whole_below(w, TN_SHAPE(2), size_of_first(w, axis_argument(w)))))
SIMPLE(index_like,
       pick_tensor(w, whole_below(w, shape_of_first(w), size_of_first(w, axis_argument(w)))))
SIMPLE(classes_of,
       pick_tensor(w, whole_below(w, TN_SHAPE(size_of_first(w, 0)), size_of_first(w, 1))))

DRAW(own) /* a reference to give away */
{
    s->v.own = tn_keep(pick_tensor(w, floating(w, 0)));
}

/* An input for a module of this kind. */
static tn_tensor *input_for(world *w, const tn_module *m)
{
    const char *name = m && m != TN_NO_MODULE ? m->type->name : "";
    if (strcmp(name, "Embedding") == 0) return whole_below(w, TN_SHAPE(2, 2), 3);
    if (strstr(name, "2d")) return make_tensor(w, TN_SHAPE(2, 2, 5, 5), TN_F32, PLAIN);
    if (strstr(name, "ncod") || strstr(name, "ttention") || strstr(name, "LSTM"))
        return make_tensor(w, TN_SHAPE(2, 3, 4), TN_F32, PLAIN);
    return below(w, 2) ? make_leaf(w, TN_SHAPE(4, 3), TN_F32)
                       : make_tensor(w, TN_SHAPE(4, 3), TN_F32, PLAIN);
}
SIMPLE(input, pick_tensor(w, input_for(w, w->slot[0].v.module)))

/* ---- arrays of tensors ----------------------------------------------------------------------- */

static tn_tensor **array(world *w, slot *s, int n)
{
    s->have = n;
    return scratch(w, (size_t)n * sizeof(tn_tensor *));
}
#define ARRAY(kind, n, entry)                                                                      \
    DRAW(kind)                                                                                     \
    {                                                                                              \
        tn_tensor **a = array(w, s, (n));                                                          \
        for (int i = 0; i < s->have; i++) a[i] = pick_tensor(w, (entry));                          \
        s->v.kind = pick_pointer(w, a);                                                            \
    }
ARRAY(tensors, 1 + (int)below(w, 3),
      i == 0 ? floating(w, 1)
             : make_tensor(w,
                           there(a[0]) && tn_numel(a[0]) < MAX_NUMEL ? tn_shape_get(a[0])
                                                                     : TN_SHAPE(2, 3),
                           there(a[0]) ? tn_dtype_of(a[0]) : TN_F32, PLAIN))
ARRAY(indices, 1 + (int)below(w, 2), whole_below(w, TN_SHAPE(2), 2))
ARRAY(inputs, 1, input_for(w, w->slot[0].v.module))
ARRAY(leaves, 1 + (int)below(w, 2), make_leaf(w, TN_SHAPE(2, 3), TN_F32))
ARRAY(loaded, 1 + (int)below(w, 2), make_tensor(w, TN_SHAPE(4, 2), TN_F32, (int)below(w, LAYOUTS)))
ARRAY(recorded_list, 1 + (int)below(w, 2), recorded(w))
ARRAY(check_inputs, 1, make_leaf(w, TN_SHAPE(3), TN_F64))
/* of what a function makes of check_inputs */
SIMPLE(cotangent, pick_tensor(w, below(w, 2) ? TN_NONE : make_leaf(w, TN_SHAPE(3), TN_F64)))

DRAW(seeds) /* one for each of the outputs before */
{
    tn_tensor **outputs = w->slot[1].v.recorded_list;
    int n = outputs ? w->slot[1].have : 1;
    tn_tensor **a = array(w, s, n);
    for (int i = 0; i < n; i++)
        a[i] = pick_tensor(w, outputs && there(outputs[i]) ? tn_ones_like(outputs[i]) : TN_NONE);
    s->v.seeds = pick_pointer(w, a);
}

DRAW(outs)
{
    s->have = MAX_OUT;
    s->v.outs = pick_pointer(w, scratch(w, MAX_OUT * sizeof(tn_tensor *)));
}
DRAW(out)
{
    s->have = 1;
    s->v.out = pick_pointer(w, scratch(w, sizeof(tn_tensor *)));
}

/* ---- numbers --------------------------------------------------------------------------------- */

SIMPLE(status, (tn_status)pick_enum(w, TN_E_BACKEND + 1))
SIMPLE(dtype, (tn_dtype)pick_enum(w, 8))
SIMPLE(float_dtype, (tn_dtype)pick_enum(w, 2))
SIMPLE(default_dtype, (tn_dtype)pick_enum(w, 2))
SIMPLE(autocast, (tn_dtype)(below(w, 2) ? TN_F32 : pick_enum(w, 4)))
SIMPLE(same_dtype, (tn_dtype)pick_enum(w, 8))
SIMPLE(reduction, (tn_reduction)pick_enum(w, 3))
SIMPLE(metric_kind, (tn_metric_kind)pick_enum(w, TN_RUNNING_MEAN + 1))
SIMPLE(class_score, (tn_class_score)pick_enum(w, 3))
SIMPLE(average, (tn_average)pick_enum(w, 3))
SIMPLE(pad_mode, (tn_pad_mode)pick_enum(w, 4))
SIMPLE(buffer_rule, (tn_buffer_rule)pick_enum(w, 3))
SIMPLE(a_status, TN_OK) /* a failure has a message, which only a call that failed leaves */
SIMPLE(rank, (int)below(w, 3) - 1)
SIMPLE(nonlinearity, (tn_nonlinearity)pick_enum(w, 6))
SIMPLE(persistence, (unsigned)pick_enum(w, 12))
SIMPLE(anomaly, (tn_anomaly)(below(w, 4) ? TN_ANOMALY_OFF : pick_enum(w, 3)))
DRAW(device)
{
    int type = pick_enum(w, 1);
    s->v.device = (tn_device){ (tn_device_type)type, pick_int(w, 0, 0) };
}
SIMPLE(threads, w->mode == SWEEP ? pick_int(w, 1, 3) : tn_num_threads())
SIMPLE(allocator, NULL)

SIMPLE(real, pick_real(w, -2, 2))
SIMPLE(positive, pick_real(w, 0.125, 2))
SIMPLE(probability, pick_real(w, 0, 1))
SIMPLE(fraction, pick_real(w, 0, 0.5))
SIMPLE(scale, pick_real(w, 0, 1))
SIMPLE(step, pick_real(w, 0.25, 1))
SIMPLE(low_real, pick_real(w, -2, 0))
SIMPLE(high_real, pick_real(w, 0, 2))
SIMPLE(yes, pick_bool(w))
SIMPLE(mostly, below(w, 8) > 0)
SIMPLE(seed, (uint64_t)pick_long(w, 0, 1000))
SIMPLE(size, pick_long(w, 1, 4))
SIMPLE(low, pick_long(w, -3, 0))
SIMPLE(high, pick_long(w, 1, 5))
SIMPLE(small, pick_long(w, 1, 2))
SIMPLE(few64, pick_long(w, 0, 1))
SIMPLE(number64, pick_long(w, -3, 3))
SIMPLE(classes, pick_long(w, 2, 4))
SIMPLE(padding_index, pick_long(w, -1, 1))
SIMPLE(positive_int, pick_long(w, 1, 3))
SIMPLE(large_int, pick_long(w, 4, 9))
SIMPLE(width, pick_long(w, 1, 3) > 0 ? 2 * (pick_long(w, 1, 3) % 4) : pick_long(w, 4, 4))
SIMPLE(heads, pick_long(w, 1, 2))
SIMPLE(few, pick_int(w, 0, 2))
SIMPLE(number, pick_int(w, 0, 1))
SIMPLE(one, pick_int(w, 1, 1))
SIMPLE(small_int, pick_int(w, 1, 3))
SIMPLE(copies, pick_int(w, 1, 3))
SIMPLE(small_axis, pick_int(w, -1, 1))
SIMPLE(flags, (int)pick_int(w, 0, 3))
SIMPLE(hook_id, pick_long(w, w->hook[below(w, HOOKS)], w->hook[0]))

DRAW(axis)
{
    int rank = shape_of_first(w).rank;
    s->v.axis = pick_int(w, rank ? -rank : -1, rank ? rank - 1 : 0);
}
DRAW(position_of)
{
    int64_t n = size_of_first(w, axis_argument(w));
    s->v.position_of = pick_long(w, 0, n > 0 ? n - 1 : 0);
}

/* The count of the array next to it. */
static slot *beside(world *w, slot *s)
{
    bool first = w->row->kinds[0] == K_count; /* then counts stand before their arrays */
    slot *before = s > w->slot && !first ? s - 1 : NULL,
         *after = s < w->slot + w->row->n - 1 ? s + 1 : NULL;
    if (before && before->have >= 0 && before->have != MAX_OUT) return before;
    return after && after->have >= 0 ? after : before;
}
DRAW(count)
{
    slot *a = beside(w, s);
    s->v.count =
        a && a->have >= 0 ? pick_count(w, a->have, a->v.tensors != NULL) : pick_int(w, 0, 2);
}
DRAW(count64)
{
    s->v.count64 = pick_count(w, w->slot[2].have, w->slot[2].v.longs != NULL);
}
DRAW(out_count)
{
    static const int counts[] = { 1, 2, 1, MAX_OUT };
    bool call = strcmp(w->row->name, "tn_call") == 0 || strcmp(w->row->name, "tn_apply_n") == 0,
         next = strcmp(w->row->name, "tn_loader_next") == 0; /* most have one tensor */
    s->v.out_count = pick_count(w, counts[next ? 0 : below(w, call ? 3 : 4)], true);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

SIMPLE(shape, pick_shape(w))

DRAW(reshaped)
{
    tn_shape shape = shape_of_first(w);
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.size[i];
    tn_shape flat = below(w, 2) ? TN_SHAPE(n) : TN_SHAPE(-1, 1);
    for (int i = 0; i < flat.rank; i++) flat.size[i] = pick_long(w, flat.size[i], flat.size[i]);
    s->v.reshaped = below(w, 4) ? flat : pick_shape(w);
}
DRAW(expanded)
{
    tn_shape shape = shape_of_first(w);
    if (shape.rank < TN_MAX_RANK) { /* one more in front */
        for (int i = shape.rank++; i > 0; i--) shape.size[i] = shape.size[i - 1];
        shape.size[0] = pick_long(w, 1, 3);
    }
    for (int i = 0; i < shape.rank; i++)
        if (shape.size[i] == 1) shape.size[i] = pick_long(w, 1, 3);
    s->v.expanded = below(w, 8) ? shape : pick_shape(w);
}
DRAW(repeats)
{
    tn_shape counts = { shape_of_first(w).rank, { 0 } };
    for (int i = 0; i < counts.rank; i++) counts.size[i] = pick_long(w, 1, 2);
    s->v.repeats = below(w, 8) ? counts : pick_shape(w);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Bytes of a tensor of a shape and dtype; -1 if no such tensor can exist. */
static int64_t bytes_of(tn_shape shape, tn_dtype dtype)
{
    int64_t n = (int64_t)tn_dtype_size(dtype);
    if (shape.rank < 0 || shape.rank > TN_MAX_RANK || n == 0) return -1;
    for (int i = 0; i < shape.rank; i++) {
        if (shape.size[i] < 0) return -1;
        if (shape.size[i] && __builtin_mul_overflow(n, shape.size[i], &n)) return -1;
    }
    for (int i = 0; i < shape.rank; i++)
        if (shape.size[i] == 0) return 0;
    return n;
}
/* As many values as the shape next to it needs; beyond the memory limit, only a few. */
static void *values_for(world *w, tn_shape shape, tn_dtype dtype)
{
    int64_t n = bytes_of(shape, dtype);
    size_t size = n < 0 || n > (int64_t)64 << 20 ? 64 : (size_t)n;
    unsigned char *bytes = scratch(w, size + 1);
    for (size_t i = 0; i < size && i < 512; i++)
        bytes[i] = (unsigned char)(below(w, 2) + (i % 4 == 3 ? 62 : 0));
    return bytes;
}
SIMPLE(data, pick_pointer(w, values_for(w, w->slot[1].v.shape, w->slot[2].v.dtype)))
SIMPLE(floats, pick_pointer(w, values_for(w, w->slot[1].v.shape, TN_F32)))
SIMPLE(longs_data, pick_pointer(w, values_for(w, w->slot[1].v.shape, TN_I64)))
static char lent_memory[1 << 16];
void clear_lent_memory(void)
{
    memset(lent_memory, 0, sizeof lent_memory);
}
DRAW(lent) /* lives as long as the process; threads only read it */
{
    int64_t n = bytes_of(w->slot[1].v.shape, w->slot[2].v.dtype);
    if (n > (int64_t)sizeof lent_memory) w->slot[1].v.shape = TN_SHAPE(2, 3);
    s->v.lent = pick_pointer(w, w->alone ? lent_memory : NULL);
}
DRAW(room)
{
    tn_tensor *t = first_tensor(w);
    tn_dtype dtype = w->slot[3].v.same_dtype;
    int64_t n = there(t) ? tn_numel(t) * (int64_t)tn_dtype_size(dtype) : 8;
    s->have = (int)n;
    s->v.room = pick_pointer(w, scratch(w, (size_t)n));
}
DRAW(nbytes)
{
    s->v.nbytes = (size_t)pick_count(w, w->slot[1].have, w->slot[1].v.room != NULL);
}
DRAW(longs)
{
    s->have = (int)below(w, 20);
    s->v.longs = pick_pointer(w, scratch(w, (size_t)s->have * sizeof(int64_t)));
}
SIMPLE(longs_out, pick_pointer(w, scratch(w, sizeof(int64_t))))
DRAW(pads)
{
    s->have = 2 + 2 * (int)below(w, 2);
    int64_t *m = scratch(w, 4 * sizeof *m);
    for (int i = 0; i < 4; i++) m[i] = pick_long(w, -1, 1);
    s->v.pads = pick_pointer(w, m);
}
DRAW(milestones)
{
    s->have = 3;
    int64_t *m = scratch(w, 3 * sizeof *m);
    for (int i = 0; i < 3; i++) m[i] = pick_long(w, 2 * i + 1, 2 * i + 2);
    s->v.milestones = pick_pointer(w, m);
}
DRAW(milestones_between)
{
    int64_t *m = scratch(w, 3 * sizeof *m);
    for (int i = 0; i < 3; i++) m[i] = pick_long(w, 2 * i + 1, 2 * i + 2);
    s->v.milestones_between = pick_pointer(w, m);
}
DRAW(position)
{
    tn_shape shape = shape_of_first(w);
    int64_t *index = scratch(w, TN_MAX_RANK * sizeof *index);
    for (int i = 0; i < shape.rank; i++)
        index[i] = pick_long(w, 0, shape.size[i] > 0 ? shape.size[i] - 1 : 0);
    s->have = shape.rank;
    s->v.position = pick_pointer(w, index);
}
DRAW(order)
{
    int rank = shape_of_first(w).rank, *order = scratch(w, TN_MAX_RANK * sizeof *order);
    s->have = rank;
    for (int i = 0; i < rank; i++) order[i] = pick_int(w, rank - 1 - i, rank - 1 - i);
    s->v.order = pick_pointer(w, order);
}
DRAW(axes)
{
    int rank = shape_of_first(w).rank;
    s->have = (int)below(w, (rank < 3 ? rank : 3) + 1);
    int *axes = scratch(w, (size_t)s->have * sizeof *axes);
    for (int i = 0; i < s->have; i++) axes[i] = pick_int(w, i, i);
    s->v.axes = pick_pointer(w, axes);
}
DRAW(state_in)
{
    unsigned char *bytes = scratch(w, TN_GENERATOR_STATE_SIZE);
    tn_generator_get_state(w->generator[0] ? w->generator[0] : tn_default_generator(), bytes);
    if (below(w, 4) == 0)
        bytes[below(w, TN_GENERATOR_STATE_SIZE)] ^= (unsigned char)(1 << below(w, 8));
    s->v.state_in = pick_pointer(w, bytes);
}
SIMPLE(state_out, pick_pointer(w, scratch(w, TN_GENERATOR_STATE_SIZE)))
SIMPLE(user, pick_pointer(w, w))
static void release_nothing(void *user)
{
    (void)user;
}
SIMPLE(release, pick_bool(w) ? release_nothing : NULL)
SIMPLE(file, pick_pointer(w, w->sink))
DRAW(text_out)
{
    s->have = (int)below(w, 400);
    s->v.text_out = pick_pointer(w, scratch(w, (size_t)s->have));
}
DRAW(text_size)
{
    slot *a = s - 1;
    int n = pick_count(w, a->have, a->v.text_out != NULL);
    s->v.text_size = n < 0 || !a->v.text_out ? 0 : (size_t)n;
}
SIMPLE(properties, pick_pointer(w, scratch(w, sizeof(tn_cuda_properties))))
SIMPLE(report, pick_pointer(w, scratch(w, sizeof(tn_load_report))))
SIMPLE(explained, pick_pointer(w, scratch(w, sizeof(tn_explain_report))))

/* ---- names and files ------------------------------------------------------------------------- */

static const char *word(world *w)
{
    static const char *const words[] = { "weight", "bias",  "a",     "b",           "0",
                                         "child",  "scale", "count", "running_mean" };
    return words[below(w, 9)];
}
SIMPLE(name, pick_text(w, word(w)))
DRAW(equation)
{
    static const char *const texts[] = { "ij,jk->ik", "...ij->...ji", "i,i->",   "ii", "ab,cd",
                                         "...,...",   "a..",          "ij->ik,", "" };
    s->v.equation = pick_text(w, texts[below(w, 9)]);
}
SIMPLE(prefix, pick_text(w, below(w, 2) ? "" : "net."))
DRAW(path_in)
{
    static const char *const paths[] = { "weight", "bias",         "0.weight",
                                         "1.bias", "running_mean", "child",
                                         "0",      "scale",        "norm1.weight" };
    s->v.path_in = pick_text(w, paths[below(w, 9)]);
}
DRAW(entry_name) /* of the list before, copied: the call may free it */
{
    const tn_list *list = w->slot[0].v.list;
    const char *name =
        list && list->n > 0 && below(w, 4) ? list->entry[below(w, list->n)].name : word(w);
    size_t size = strlen(name) + 1;
    s->v.entry_name = pick_text(w, memcpy(scratch(w, size), name, size));
}

static char *in_folder(world *w, const char *name)
{
    char *path = w->path[w->n_path++ % 8];
    w->touched = true;
    snprintf(path, sizeof w->path[0], "%s/%s", w->folder, name);
    return path;
}
/* An odd path: a folder, one that does not exist, none. */
static const char *path(world *w, const char *sound)
{
    int64_t way = w->mode == SOUND ? 9 : below(w, 16);
    if (way == 0) return in_folder(w, "missing/file");
    if (way == 1) return in_folder(w, ".");
    return pick_text(w, sound);
}
static void damage(world *w, const char *name)
{
    FILE *f = fopen(name, "r+b");
    if (!f) return;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    if (n > 0 && below(w, 3) == 0) {
        if (ftruncate(fileno(f), below(w, n)) != 0) abort();
    } else if (n > 0) {
        long at = below(w, 2) ? (long)below(w, n) : (long)below(w, n < 300 ? n : 300);
        fseek(f, at, SEEK_SET);
        int byte = fgetc(f);
        fseek(f, at, SEEK_SET);
        fputc(byte ^ (1 << below(w, 8)), f);
    }
    fclose(f);
}
static void write_file(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(name, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) abort();
}
/* Sometimes damaged, where that is allowed. */
static const char *readable(world *w, const char *name)
{
    if (w->mode != SOUND && below(w, 3) == 0) damage(w, name);
    return path(w, name);
}

static const char *out_name(world *w)
{
    static const char *const names[] = { "a.safetensors", "b.safetensors", "a.pt" };
    return in_folder(w, names[below(w, 3)]);
}
SIMPLE(path_out, path(w, out_name(w)))
DRAW(weights)
{
    const char *name = out_name(w);
    tn_module *m = any_module(w, NULL);
    if (access(name, F_OK) != 0 || below(w, 2)) either_way(tn_save(m, name));
    s->v.weights = readable(w, name);
}
DRAW(saved_checkpoint)
{
    const char *name = in_folder(w, "c.safetensors");
    if ((access(name, F_OK) != 0 || below(w, 2)) && w->slot[0].v.checkpoint)
        either_way(tn_checkpoint_save(w->slot[0].v.checkpoint, name));
    s->v.saved_checkpoint = readable(w, name);
}
SIMPLE(folder, path(w, in_folder(w, "")))
/* Another name would become a folder. */
SIMPLE(log_folder, pick_pointer(w, in_folder(w, "")))
SIMPLE(stem, pick_text(w, "net"))
DRAW(idx_file)
{
    static const unsigned char bytes[] = { 0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6 };
    const char *name = in_folder(w, "d.idx");
    write_file(name, bytes, sizeof bytes);
    s->v.idx_file = readable(w, name);
}
DRAW(npy_file)
{
    static const char bytes[] = "\x93NUMPY\1\0\x36\0{'descr': '<f4', 'fortran_order': False, "
                                "'shape': (2,) }12345678";
    const char *name = in_folder(w, "d.npy");
    (void)unlink(name); /* tensors may be maps of it */
    write_file(name, bytes, sizeof bytes - 1);
    s->v.npy_file = readable(w, name);
}
DRAW(csv_file)
{
    const char *name = in_folder(w, "t.csv");
    write_file(name, "a,b,c\n1,2.5,\"x, y\"\n3,,z\n", 25);
    s->v.csv_file = readable(w, name);
}
static const unsigned char png[] = {
    137, 80,  78,  71,  13,  10,  26,  10, 0,  0,   0,   13,  73,  72, 68,  82,  0,   0,  0,  2,
    0,   0,   0,   2,   8,   2,   0,   0,  0,  253, 212, 154, 115, 0,  0,   0,   22,  73, 68, 65,
    84,  120, 218, 99,  96,  224, 149, 82, 55, 113, 100, 96,  23,  81, 212, 179, 246, 0,  0,  9,
    132, 1,   177, 175, 209, 243, 136, 0,  0,  0,   0,   73,  69,  78, 68,  174, 66,  96, 130
};
DRAW(image_file)
{
    const char *name = in_folder(w, "d.png");
    write_file(name, png, sizeof png);
    s->v.image_file = readable(w, name);
}
DRAW(image_folder)
{
    char class[160];
    const char *name = in_folder(w, "images");
    snprintf(class, sizeof class, "%s/c", name);
    if (mkdir(name, 0777) == 0) (void)mkdir(class, 0777);
    snprintf(class, sizeof class, "%s/c/d.png", name);
    write_file(class, png, sizeof png);
    s->v.image_folder = path(w, name);
}
SIMPLE(bytes_in, pick_pointer(w, (void *)(uintptr_t)png))
SIMPLE(nbytes_in, (size_t)pick_count(w, (int)sizeof png, w->slot[0].v.bytes_in != NULL))
DRAW(text_file)
{
    const char *name = in_folder(w, "text");
    write_file(name, "so much depends upon a red wheel barrow", 39);
    s->v.text_file = readable(w, name);
}
DRAW(metadata)
{
    static const char *keys[] = { "epoch", "note", "tenon.x", "" },
                      *values[] = { "1", "", "\"\n", NULL };
    tn_metadata *m = scratch(w, sizeof *m);
    const char **key = scratch(w, 2 * sizeof *key), **val = scratch(w, 2 * sizeof *val);
    for (int i = 0; i < 2; i++) {
        key[i] = keys[w->mode == SOUND ? i : below(w, 4)];
        val[i] = values[w->mode == SOUND ? i : below(w, 4)];
    }
    m->key = pick_pointer(w, key);
    m->value = pick_pointer(w, val);
    m->n = pick_count(w, 2, m->key && m->value);
    s->v.metadata = pick_pointer(w, m);
}
SIMPLE(metadata_out, pick_pointer(w, scratch(w, sizeof(tn_metadata))))

/* ---- modules --------------------------------------------------------------------------------- */

static tn_module *new_module(world *w, int64_t which)
{
    switch (which) {
    case 0: return tn_linear_new(3, 3, (tn_linear_options){ 0 });
    case 1: return tn_sequential(tn_linear_new(3, 3, (tn_linear_options){ 0 }), tn_relu_new());
    case 2: return tn_batch_norm1d_new(3, (tn_batch_norm_options){ 0 });
    case 3: return tn_batch_norm2d_new(2, (tn_batch_norm_options){ 0 });
    case 4: return tn_layer_norm_new(TN_SHAPE(3), (tn_layer_norm_options){ 0 });
    case 5: return tn_embedding_new(3, 2, (tn_embedding_options){ 0 });
    case 6: return tn_conv2d_new(2, 2, 3, (tn_conv2d_options){ 0 });
    case 7: return tn_dropout_new(0.5);
    case 8: return tn_multihead_attention_new(4, 2, (tn_multihead_attention_options){ 0 });
    case 9: return tn_encoder_layer_new(4, 2, (tn_encoder_layer_options){ .feedforward = 3 });
    case 10:
        return tn_encoder_new(
            tn_encoder_layer_new(4, 2, (tn_encoder_layer_options){ .feedforward = 3 }), 1,
            TN_NO_MODULE);
    case 11: return tn_module_list_new();
    case 12: return tn_parameter_list_new();
    case 13: return own_net_new(&own_types[below(w, n_own_types)]);
    case 14: return tn_module_dict_new();
    case 15: return tn_buffer_list_new(TN_PERSISTENT);
    case 16: return tn_lstm_new(4, 2, (tn_recurrent_options){ .bidirectional = true });
    case 17: return tn_decoder_layer_new(4, 2, (tn_encoder_layer_options){ .feedforward = 3 });
    case 18:
        return tn_decoder_new(
            tn_decoder_layer_new(4, 2, (tn_encoder_layer_options){ .feedforward = 3 }), 1,
            TN_NO_MODULE);
    case 19: return tn_metric_new(TN_CONFUSION, (tn_metric_options){ .classes = 2 });
    case 20: return tn_metric_new(TN_AUC, (tn_metric_options){ .rows = 5 });
    default: {
        tn_module *inner = tn_linear_new(3, 3, (tn_linear_options){ 0 });
        tn_module *ema = tn_ema_new(inner, (tn_ema_options){ 0 });
        tn_module_drop(inner);
        return ema;
    }
    }
}
enum { NEW_MODULES = 22 };

static tn_module *add_module(world *w, int64_t which)
{
    tn_module *m = new_module(w, which);
    if (m) pool_module(w, m);
    return m;
}

static bool is_a(const tn_module *m, const char *type)
{
    return m && m != TN_NO_MODULE && strcmp(m->type->name, type) == 0;
}

tn_module *any_module(world *w, const char *type)
{
    int at = (int)below(w, MODULES);
    for (int i = 0; i < MODULES && below(w, 8); i++) {
        tn_module *m = w->module[(at + i) % MODULES];
        if (m && (!type || is_a(m, type))) return m;
    }
    if (!type) return add_module(w, below(w, NEW_MODULES));
    static const struct {
        const char *type;
        int which;
    } known[] = { { "Sequential", 1 },
                  { "ModuleList", 11 },
                  { "ParameterList", 12 },
                  { "MultiheadAttention", 8 },
                  { "TransformerEncoderLayer", 9 },
                  { "TransformerEncoder", 10 },
                  { "LSTM", 16 },
                  { "TransformerDecoderLayer", 17 },
                  { "TransformerDecoder", 18 },
                  { "Metric", 19 },
                  { "Ema", 21 },
                  { "BufferList", 15 } };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].type, type) == 0) return add_module(w, known[i].which);
    return add_module(w, 0);
}

/* NULL, TN_NO_MODULE, or one of another kind. */
static tn_module *pick_module(world *w, tn_module *sound)
{
    tn_module *m = pick_pointer(w, sound);
    if (m && w->mode == WILD && below(w, 8) == 0)
        return below(w, 2) ? TN_NO_MODULE : any_module(w, NULL);
    return m;
}

SIMPLE(module, pick_module(w, any_module(w, NULL)))
DRAW(changed) /* children may go: no list names them afterwards */
{
    draw_module(w, s);
    forget_lists(w, 0);
}
DRAW(own_module) /* leaves the pool */
{
    forget_lists(w, 0);
    int at = (int)below(w, MODULES);
    tn_module *m = w->module[at];
    w->module[at] = NULL;
    s->v.own_module = m;
}
/* A reference that the call consumes. */
static tn_module *given(world *w, tn_module *m)
{
    forget_lists(w, 0);
    m = pick_module(w, m);
    return m && m != TN_NO_MODULE ? tn_module_keep(m) : m;
}
SIMPLE(child, given(w, any_module(w, NULL)))
SIMPLE(given_module, given(w, any_module(w, NULL)))
SIMPLE(norm, given(w, below(w, 2) ? TN_NO_MODULE : any_module(w, NULL)))
DRAW(given_modules)
{
    s->have = 1 + (int)below(w, 3);
    tn_module **a = scratch(w, (size_t)s->have * sizeof *a);
    for (int i = 0; i < s->have; i++) a[i] = any_module(w, NULL);
    s->v.given_modules = pick_pointer(w, a);
}
SIMPLE(container, pick_module(w, any_module(w, below(w, 2) ? "Sequential" : "ModuleList")))
SIMPLE(tensor_list, pick_module(w, any_module(w, below(w, 2) ? "ParameterList" : "BufferList")))
SIMPLE(ema, pick_module(w, any_module(w, "Ema")))
SIMPLE(metric, pick_module(w, any_module(w, "Metric")))
SIMPLE(scores,
       pick_tensor(w, make_tensor(w, below(w, 2) ? TN_SHAPE(3, 2) : TN_SHAPE(3), TN_F32, PLAIN)))
DRAW(class_names) /* of as many classes as memory is there for */
{
    static const char *names[1 << 11] = { "a", NULL, "<c>" };
    s->v.class_names = pick_pointer(w, names);
}
SIMPLE(attention, pick_module(w, any_module(w, "MultiheadAttention")))
SIMPLE(encoder_layer, pick_module(w, any_module(w, "TransformerEncoderLayer")))
SIMPLE(encoder, pick_module(w, any_module(w, "TransformerEncoder")))
SIMPLE(decoder_layer, pick_module(w, any_module(w, "TransformerDecoderLayer")))
SIMPLE(decoder, pick_module(w, any_module(w, "TransformerDecoder")))
SIMPLE(recurrent, pick_module(w, any_module(w, "LSTM")))

static own_net *own_of(world *w)
{
    tn_module *m = w->slot[0].v.module;
    if (w->row->kinds[0] == K_module && m && m != TN_NO_MODULE && m->type >= own_types &&
        m->type < own_types + n_own_types)
        return (own_net *)m;
    for (int i = 0; i < MODULES && w->row->kinds[0] != K_module; i++) {
        m = w->module[i];
        if (m && m->type >= own_types && m->type < own_types + n_own_types) return (own_net *)m;
    }
    return NULL;
}
DRAW(field)
{
    own_net *net = own_of(w);
    static tn_tensor *stray;
    s->v.field = net && below(w, 2) ? (below(w, 2) ? &net->scale : &net->count) : NULL;
    if (w->mode != SOUND && below(w, 12) == 0) s->v.field = &stray;
}
DRAW(child_field)
{
    own_net *net = own_of(w);
    s->v.child_field = net && below(w, 2) ? &net->child : NULL;
}

/* ---- lists and what is made of them ---------------------------------------------------------- */

tn_list *any_list(world *w)
{
    int at = (int)below(w, LISTS);
    for (int i = 0; i < LISTS; i++)
        if (w->list[(at + i) % LISTS]) return w->list[(at + i) % LISTS];
    tn_list *list = below(w, 2) ? tn_state_dict(any_module(w, NULL), "") : tn_list_new();
    pool_list(w, list);
    return list;
}
SIMPLE(list, pick_pointer(w, any_list(w)))
DRAW(trained)
{
    s->v.trained = pick_pointer(w, below(w, 6) ? tn_parameters(any_module(w, NULL)) : any_list(w));
}

DRAW(matrices) /* mostly */
{
    s->v.matrices =
        pick_pointer(w, tn_list_filter(tn_parameters(any_module(w, NULL)), tn_decay, NULL));
}

/* The first of the pool, of some place on. */
#define ANY(kind, type, pool, make)                                                                \
    static type *one_##kind(world *w)                                                              \
    {                                                                                              \
        int at = (int)below(w, FEW);                                                               \
        for (int i = 0; i < FEW; i++)                                                              \
            if (w->pool[(at + i) % FEW]) return w->pool[(at + i) % FEW];                           \
        return w->pool[at] = (make);                                                               \
    }                                                                                              \
    DRAW(kind)                                                                                     \
    {                                                                                              \
        s->v.kind = pick_pointer(w, one_##kind(w));                                                \
    }                                                                                              \
    DRAW(own_##kind) /* leaves the pool */                                                         \
    {                                                                                              \
        int at = (int)below(w, FEW);                                                               \
        if (K_own_##kind == K_own_shared) forget_lists(w, 0); /* of the model that it keeps */     \
        s->v.own_##kind = w->pool[at];                                                             \
        w->pool[at] = NULL;                                                                        \
    }

static tn_optim *new_optim(world *w)
{
    tn_list *list = tn_parameters(any_module(w, below(w, 2) ? "Sequential" : NULL));
    switch (below(w, 8)) {
    case 5: return tn_adafactor(list, (tn_optim_options){ .lr = 0.1 });
    case 6: return tn_optim_new(&optim_types[below(w, 4)], list, (tn_optim_options){ .lr = 0.1 });
    case 7: return tn_lbfgs(list, (tn_optim_options){ .set = { { "line_search", 1 } } });
    case 0: return tn_sgd(list, (tn_sgd_options){ .momentum = 0.5 });
    case 1: return tn_adam(list, (tn_adam_options){ 0 });
    case 2: return tn_rmsprop(list, (tn_rmsprop_options){ 0 });
    case 3: return tn_adagrad(list, (tn_adagrad_options){ 0 });
    default: return tn_adamw(list, (tn_adamw_options){ .weight_decay = 0.1 });
    }
}
ANY(optim, tn_optim, optim, new_optim(w))
ANY(scheduler, tn_scheduler, scheduler, tn_step_lr(one_optim(w), 2, 0.5))
ANY(scaler, tn_scaler, scaler, tn_scaler_new((tn_scaler_options){ .init_scale = 4 }))
static tn_data_parallel *new_shared(void)
{
    tn_module *m = tn_linear_new(2, 2, (tn_linear_options){ 0 });
    tn_data_parallel *p = m ? tn_data_parallel_new(m, (tn_data_parallel_options){ 0 }) : NULL;
    tn_module_drop(m);
    return p;
}
ANY(shared, tn_data_parallel, shared, new_shared())
ANY(generator, tn_generator, generator, tn_generator_new(7))
ANY(loader, tn_loader, loader,
    tn_loader_new((tn_tensor *[]){ make_tensor(w, TN_SHAPE(5, 2), TN_F32, PLAIN) }, 1,
                  (tn_loader_options){ .batch_size = 2, .shuffle = true }))
ANY(capture, tn_capture, capture, tn_capture_new(steps[0], w, tn_cpu()))
ANY(later, tn_later, later, tn_later_new(tn_scalar(1)))
ANY(trace, tn_trace, trace, tn_trace_begin((tn_trace_options){ 0 }))
DRAW(traces)
{
    s->have = 1 + (int)below(w, 2);
    tn_trace **a = scratch(w, (size_t)s->have * sizeof *a);
    for (int i = 0; i < s->have; i++) a[i] = pick_pointer(w, one_trace(w));
    s->v.traces = pick_pointer(w, a);
}
ANY(tensorboard, tn_tensorboard, tensorboard,
    tn_tensorboard_new(in_folder(w, ""), (tn_tensorboard_options){ 0 }))
static const char *text_path(world *w)
{
    const char *name = in_folder(w, "text2");
    write_file(name, "so much depends upon a red wheel barrow", 39);
    return name;
}
ANY(corpus, tn_text, corpus, tn_text_load(text_path(w), 0.25))
DRAW(own_images) /* leaves the pool */
{
    const int64_t at = below(w, FEW);
    s->v.own_images = w->images[at];
    w->images[at] = NULL;
}
DRAW(own_csv) /* leaves the pool */
{
    const int64_t at = below(w, FEW);
    s->v.own_csv = w->csv[at];
    w->csv[at] = NULL;
}
tn_optim *any_optim(world *w)
{
    return one_optim(w);
}
SIMPLE(optim_or_null, below(w, 2) ? NULL : one_optim(w))
/* of the optimizer before, each with a reference of its own: the call consumes them */
DRAW(given_schedulers)
{
    tn_optim *opt = w->slot[0].v.optim;
    s->have = 2;
    tn_scheduler **a = scratch(w, 2 * sizeof *a);
    for (int i = 0; i < 2; i++) a[i] = tn_step_lr(opt ? opt : one_optim(w), 2, 0.5);
    s->v.given_schedulers = pick_pointer(w, a);
    s->why = a;
}
SIMPLE(optim_state,
       pick_pointer(w, below(w, 4) ? tn_optim_state_dict(w->slot[0].v.optim) : any_list(w)))
SIMPLE(scaler_state,
       pick_pointer(w, below(w, 4) ? tn_scaler_state_dict(w->slot[0].v.scaler) : any_list(w)))
SIMPLE(scheduler_state,
       pick_pointer(w, below(w, 4) ? tn_scheduler_state_dict(w->slot[0].v.scheduler) : any_list(w)))
DRAW(entry)
{
    tn_list *list = any_list(w);
    s->v.entry = list && list->n > 0 ? &list->entry[below(w, list->n)] : NULL;
}
DRAW(own_lock)
{
    int at = (int)below(w, FEW);
    s->v.own_lock = w->lock[at];
    w->lock[at] = NULL;
}
SIMPLE(lock_out, pick_pointer(w, scratch(w, sizeof(tn_file_lock *))))

DRAW(checkpoint)
{
    tn_checkpoint *c = scratch(w, sizeof *c);
    c->model = pick_module(w, any_module(w, "Sequential"));
    if (below(w, 2)) c->optimizer = one_optim(w);
    if (below(w, 3) == 0) c->scheduler = one_scheduler(w);
    if (below(w, 3) == 0) c->loader = one_loader(w);
    c->step = pick_long(w, 0, 9);
    tn_generator **generators = scratch(w, sizeof *generators);
    generators[0] = pick_pointer(w, one_generator(w));
    if (below(w, 2)) {
        c->generators = pick_pointer(w, generators);
        c->n_generators = pick_count(w, 1, c->generators != NULL);
    }
    tn_checkpoint_part *part = scratch(w, sizeof *part);
    part->name = pick_text(w, "ema");
    part->module = pick_module(w, any_module(w, NULL));
    if (below(w, 3) == 0) {
        c->parts = pick_pointer(w, part);
        c->n_parts = pick_count(w, 1, c->parts != NULL);
    }
    c->allow_nonfinite = pick_bool(w);
    s->v.checkpoint = pick_pointer(w, c);
}
DRAW(curves)
{
    double *x = scratch(w, 3 * sizeof *x), *y = scratch(w, 3 * sizeof *y);
    for (int i = 0; i < 3; i++) x[i] = pick_real(w, i, i + 1), y[i] = pick_real(w, 0, 1);
    tn_curve *c = scratch(w, sizeof *c);
    c->label = pick_text(w, "loss");
    c->x = pick_pointer(w, x);
    c->y = pick_pointer(w, y);
    c->n = pick_count(w, 3, c->x && c->y);
    s->have = 1;
    s->v.curves = pick_pointer(w, c);
}

/* ---- options --------------------------------------------------------------------------------- */

#define LONG(field, low, high) o.field = below(w, 2) ? pick_long(w, low, high) : o.field
#define REAL(field, low, high) o.field = below(w, 2) ? pick_real(w, low, high) : o.field
#define FLAG(field) o.field = below(w, 4) == 0
#define OPTIONS(kind, type, ...)                                                                   \
    DRAW(kind)                                                                                     \
    {                                                                                              \
        type o = { 0 };                                                                            \
        (void)w;                                                                                   \
        __VA_ARGS__;                                                                               \
        s->v.kind = o;                                                                             \
    }
OPTIONS(ce, tn_cross_entropy_options,
        o.weight = below(w, 2) ? NULL : pick_tensor(w, tn_ones(TN_SHAPE(size_of_first(w, 1)))),
        strcmp(w->row->name, "tn_nll_loss") ? (REAL(label_smoothing, 0, 1)) : 0,
        FLAG(use_ignore_index), LONG(ignore_index, -1, 2),
        o.reduction = (tn_reduction)pick_enum(w, 3))
OPTIONS(conv, tn_conv_spec, LONG(stride[0], 0, 2), LONG(stride[1], 0, 2), LONG(padding[0], 0, 2),
        LONG(padding[1], 0, 2), LONG(dilation[0], 0, 2), LONG(dilation[1], 0, 2),
        LONG(groups, 0, 1), LONG(padding_end[0], 0, 2), FLAG(use_padding_end), FLAG(same),
        LONG(output_padding[0], 0, 1), o.padding_mode = (tn_pad_mode)pick_enum(w, 4))
OPTIONS(pool, tn_pool_spec, o.kernel[0] = pick_long(w, 1, 2), o.kernel[1] = pick_long(w, 1, 2),
        LONG(stride[0], 0, 2), LONG(stride[1], 0, 2), LONG(padding[0], 0, 1),
        LONG(padding[1], 0, 1), LONG(dilation[0], 0, 2), LONG(dilation[1], 0, 1), FLAG(ceil_mode),
        FLAG(exclude_padding), LONG(divisor, 0, 2))
OPTIONS(resize, tn_interpolate_spec, o.size[0] = below(w, 2) ? pick_long(w, 1, 4) : 0,
        o.size[1] = below(w, 2) ? pick_long(w, 1, 4) : 0,
        o.scale[0] = o.size[0] ? 0 : pick_real(w, 0.5, 2),
        o.mode = (tn_interpolate_mode)pick_enum(w, 4), FLAG(align_corners), FLAG(antialias))
OPTIONS(image_options, tn_image_options, o.mode = (tn_image_mode)pick_enum(w, 3), FLAG(orient),
        FLAG(damaged))
OPTIONS(resize_options, tn_image_resize_options, o.filter = (tn_image_filter)pick_enum(w, 3),
        FLAG(no_antialias))
OPTIONS(crop_options, tn_image_crop_options, REAL(scale[0], 0.1, 0.2), REAL(scale[1], 0.5, 1),
        REAL(ratio[0], 0.5, 1), REAL(ratio[1], 1, 2),
        o.resize.filter = (tn_image_filter)pick_enum(w, 3))
OPTIONS(rotate_options, tn_image_rotate_options, FLAG(linear), FLAG(expand), REAL(fill, 0, 0))
OPTIONS(jitter_options, tn_image_jitter_options, REAL(brightness, 0, 1), REAL(contrast, 0, 1),
        REAL(saturation, 0, 1), REAL(hue, 0, 0.5))
OPTIONS(erase_options, tn_image_erase_options, REAL(scale[0], 0.1, 0.2), REAL(scale[1], 0.3, 0.5),
        REAL(value, 0, 0))
OPTIONS(gradcheck, tn_gradcheck_options, REAL(eps, 1e-6, 1e-6), REAL(atol, 1e-5, 1),
        REAL(rtol, 1e-3, 1), FLAG(second))
OPTIONS(module_gradcheck, tn_module_gradcheck_options, REAL(eps, 1e-6, 1e-6), REAL(atol, 1e-7, 1),
        REAL(rtol, 1e-5, 1), FLAG(fast))
OPTIONS(graph_options, tn_graph_options,
        o.model = below(w, 2) ? NULL : pick_pointer(w, any_module(w, NULL)))
OPTIONS(walk, tn_walk_options, o.prefix = pick_text(w, NULL), FLAG(no_recurse),
        FLAG(keep_duplicates), FLAG(persistent_only))
static bool rename_some(const char *name, char *to, size_t size, void *user)
{
    (void)user;
    snprintf(to, size, "%s", name);
    return name[0] != 'b';
}
OPTIONS(load, tn_load_options, FLAG(non_strict), FLAG(cast), FLAG(skip_mismatched), FLAG(assign),
        FLAG(unwrap), FLAG(widen), FLAG(skip_foreign),
        o.key = below(w, 4) ? NULL : (const char *[]){ "model", "*", "" }[below(w, 3)],
        o.rename = below(w, 6) ? NULL : rename_some)
DRAW(save_options)
{
    slot inner = { .have = -1 };
    if (below(w, 2)) draw_metadata(w, &inner);
    s->v.save_options = (tn_save_options){ .every_key = below(w, 2), .metadata = inner.v.metadata };
}
DRAW(patterns)
{
    static const char *const some[] = { "*", "*fc*", "0,1", "*.linear?", "none", "" };
    s->v.patterns = pick_text(w, some[below(w, 6)]);
}
OPTIONS(lora, tn_lora_options, REAL(alpha, 0, 9), REAL(dropout, 0, 0.9), LONG(rank, 0, 2),
        FLAG(rslora), o.name = below(w, 3) ? NULL : (const char *[]){ "b", "a.b" }[below(w, 2)])
OPTIONS(limits, tn_file_limits, LONG(header_bytes, 100000, 200000), LONG(tensors, 100, 200),
        LONG(inflated_bytes, 0, 100000))
OPTIONS(loader_options, tn_loader_options, LONG(batch_size, 1, 3), FLAG(shuffle), FLAG(drop_last),
        FLAG(prefetch), LONG(parts, 0, 2), LONG(part, 0, 1), o.seed = chance(w),
        LONG(workers, 0, 2), LONG(ahead, 0, 2), LONG(draws, 0, 3), FLAG(without_replacement),
        REAL(pad, 0, 9), o.weights = below(w, 6) ? NULL : pick_tensor(w, tn_rand(TN_SHAPE(5))),
        o.classes = below(w, 6) ? NULL : pick_tensor(w, any_tensor(w)),
        o.collate = below(w, 6) ? NULL : collates[w->mode == SOUND ? 0 : below(w, n_collates)],
        o.n_out = o.collate ? 1 : 0)
OPTIONS(metric_options, tn_metric_options, o.classes = below(w, 4) ? 0 : pick_long(w, 2, 3),
        o.rows = below(w, 4) ? 0 : pick_long(w, 1, 9),
        o.top_k = below(w, 4) ? 0 : pick_long(w, 1, 2), FLAG(use_ignore_index),
        LONG(ignore_index, 0, 1))
OPTIONS(tensorboard_options, tn_tensorboard_options, LONG(purge_step, 0, 9), FLAG(use_purge_step))
OPTIONS(csv_options, tn_csv_options, FLAG(no_header), o.separator = below(w, 6) ? 0 : ';',
        o.types = below(w, 2) ? NULL : "i?t")
OPTIONS(shared_options, tn_data_parallel_options, LONG(bucket_bytes, 0, 64),
        o.buffers = (tn_buffer_rule)pick_enum(w, 3))
OPTIONS(conv_options, tn_conv_options, LONG(stride, 0, 2), LONG(padding, 0, 2),
        LONG(dilation, 0, 2), LONG(groups, 0, 1), FLAG(no_bias), FLAG(same),
        LONG(padding_end, 0, 2), FLAG(use_padding_end), LONG(output_padding, 0, 1),
        o.padding_mode = (tn_pad_mode)pick_enum(w, 4))
OPTIONS(bn_options, tn_batch_norm_options, REAL(eps, 0, 1), REAL(momentum, 0, 1), FLAG(cumulative),
        FLAG(no_affine), FLAG(no_bias), FLAG(no_tracking), FLAG(skip_nonfinite), FLAG(biased_var))
OPTIONS(spectral, tn_spectral_norm_options, LONG(iterations, 0, 2), LONG(axis, 0, 1),
        REAL(eps, 0, 1))
OPTIONS(mha_options, tn_multihead_attention_options, REAL(dropout, 0, 1), FLAG(no_bias),
        FLAG(sequence_first), LONG(kdim, 0, 3), LONG(vdim, 0, 3), FLAG(add_bias_kv),
        FLAG(add_zero_attn))
OPTIONS(enc_options, tn_encoder_layer_options, o.feedforward = pick_long(w, 1, 4),
        REAL(dropout, 0, 1), FLAG(gelu), FLAG(norm_first), FLAG(sequence_first), REAL(eps, 0, 1),
        FLAG(gelu_tanh), FLAG(no_bias))
OPTIONS(masks, tn_attention_masks,
        o.mask = below(w, 3) ? NULL
                             : pick_tensor(w, make_tensor(w, TN_SHAPE(3, 3), TN_BOOL, PLAIN)),
        o.key_padding = below(w, 3)
                            ? NULL
                            : pick_tensor(w, make_tensor(w, TN_SHAPE(2, 3), TN_BOOL, PLAIN)),
        FLAG(causal))
OPTIONS(rec_options, tn_recurrent_options, LONG(layers, 0, 2),
        o.dropout = o.layers > 1 ? pick_real(w, 0, 1) : 0, FLAG(no_bias), FLAG(bidirectional),
        FLAG(sequence_first), o.relu = strstr(w->row->name, "rnn") && below(w, 2),
        o.proj_size = strstr(w->row->name, "lstm") && below(w, 2))
DRAW(rec_state) /* of the layer that new_module makes, for x as sequence is */
{
    tn_recurrent_state *o = scratch(w, sizeof *o);
    tn_tensor *h = below(w, 3) ? NULL : make_tensor(w, TN_SHAPE(2, 2, 2), TN_F32, PLAIN);
    tn_tensor *c = below(w, 3) ? NULL : make_leaf(w, TN_SHAPE(2, 2, 2), TN_F32);
    tn_tensor *lengths = below(w, 3) ? NULL : tn_add_scalar(whole_below(w, TN_SHAPE(2), 3), 1);
    *o = (tn_recurrent_state){ h ? pick_tensor(w, h) : NULL, c ? pick_tensor(w, c) : NULL,
                               lengths ? pick_tensor(w, lengths) : NULL };
    s->v.rec_state = pick_pointer(w, o);
}
OPTIONS(ema_options, tn_ema_options, REAL(decay, 0, 1), FLAG(average_buffers),
        o.equal = o.decay == 0 && below(w, 2))
OPTIONS(sgd_options, tn_sgd_options, REAL(lr, 0, 1), REAL(momentum, 0, 1), REAL(dampening, 0, 1),
        REAL(weight_decay, 0, 1), FLAG(maximize),
        o.nesterov = o.momentum > 0 && o.dampening == 0 && below(w, 2))
#define RARE(field, low, high) o.field = below(w, 16) ? 0 : pick_real(w, low, high)
OPTIONS(group_options, tn_group_options, REAL(lr, 0, 1), REAL(weight_decay, 0, 1),
        RARE(momentum, 0, 1), RARE(dampening, 0, 1), RARE(beta1, 0, 0.9), RARE(beta2, 0, 0.9),
        RARE(alpha, 0, 0.9), RARE(eps, 0, 1), RARE(lr_decay, 0, 1))
OPTIONS(optim_options, tn_optim_options, REAL(lr, 0, 1), REAL(weight_decay, 0, 1), FLAG(use_lr))
OPTIONS(scaler_options, tn_scaler_options, REAL(init_scale, 1, 8), REAL(growth, 1.5, 2),
        REAL(backoff, 0.25, 0.5), LONG(interval, 1, 3), FLAG(disabled))
OPTIONS(one_cycle_options, tn_one_cycle_options, o.max_lr = pick_real(w, 0.1, 1),
        o.total_steps = pick_long(w, 4, 9), REAL(pct_start, 0.25, 0.5), REAL(div_factor, 1, 25),
        REAL(final_div_factor, 1, 100), REAL(base_momentum, 0.5, 0.8), REAL(max_momentum, 0.8, 0.9),
        FLAG(fixed_momentum))
OPTIONS(plateau_options, tn_plateau_options, REAL(factor, 0.1, 0.5), REAL(threshold, 0, 1),
        REAL(min_lr, 0, 1), LONG(patience, 0, 2), LONG(cooldown, 0, 2), FLAG(maximize),
        FLAG(use_patience), FLAG(absolute))
#include "options_made.def"

/* ---- callbacks ------------------------------------------------------------------------------- */

#define CALLBACK(kind, list)                                                                       \
    DRAW(kind)                                                                                     \
    {                                                                                              \
        batch_given = false;                                                                       \
        int64_t at = w->mode == SOUND || below(w, 2) ? 0 : below(w, n_##list + 1);                 \
        s->v.kind = at == n_##list ? NULL : list[at];                                              \
        if (w->mode == SWEEP && !pick_pointer(w, w)) s->v.kind = NULL;                             \
    }
CALLBACK(grad_hook, grad_hooks)
CALLBACK(function, functions)
CALLBACK(step_function, steps)
CALLBACK(recompute_function, recomputed)
CALLBACK(pre_hook, pre_hooks)
CALLBACK(post_hook, post_hooks)
CALLBACK(step_hook, step_hooks)
CALLBACK(backward_hook, backward_hooks)
CALLBACK(state_hook, state_hooks)
CALLBACK(load_hook, load_hooks)
CALLBACK(visit, visits)
CALLBACK(graph_visitor, graph_visitors)
DRAW(custom_op)
{
    int64_t at = w->mode == SOUND || below(w, 2) ? 0 : below(w, n_custom_ops);
    s->v.custom_op = pick_pointer(w, (void *)(uintptr_t)&custom_ops[at]);
}
DRAW(optim_type)
{
    int64_t at = w->mode == SOUND || below(w, 2) ? below(w, 2) : below(w, n_optim_types);
    s->v.optim_type = pick_pointer(w, (void *)(uintptr_t)&optim_types[at]);
}
DRAW(no_custom) /* there is one only inside of a custom op */
{
    (void)w;
    s->v.no_custom = NULL;
}
CALLBACK(apply, applies)
CALLBACK(keep, keeps)
CALLBACK(factor, factors)
CALLBACK(next_batch, next_batches)
DRAW(dataset)
{
    const int64_t at = w->mode == SOUND || below(w, 2) ? 0 : below(w, n_datasets);
    s->v.dataset = pick_pointer(w, (void *)(uintptr_t)&datasets[at]);
}
CALLBACK(loss_function, losses)
CALLBACK(check_step, check_steps)
CALLBACK(profile_step, profile_steps)
OPTIONS(profile_options, tn_profile_options, o.steps = (int)below(w, 3), /* as many are run */
        o.rows = (int)pick_long(w, 0, 3), o.file = below(w, 2) ? NULL : w->sink,
        o.events = below(w, 2) ? NULL : w->sink)
CALLBACK(closure, closures)
OPTIONS(trace_options, tn_trace_options,
        o.model = below(w, 2) ? NULL : pick_pointer(w, any_module(w, NULL)),
        o.opt = below(w, 2) ? NULL : one_optim(w), o.title = pick_text(w, NULL), FLAG(lines))
OPTIONS(explain_options, tn_explain_options,
        o.model = below(w, 2) ? NULL : pick_pointer(w, any_module(w, NULL)),
        o.opt = below(w, 2) ? NULL : one_optim(w), o.json = below(w, 2) ? NULL : w->sink)

/* ---- scopes ---------------------------------------------------------------------------------- */

DRAW(closing) /* one of the sequence's, and so the ones in it: see harvest in call.c */
{
    int at = w->scopes > 1 ? 1 + (int)below(w, w->scopes - 1) : 0;
    /* it may be closed already */
    if (w->mode != SOUND && below(w, 4) == 0) at = (int)below(w, SCOPES);
    s->have = at;
    s->v.closing = w->scope[at];
    if (w->mode != SOUND && below(w, 8) == 0)
        s->v.closing = (tn_scope){ pick_long(w, 0, 3), (uint64_t)pick_long(w, 0, 100) };
}

/* ---- all of a row ---------------------------------------------------------------------------- */

enum { EARLY, LATE };
static const struct {
    void (*draw)(world *w, slot *s);
    int when;
} ways[KINDS] = {
#define KIND(name, type, when) [K_##name] = { draw_##name, when },
#include "kinds.def"
#undef KIND
};

void draw_arguments(world *w, const row *r)
{
    for (int i = 0; i < r->n; i++) w->slot[i] = (slot){ .have = -1 };
    for (int when = EARLY; when <= LATE; when++)
        for (int i = 0; i < r->n; i++)
            if (ways[r->kinds[i]].when == when) ways[r->kinds[i]].draw(w, &w->slot[i]);
}
