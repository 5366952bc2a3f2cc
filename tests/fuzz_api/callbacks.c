/* callbacks.c - user functions and module types, well-behaved and misbehaving. */
#include "callbacks.h"

#include <math.h>
#include <stdio.h>

#define LIST(type, name, ...)                                                                      \
    const type name[] = { __VA_ARGS__ };                                                           \
    const int n_##name = (int)(sizeof name / sizeof *name);

/* ---- hooks on tensors ------------------------------------------------------------------------ */

static tn_tensor *grad_same(tn_tensor *grad, void *user)
{
    (void)user;
    return grad;
}
static tn_tensor *grad_scaled(tn_tensor *grad, void *user)
{
    (void)user;
    return tn_mul_scalar(grad, 0.5);
}
static tn_tensor *grad_wide(tn_tensor *grad, void *user)
{
    (void)user;
    return tn_to_dtype(grad, TN_F64);
}
static tn_tensor *grad_narrow(tn_tensor *grad, void *user)
{
    (void)user;
    return tn_to_dtype(grad, TN_U8);
}
static tn_tensor *grad_null(tn_tensor *grad, void *user)
{
    (void)grad, (void)user;
    return NULL;
}
static tn_tensor *grad_none(tn_tensor *grad, void *user)
{
    (void)grad, (void)user;
    return TN_NONE;
}
static tn_tensor *grad_other_shape(tn_tensor *grad, void *user)
{
    (void)user;
    return tn_unsqueeze(grad, 0);
}
static tn_tensor *grad_backward(tn_tensor *grad, void *user)
{
    (void)user;
    tn_tensor *x = tn_ones(TN_SHAPE(2));
    tn_set_requires_grad(x, true);
    either_way(tn_backward(tn_sum(x, NULL, 0, false)));
    return grad;
}
static tn_tensor *grad_scope(tn_tensor *grad, void *user)
{
    (void)user;
    tn_scope s = tn_scope_begin();
    return tn_scope_return(s, tn_add(grad, grad));
}
LIST(tn_grad_hook, grad_hooks, grad_same, grad_scaled, grad_wide, grad_narrow, grad_null, grad_none,
     grad_other_shape, grad_backward, grad_scope)

/* ---- functions that are called with tensors -------------------------------------------------- */

static tn_tensor *f_square(tn_tensor **in, void *user)
{
    (void)user;
    return tn_sum(tn_square(in[0]), NULL, 0, false);
}
static tn_tensor *f_plain(tn_tensor **in, void *user)
{
    (void)user;
    return tn_sin(in[0]);
}
static tn_tensor *f_wrong(tn_tensor **in, void *user)
{
    (void)user;
    return tn_mul(in[0], tn_detach(in[0]));
}
static tn_tensor *f_null(tn_tensor **in, void *user)
{
    (void)in, (void)user;
    return NULL;
}
static tn_tensor *f_none(tn_tensor **in, void *user)
{
    (void)in, (void)user;
    return TN_NONE;
}
static tn_tensor *f_whole(tn_tensor **in, void *user)
{
    (void)user;
    return tn_to_dtype(in[0], TN_I64);
}
LIST(tn_function, functions, f_square, f_plain, f_wrong, f_null, f_none, f_whole)

static tn_tensor *step_first(int n, tn_tensor *const *in, void *user)
{
    (void)user;
    return n > 0 ? tn_sum(in[0], NULL, 0, false) : tn_scalar(1);
}
static tn_tensor *step_none(int n, tn_tensor *const *in, void *user)
{
    (void)user, (void)n, (void)in;
    return TN_NONE;
}
static tn_tensor *step_null(int n, tn_tensor *const *in, void *user)
{
    (void)user, (void)n, (void)in;
    return NULL;
}
static tn_tensor *step_same(int n, tn_tensor *const *in, void *user)
{
    (void)user;
    return n > 0 ? in[n - 1] : TN_NONE;
}
LIST(tn_step, steps, step_first, step_none, step_null, step_same)

