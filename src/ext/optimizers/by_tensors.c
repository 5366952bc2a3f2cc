/*
 * by_tensors.c - optimizers whose rule is a function over tensors: Adafactor, Muon. bf16 and f16
 * are computed in f32, and rounded where they are written.
 */
#include <math.h>

#include <tenon/ops.h>
#include <tenon/optimizers.h>

static tn_tensor *wide(tn_tensor *t)
{
    const tn_dtype dtype = tn_dtype_of(t);
    return dtype == TN_BF16 || dtype == TN_F16 ? tn_to_dtype(t, TN_F32) : t;
}

/* p (1 - lr wd) - step */
static tn_tensor *decayed(const tn_optim_part *part, tn_tensor *step)
{
    const tn_optim_numbers *o = &part->numbers;
    return tn_sub(tn_mul_scalar(wide(part->p), fma(-o->lr, o->weight_decay, 1)), step);
}

/* ---- Adafactor ------------------------------------------------------------------------------- */

/*
 *   v  = (1 - w) v + w g^2, w = t^-beta2_decay; of matrices only its means over rows and columns
 *   u  = g / sqrt(v)                                           v = row col / mean of row
 *   p -= max(eps2, rms p) min(lr, 1 / sqrt t) u / max(1, rms(u) / d)
 *
 * Source: Shazeer and Stern, Adafactor (2018), algorithms 4 and 5, in PyTorch's form: lr bounds the
 * relative step, and decay is decoupled.
 */
enum { BETA2_DECAY, EPS1, EPS2, CLIP, CLIMB }; /* Adafactor's numbers */

#define MEANS_ALONG(name, axis)                                                                    \
    static bool name(const tn_tensor *p, const double *number, tn_shape *shape, tn_dtype *dtype)   \
    {                                                                                              \
        (void)p, (void)number, (void)dtype;                                                        \
        if (shape->rank > 1) shape->size[shape->rank + (axis)] = 1;                                \
        return shape->rank > 1;                                                                    \
    }
MEANS_ALONG(row_form, -1)
MEANS_ALONG(column_form, -2)

static bool whole_form(const tn_tensor *p, const double *number, tn_shape *shape, tn_dtype *dtype)
{
    (void)p, (void)number, (void)dtype;
    return shape->rank < 2;
}

static tn_tensor *mean_along(tn_tensor *x, int axis)
{
    return tn_mean(x, &axis, 1, true);
}

static tn_tensor *at_least(tn_tensor *x, double least)
{
    return tn_clamp(x, least, INFINITY);
}

static tn_tensor *rms(tn_tensor *x)
{
    return tn_sqrt(tn_mean_all(tn_square(x)));
}

/* The new averages of g^2; returns v. */
static tn_tensor *squares(tn_optim_part *part, tn_tensor *g, double eps1)
{
    const tn_optim_numbers *o = &part->numbers;
    const double weight = pow((double)o->step, -o->number[BETA2_DECAY]);
    tn_tensor *square = tn_square(g);
    if (part->state[2]) return part->new_state[2] = tn_lerp(wide(part->state[2]), square, weight);
    tn_tensor *row = tn_lerp(wide(part->state[0]), mean_along(square, -1), weight);
    tn_tensor *column = tn_lerp(wide(part->state[1]), mean_along(square, -2), weight);
    part->new_state[0] = row;
    part->new_state[1] = column;
    return tn_div(tn_mul(row, column), at_least(mean_along(row, -2), eps1));
}

static tn_status adafactor_update(tn_optim_part *part, int n)
{
    static const double epsilon[] = {
        [TN_F32] = 0x1p-23, [TN_F64] = 0x1p-52, [TN_BF16] = 0x1p-7, [TN_F16] = 0x1p-10
    };
    const tn_optim_numbers *o = &part->numbers;
    (void)n;
    const double eps1 = o->number[EPS1] != 0 ? o->number[EPS1] : epsilon[tn_dtype_of(part->p)];
    const double most = fmin(o->lr, 1 / sqrt((double)o->step));
    tn_tensor *g = wide(part->g);
    if (o->number[CLIMB] != 0) g = tn_neg(g);
    tn_tensor *v = at_least(squares(part, g, eps1), eps1 * eps1), *u = tn_mul(g, tn_rsqrt(v));
    tn_tensor *rate = tn_mul_scalar(at_least(rms(wide(part->p)), o->number[EPS2]), most);
    rate = tn_div(rate, at_least(tn_mul_scalar(rms(u), 1 / o->number[CLIP]), 1));
    part->new_p = decayed(part, tn_mul(u, rate));
    return TN_OK;
}