/* ---- hooks on modules ------------------------------------------------------------------------ */

static tn_status pre_nothing(tn_module *m, int n, tn_tensor **in, void *user)
{
    (void)m, (void)n, (void)in, (void)user;
    return TN_OK;
}
static tn_status pre_scaled(tn_module *m, int n, tn_tensor **in, void *user)
{
    (void)m, (void)user;
    if (n > 0) in[0] = tn_mul_scalar(in[0], 2);
    return TN_OK;
}
static tn_status pre_null(tn_module *m, int n, tn_tensor **in, void *user)
{
    (void)m, (void)user;
    if (n > 0) in[0] = NULL;
    return TN_OK;
}
static tn_status pre_refuses(tn_module *m, int n, tn_tensor **in, void *user)
{
    (void)m, (void)n, (void)in, (void)user;
    return TN_E_STATE;
}
static tn_status pre_trains(tn_module *m, int n, tn_tensor **in, void *user)
{
    (void)n, (void)in, (void)user;
    return tn_train(m, !tn_training(m));
}
LIST(tn_forward_pre_hook, pre_hooks, pre_nothing, pre_scaled, pre_null, pre_refuses, pre_trains)

static tn_status post_nothing(tn_module *m, int n_in, tn_tensor *const *in, int n_out,
                              tn_tensor **out, void *user)
{
    (void)m, (void)n_in, (void)in, (void)n_out, (void)out, (void)user;
    return TN_OK;
}
static tn_status post_scaled(tn_module *m, int n_in, tn_tensor *const *in, int n_out,
                             tn_tensor **out, void *user)
{
    (void)m, (void)n_in, (void)in, (void)user;
    if (n_out > 0) out[0] = tn_mul_scalar(out[0], 2);
    return TN_OK;
}
static tn_status post_null(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
                           void *user)
{
    (void)m, (void)n_in, (void)in, (void)user;
    if (n_out > 0) out[0] = NULL;
    return TN_OK;
}
static tn_status post_input(tn_module *m, int n_in, tn_tensor *const *in, int n_out,
                            tn_tensor **out, void *user)
{
    (void)m, (void)user;
    if (n_in > 0 && n_out > 0) out[0] = in[0];
    return TN_OK;
}
static tn_status post_deletes(tn_module *m, int n_in, tn_tensor *const *in, int n_out,
                              tn_tensor **out, void *user)
{
    (void)n_in, (void)in, (void)n_out, (void)out, (void)user;
    return tn_module_delete(m, "0");
}
LIST(tn_forward_hook, post_hooks, post_nothing, post_scaled, post_null, post_input, post_deletes)

static tn_status back_nothing(tn_module *m, int n_in, tn_tensor **in, int n_out,
                              tn_tensor *const *out, void *user)
{
    (void)m, (void)n_in, (void)in, (void)n_out, (void)out, (void)user;
    return TN_OK;
}
static tn_status back_scaled(tn_module *m, int n_in, tn_tensor **in, int n_out,
                             tn_tensor *const *out, void *user)
{
    (void)m, (void)n_out, (void)out, (void)user;
    if (n_in > 0 && !tn_is_none(in[0])) in[0] = tn_mul_scalar(in[0], 0.5);
    return TN_OK;
}
static tn_status back_wide(tn_module *m, int n_in, tn_tensor **in, int n_out, tn_tensor *const *out,
                           void *user)
{
    (void)m, (void)n_out, (void)out, (void)user;
    if (n_in > 0 && !tn_is_none(in[0])) in[0] = tn_to_dtype(in[0], TN_F64);
    return TN_OK;
}
static tn_status back_null(tn_module *m, int n_in, tn_tensor **in, int n_out, tn_tensor *const *out,
                           void *user)
{
    (void)m, (void)n_out, (void)out, (void)user;
    if (n_in > 0) in[0] = NULL;
    return TN_OK;
}
static tn_status back_refuses(tn_module *m, int n_in, tn_tensor **in, int n_out,
                              tn_tensor *const *out, void *user)
{
    (void)m, (void)n_in, (void)in, (void)n_out, (void)out, (void)user;
    return TN_E_STATE;
}
LIST(tn_backward_hook, backward_hooks, back_nothing, back_scaled, back_wide, back_null,
     back_refuses)

static tn_status state_nothing(tn_module *m, tn_list *state, const char *prefix, void *user)
{
    (void)m, (void)state, (void)prefix, (void)user;
    return TN_OK;
}
static tn_status state_adds(tn_module *m, tn_list *state, const char *prefix, void *user)
{
    (void)m, (void)user, (void)prefix;
    return tn_list_set(state, "added", tn_ones(TN_SHAPE(2)));
}
static tn_status state_none(tn_module *m, tn_list *state, const char *prefix, void *user)
{
    (void)m, (void)user, (void)prefix;
    return tn_list_set(state, "weight", TN_NONE);
}
static tn_status state_removes(tn_module *m, tn_list *state, const char *prefix, void *user)
{
    (void)m, (void)user, (void)prefix;
    while (state->n > 0)
        if (tn_list_remove(state, state->entry[0].name) != TN_OK) return tn_error_status();
    return TN_OK;
}
LIST(tn_state_dict_hook, state_hooks, state_nothing, state_adds, state_none, state_removes)

static tn_status load_nothing(tn_module *m, tn_list *missing, tn_list *unexpected, void *user)
{
    (void)m, (void)missing, (void)unexpected, (void)user;
    return TN_OK;
}
static tn_status load_forgives(tn_module *m, tn_list *missing, tn_list *unexpected, void *user)
{
    (void)m, (void)user;
    while (missing->n > 0)
        if (tn_list_remove(missing, missing->entry[0].name) != TN_OK) return tn_error_status();
    while (unexpected->n > 0)
        if (tn_list_remove(unexpected, unexpected->entry[0].name) != TN_OK)
            return tn_error_status();
    return TN_OK;
}
static tn_status load_refuses(tn_module *m, tn_list *missing, tn_list *unexpected, void *user)
{
    (void)m, (void)missing, (void)unexpected, (void)user;
    return TN_E_INVALID;
}
LIST(tn_load_post_hook, load_hooks, load_nothing, load_forgives, load_refuses)

static tn_status visit_all(tn_module *m, const char *path, void *user)
{
    (void)path, (void)m, (void)user;
    return TN_OK;
}
static tn_status visit_stops(tn_module *m, const char *path, void *user)
{
    (void)path, (void)m, (void)user;
    return TN_E_STATE;
}
LIST(visit_function, visits, visit_all, visit_stops)

static int graph_all(const tn_graph_node *node, void *user)
{
    (void)user;
    return node->id < 0 || !node->name || !node->formula || node->n_out < 1;
}
static int graph_stops(const tn_graph_node *node, void *user)
{
    (void)user;
    return node->id == 1;
}
static int graph_computes(const tn_graph_node *node, void *user)
{
    (void)user;
    tn_scope_begin(); /* and does not end it */
    if (node->tensor) tn_exp(node->tensor);
    return 0;
}
LIST(tn_graph_visitor, graph_visitors, graph_all, graph_stops, graph_computes)