tn_optim *tn_adafactor(const tn_list *parameters, tn_optim_options o)
{
    static const tn_optim_type type = {
        .name = "adafactor",
        .function = "tn_adafactor",
        .lr = 1e-2,
        .number = { { "beta2_decay", .initial = 0.8 },
                    { .name = "eps1" },
                    { "eps2", .initial = 1e-3 },
                    { "d", 1, .least = 1 },
                    { "maximize", .on_off = true } },
        .state = { { .name = "row_var", .form = row_form },
                   { .name = "col_var", .form = column_form },
                   { .name = "variance", .form = whole_form } },
        .update = adafactor_update,
    };
    return tn_optim_new(&type, parameters, o);
}

/* ---- Muon: momentum, made orthogonal --------------------------------------------------------- */

/*
 *   b  = mu b + (1 - mu) g, u = nesterov ? mu b + (1 - mu) g : b
 *   p  = p (1 - lr wd) - lr factor U                      U: the orthogonal factor of u, nearly
 *
 * Source: Jordan et al., Muon: an optimizer for hidden layers in neural networks (2024), in
 * PyTorch's form; Liu et al., Muon is scalable for LLM training (2025), for the other rates.
 */
enum { MOMENTUM, EPS, STEPS, RATE, NS_A, NS_B, NS_C, NESTEROV }; /* Muon's numbers */

/* The numbers that bf16 has, computed with in f32: sums are wide, each result is rounded once. */
static tn_tensor *rounded(tn_tensor *x)
{
    return tn_to_dtype(tn_to_dtype(x, TN_BF16), TN_F32);
}

/* x = a x + (b A + c A A) x, A = x x^T, some times: singular values of x, divided by its norm, go
 * towards 1 (Newton-Schulz, of degree 5). The smaller side is that of A. */
static tn_tensor *orthogonal(tn_tensor *x, const double *number)
{
    const bool tall = tn_size(x, 0) > tn_size(x, 1);
    x = rounded(tall ? tn_transpose(x, 0, 1) : x);
    tn_tensor *norm = rounded(tn_norm(x, 2, NULL, 0, false));
    x = rounded(tn_div(x, at_least(norm, number[EPS])));
    for (int k = 0; k < number[STEPS]; k++) {
        tn_tensor *a = rounded(tn_matmul(x, tn_transpose(x, 0, 1)));
        tn_tensor *u = tn_mul_scalar(tn_matmul(a, a), number[NS_C]);
        u = rounded(tn_add(tn_mul_scalar(a, number[NS_B]), u));
        x = rounded(tn_add(tn_mul_scalar(x, number[NS_A]), tn_matmul(u, x)));
    }
    return tall ? tn_transpose(x, 0, 1) : x;
}

static tn_status muon_update(tn_optim_part *part, int n)
{
    const tn_optim_numbers *o = &part->numbers;
    const double mu = o->number[MOMENTUM], rate = o->number[RATE];
    const double rows = (double)tn_size(part->p, 0), columns = (double)tn_size(part->p, 1);
    const double ratio = rate == TN_MUON_UNCLAMPED ? rows / columns : fmax(1, rows / columns);
    (void)n;
    tn_tensor *g = wide(part->g), *b = tn_lerp(wide(part->state[0]), g, 1 - mu);
    tn_tensor *u = orthogonal(o->number[NESTEROV] != 0 ? tn_lerp(g, b, mu) : b, o->number);
    const double factor =
        rate == TN_MUON_MATCH_ADAMW ? 0.2 * sqrt(fmax(rows, columns)) : sqrt(ratio);
    part->new_state[0] = b;
    part->new_p = decayed(part, tn_mul_scalar(tn_to_dtype(u, tn_dtype_of(g)), o->lr * factor));
    return TN_OK;
}

static const char *muon_takes(const tn_tensor *p)
{
    return tn_rank(p) == 2 ? NULL : "want a matrix, of 2 axes; others to another optimizer";
}

static const char *muon_agrees(const double *number)
{
    if (number[STEPS] != floor(number[STEPS])) return "want a whole number of ns_steps";
    return number[RATE] == floor(number[RATE]) ? NULL : "want a rate of tn_muon_rate";
}

tn_optim *tn_muon(const tn_list *parameters, tn_optim_options o)
{
    static const tn_optim_type type = {
        .name = "muon",
        .function = "tn_muon",
        .number = { { "momentum", 0.95, .below = 1 },
                    { "eps", .initial = 1e-7 },
                    { "ns_steps", 5, .below = 100 },
                    { "rate", TN_MUON_ORIGINAL, .below = TN_MUON_UNCLAMPED + 1 },
                    { "ns_a", 3.4445, .least = -INFINITY },
                    { "ns_b", -4.775, .least = -INFINITY },
                    { "ns_c", 2.0315, .least = -INFINITY },
                    { "nesterov", 1, .on_off = true } },
        .state = { { .name = "momentum_buffer" } },
        .momentum = "momentum",
        .takes = muon_takes,
        .agree = muon_agrees,
        .update = muon_update,
    };
    return tn_optim_new(&type, parameters, o);
}