static tn_tensor *copied(int n_in, tn_tensor *const *in, int i)
{
    return i < n_in && !tn_is_none(in[i]) ? tn_clone(in[i]) : tn_ones(TN_SHAPE(2));
}
static tn_status custom_copies(tn_custom *c, int n_in, tn_tensor *const *in, int n_out,
                               tn_tensor **out)
{
    for (int i = 0; i < n_out; i++) out[i] = copied(n_in, in, i);
    for (int i = 0; i < n_in; i++) either_way(tn_custom_save(c, in[i]));
    return tn_custom_save(c, out[0]);
}
static tn_status custom_copies_back(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
                                    tn_tensor **din)
{
    for (int i = 0; i < n_in && i < n_out; i++)
        if (tn_custom_needs(c, i)) din[i] = dout[i];
    return tn_custom_saved(c, 0) ? TN_OK : tn_error_status();
}
static tn_status custom_errs(tn_custom *c, int n_in, tn_tensor *const *in, int n_out,
                             tn_tensor **out)
{
    (void)n_in;
    for (int i = 1; i < n_out; i++) out[i] = in ? in[0] : TN_NONE;
    either_way(tn_custom_no_gradient(c, n_out));
    either_way(tn_custom_needs(c, -1) ? TN_OK : TN_E_INDEX);
    out[0] = tn_custom_saved(c, 3);
    tn_set_grad_enabled(true);
    tn_scope_begin(); /* and does not end it */
    return tn_custom_save(c, out[0]);
}
static tn_status custom_errs_back(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
                                  tn_tensor **din)
{
    (void)n_out;
    for (int i = 0; i < n_in; i++) din[i] = i & 1 ? NULL : tn_custom_saved(c, i - 1);
    return tn_custom_save(c, dout[0]);
}
static void custom_free(void *user)
{
    (void)user;
    tn_scope s = tn_scope_begin();
    tn_ones(TN_SHAPE(2));
    tn_scope_end(s);
    tn_error_clear();
}
static tn_status optim_halves(tn_optim_part *part, int n)
{
    part->new_p = tn_mul_scalar(part->p, 0.5);
    part->new_state[0] = tn_add(part->state[0], part->g);
    return n == 1 ? TN_OK : TN_E_STATE;
}
static tn_status optim_errs(tn_optim_part *part, int n)
{
    part->new_p = part->g;
    part->new_state[0] = tn_ones(TN_SHAPE(7));
    return n ? TN_E_INVALID : TN_OK;
}
static tn_status optim_swaps(tn_optim_part *part, int n)
{
    for (int i = 0; i < n; i++) part[i].new_p = part[i].g, part[i].new_state[0] = part[i].p;
    return TN_OK;
}
static bool optim_scalar(const tn_tensor *p, const double *number, tn_shape *shape, tn_dtype *dtype)
{
    (void)number;
    *shape = TN_SCALAR;
    *dtype = TN_I64;
    return tn_rank(p) != 1;
}
static void optim_f32(int64_t n, float *p, const float *g, float *const *state,
                      const tn_optim_numbers *o)
{
    for (int64_t i = 0; i < n; i++) p[i] -= (float)o->lr * (state[0][i] = g[i]);
}
static void optim_f64(int64_t n, double *p, const double *g, double *const *state,
                      const tn_optim_numbers *o)
{
    for (int64_t i = 0; i < n; i++) p[i] -= o->lr * (state[0][i] = g[i]);
}
LIST(tn_optim_type, optim_types,
     { .name = "spans",
       .state = { { .name = "last" } },
       .formula_f32 = optim_f32,
       .formula_f64 = optim_f64 },
     { .name = "halves",
       .number = { { .name = "beta1" } },
       .state = { { .name = "sum" } },
       .momentum = "beta1",
       .update = optim_halves },
     { .name = "errs", .state = { { .name = "x" } }, .update = optim_errs },
     { .name = "swaps", .state = { { .name = "p" } }, .update = optim_swaps, .together = true },
     { .name = "counts",
       .state = { { .name = "n", .form = optim_scalar } },
       .update = optim_halves },
     { .name = "ruled", .rule = TN_RULE_LION, .state = { { .name = "m" } } },
     { .name = "unruled", .rule = TN_RULE_ADAM }, { .name = "nothing" },
     { .name = NULL, .update = optim_errs })
static tn_status step_nothing(tn_optim *opt, void *user)
{
    (void)opt, (void)user;
    return TN_OK;
}
static tn_status step_looks(tn_optim *opt, void *user)
{
    (void)user;
    return tn_optim_parameters(opt) ? TN_OK : TN_E_STATE;
}
LIST(tn_step_hook, step_hooks, step_nothing, step_looks)
LIST(tn_custom_op, custom_ops,
     { "copies", "y = x", custom_copies, custom_copies_back, NULL, false, NULL },
     { "errs", NULL, custom_errs, custom_errs_back, custom_free, true, NULL },
     { "bad_grad", NULL, custom_copies, custom_errs_back, custom_free, false, NULL },
     { NULL, NULL, custom_copies, NULL, custom_free, false, NULL },
     { "idle", NULL, NULL, NULL, NULL, false, NULL })

static tn_status recompute_computes(int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
                                    void *user)
{
    (void)user;
    for (int i = 0; i < n_out; i++) {
        tn_tensor *x = i < n_in && !tn_is_none(in[i]) ? in[i] : NULL;
        if (i >= 3) /* there may be thousands */
            out[i] = out[i - 3];
        else
            out[i] = tn_sin(tn_exp(tn_dropout(x ? x : tn_randn(TN_SHAPE(2)), 0.5, true)));
    }
    return TN_OK;
}
static tn_status recompute_nests(int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
                                 void *user)
{
    return tn_recompute_n(recompute_computes, user, n_in, in, n_out, out);
}
static tn_status recompute_errs(int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
                                void *user)
{
    (void)user;
    tn_scope_begin(); /* and does not end it */
    tn_set_grad_enabled(!tn_recomputing());
    if (!tn_recomputing()) return recompute_computes(n_in, in, n_out, out, user);
    for (int i = 1; i < n_out; i++) out[i] = n_in ? in[0] : TN_NONE;
    out[0] = n_in ? tn_log(in[0]) : NULL;
    return TN_OK;
}
LIST(tn_recompute_function, recomputed, recompute_computes, recompute_nests, recompute_errs)

static tn_status apply_nothing(tn_module *m, void *user)
{
    (void)m, (void)user;
    return TN_OK;
}
static tn_status apply_eval(tn_module *m, void *user)
{
    (void)user;
    return tn_eval(m);
}
static tn_status apply_stops(tn_module *m, void *user)
{
    (void)m, (void)user;
    return TN_E_INVALID;
}
LIST(apply_function, applies, apply_nothing, apply_eval, apply_stops)

static bool keep_none(const tn_entry *entry, void *user)
{
    (void)entry, (void)user;
    return false;
}
LIST(keep_function, keeps, tn_decay, tn_no_decay, keep_none)

static double factor_half(int64_t step, void *user)
{
    (void)step, (void)user;
    return 0.5;
}
static double factor_nan(int64_t step, void *user)
{
    (void)step, (void)user;
    return NAN;
}
static double factor_negative(int64_t step, void *user)
{
    (void)user;
    return -(double)step;
}
LIST(factor_function, factors, factor_half, factor_nan, factor_negative)

_Thread_local bool batch_given;

/* None; one, on every second call; a failure without a message; an open batch that is ended. */
static int batch_none(tn_module *m, void *user)
{
    (void)m, (void)user;
    return 0;
}
static int batch_one(tn_module *m, void *user)
{
    (void)user;
    batch_given = !batch_given;
    return batch_given && !tn_forward(m, tn_ones(TN_SHAPE(2, 2))) ? -1 : batch_given;
}
static int batch_fails(tn_module *m, void *user)
{
    (void)m, (void)user;
    return -1;
}
static int batch_ends(tn_module *m, void *user)
{
    (void)m, (void)user;
    tn_micro_batches_cancel();
    return 0;
}
LIST(batch_function, next_batches, batch_none, batch_one, batch_fails, batch_ends)

static tn_status sample_made(const tn_dataset *d, tn_sample *s)
{
    for (int k = 0; k < d->n_fields; k++) *(float *)s->to[k] = (float)(s->index + k);
    s->size[0] = s->index % 3;
    s->end = s->index == 4;
    return TN_OK;
}
static tn_status sample_drawn(const tn_dataset *d, tn_sample *s)
{
    (void)d;
    return tn_copy_out(tn_full(TN_SHAPE(1), tn_generator_u32(s->generator)), s->to[0], 4, TN_F32);
}
static tn_status sample_fails(const tn_dataset *d, tn_sample *s)
{
    (void)d;
    *(float *)s->to[0] = 1;
    return s->index == 3 ? TN_E_IO : TN_OK;
}
static const tn_field varying[] = { { "a", TN_F32, { 1, { 2 } }, true },
                                    { "b", TN_F32, { 0, { 0 } }, false } };
LIST(tn_dataset, datasets, { "one", 5, varying + 1, 1, sample_drawn, NULL },
     { "two", 5, varying, 2, sample_made, NULL }, { "stream", -1, varying, 2, sample_made, NULL },
     { "torn", 5, varying + 1, 1, sample_fails, NULL }, { "empty", 0, NULL, 0, NULL, NULL })

static tn_status batch_kept(const tn_dataset *d, tn_tensor *const *in, tn_tensor **out)
{
    (void)d;
    out[0] = in[0];
    return TN_OK;
}
static tn_status batch_torn(const tn_dataset *d, tn_tensor *const *in, tn_tensor **out)
{
    (void)d, (void)in;
    out[0] = NULL;
    return TN_OK;
}
LIST(collate_function, collates, batch_kept, batch_torn)

static tn_tensor *loss_forward(tn_module *m, void *user)
{
    (void)user;
    return tn_mean(tn_square(tn_forward(m, tn_ones(TN_SHAPE(4, 3)))), NULL, 0, false);
}
static tn_tensor *loss_none(tn_module *m, void *user)
{
    (void)m, (void)user;
    return TN_NONE;
}
static tn_tensor *loss_null(tn_module *m, void *user)
{
    (void)m, (void)user;
    return NULL;
}
static tn_tensor *loss_many(tn_module *m, void *user)
{
    (void)user;
    return tn_forward(m, tn_ones(TN_SHAPE(4, 3)));
}
LIST(loss_function_, losses, loss_forward, loss_none, loss_null, loss_many)

static tn_tensor *checked_loss(tn_module *m, int part, int parts, void *user)
{
    (void)user, (void)part;
    tn_tensor *y = tn_forward(m, tn_ones(TN_SHAPE(8 / parts, 3)));
    return tn_mean(tn_square(y), NULL, 0, false);
}
static tn_tensor *checked_parts(tn_module *m, int part, int parts, void *user)
{
    if (parts == 1) return checked_loss(m, part, parts, user);
    return tn_fail(TN_E_UNSUPPORTED, "want the whole batch") == TN_OK ? TN_NONE : NULL;
}
static tn_tensor *checked_null(tn_module *m, int part, int parts, void *user)
{
    (void)user, (void)m, (void)part, (void)parts;
    return NULL;
}
LIST(tn_check_step, check_steps, checked_loss, checked_parts, checked_null)

static tn_tensor *closure_none(void *user)
{
    (void)user;
    return TN_NONE;
}
static tn_tensor *closure_null(void *user)
{
    (void)user;
    return NULL;
}
static tn_tensor *closure_backward(void *user)
{
    (void)user;
    tn_tensor *x = tn_ones(TN_SHAPE(2));
    tn_set_requires_grad(x, true);
    tn_tensor *loss = tn_sum_all(tn_square(x));
    return tn_backward(loss) == TN_OK ? loss : NULL;
}
static tn_tensor *closure_scope(void *user)
{
    (void)user;
    tn_scope_begin();
    return tn_rand(TN_SHAPE(1));
}
LIST(tn_closure, closures, closure_backward, closure_scope, closure_none, closure_null)

static tn_status profiled_backward(void *user)
{
    return closure_backward(user) ? TN_OK : tn_error_status();
}
static tn_status profiled_scope(void *user)
{
    return closure_scope(user) ? TN_OK : tn_error_status();
}
static tn_status profiled_silent(void *user)
{
    (void)user;
    return TN_E_STATE;
}
LIST(tn_profile_step, profile_steps, profiled_backward, profiled_scope, profiled_silent)

/* ---- modules --------------------------------------------------------------------------------- */

static tn_tensor *own_forward(tn_module *self, tn_tensor *x)
{
    own_net *m = (own_net *)self;
    if (m->child && m->child != TN_NO_MODULE) x = tn_forward(m->child, x);
    return m->scale && !tn_is_none(m->scale) ? tn_mul(x, m->scale) : x;
}
static tn_tensor *own_counts(tn_module *self, tn_tensor *x)
{
    own_net *m = (own_net *)self;
    if (tn_assign(&m->count, tn_mean(x, NULL, 0, false)) != TN_OK) return NULL;
    return x;
}
static tn_tensor *own_silent(tn_module *self, tn_tensor *x)
{
    (void)self, (void)x;
    return NULL;
}
static tn_status own_twice(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                           tn_tensor **out)
{
    (void)self;
    if (n_in < 1) return TN_E_INVALID;
    for (int i = 0; i < n_out; i++) out[i] = i % 2 ? tn_neg(in[0]) : in[0];
    return TN_OK;
}
static tn_status own_empty(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                           tn_tensor **out)
{
    (void)self, (void)n_in, (void)in, (void)n_out, (void)out;
    return TN_OK;
}
static tn_tensor *own_extra(tn_module *self)
{
    (void)self;
    return tn_full(TN_SHAPE(2), 3);
}
static tn_status own_set_extra(tn_module *self, tn_tensor *state)
{
    (void)self;
    return tn_numel(state) == 2 ? TN_OK : (tn_fail(TN_E_INVALID, "own: wants 2"), TN_E_INVALID);
}
static tn_status own_reset(tn_module *self)
{
    (void)self;
    return TN_OK;
}
static void own_describe(const tn_module *self, char *text, size_t size)
{
    (void)self;
    snprintf(text, size, "of the user's own");
}
static void own_free(tn_module *self)
{
    (void)self;
}
const tn_module_type own_types[] = {
    { .name = "Own", .size = sizeof(own_net), .forward = own_forward },
    { .name = "Counts", .size = sizeof(own_net), .forward = own_counts, .describe = own_describe },
    { .name = "Silent", .size = sizeof(own_net), .forward = own_silent },
    { .name = "Twice", .size = sizeof(own_net), .forward_n = own_twice, .reset = own_reset },
    { .name = "Empty", .size = sizeof(own_net), .forward_n = own_empty, .free = own_free },
    { .name = "Extra",
      .size = sizeof(own_net),
      .forward = own_forward,
      .extra_state = own_extra,
      .set_extra_state = own_set_extra,
      .state_version = 3 },
    { .name = "NoForward", .size = sizeof(own_net) },
};
const int n_own_types = (int)(sizeof own_types / sizeof *own_types);

tn_module *own_net_new(const tn_module_type *type)
{
    own_net *m = tn_module_new(type);
    if (!m) return NULL;
    tn_register_parameter(&m->base, "scale", &m->scale, tn_ones(TN_SHAPE(3)));
    tn_register_buffer(&m->base, "count", &m->count, tn_scalar(0), TN_PERSISTENT);
    tn_register_module(&m->base, "child", &m->child, tn_relu_new());
    return tn_module_done(&m->base);
}
