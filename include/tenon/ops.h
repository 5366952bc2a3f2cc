/**
 * tenon/ops.h - operations on tensors. All are differentiable where their formula is.
 *
 * What holds for every function here, so that each comment can be short:
 *   Owner    the result belongs to the current scope; inputs are not consumed
 *   Errors   NULL and a message naming function, shapes and dtypes; NULL inputs pass on silently
 *   Devices  all inputs on one device; the result is there too
 *   Shapes   elementwise ops broadcast: sizes are compared from the last axis, 1 stretches; where
 *            two do not fit, TN_E_SHAPE names the axis
 *   Dtypes   elementwise binary ops promote bool < u8 < i32 < i64 < floats (bf16 with f16: f32); a
 *            single value (rank 0) or a C scalar never widens a tensor with axes of its own kind
 *            (bool, integer, float), as in PyTorch; other ops refuse mixed floats by name. bf16
 *            and f16 go everywhere: computed in f32, the result rounded once
 *   Views    "view" means shared storage: an in-place change of one shows in the other
 * Axes may be negative. A single value has the axes 0 and -1, as in PyTorch, for reductions,
 * tn_cumsum, tn_softmax, tn_flip, tn_squeeze, tn_flatten, tn_transpose, tn_gather, tn_index_select
 * and tn_scatter_add; others want a tensor with axes. `axes, n_axes` is TN_AXES(0, 2), or NULL, 0
 * for all axes; `keepdim` keeps them with size 1.
 */
#ifndef TENON_OPS_H
#define TENON_OPS_H

#include <tenon/indexing.h>
#include <tenon/losses.h>
#include <tenon/spatial.h>
#include <tenon/tensor.h>

TN_BEGIN_C_

/* ---- views and movement ---------------------------------------------------------------------- */

/** Same elements in row-major order; one size may be -1: what is left. A view where strides allow,
 *  else a copy. A size from a failed tn_size (TN_NO_SIZE) doesn't count as -1: NULL, and the
 *  failure's message stays. */
TN_API tn_tensor *tn_reshape(tn_tensor *x, tn_shape shape);
TN_API tn_tensor *tn_flatten(tn_tensor *x, int first, int last);    /* joins axes first..last */
TN_API tn_tensor *tn_transpose(tn_tensor *x, int axis0, int axis1); /* view, the two exchanged */
/** View with axes in another order, TN_AXES(2, 0, 1): y's axis i is x's axis axes[i]. Errors: an
 *  axis missing or named twice. */
TN_API tn_tensor *tn_permute(tn_tensor *x, const int *axes, int n_axes);
/** View without the given axis of size 1 (unchanged if its size is not 1). */
TN_API tn_tensor *tn_squeeze(tn_tensor *x, int axis);
TN_API tn_tensor *tn_squeeze_all(tn_tensor *x); /* without any axis of size 1 */
/** View with a new axis of size 1 at position axis, in [-rank-1, rank]. */
TN_API tn_tensor *tn_unsqueeze(tn_tensor *x, int axis);
/** View with size-1 axes (and new leading ones) stretched to shape; -1 keeps a size. */
TN_API tn_tensor *tn_expand(tn_tensor *x, tn_shape shape);
/** View: index i of an axis, which disappears. Negative i counts from the end. */
TN_API tn_tensor *tn_select(tn_tensor *x, int axis, int64_t i);
/** View: start, start + step, ... below end along an axis; negative bounds count from the end and
 *  are clamped as Python does; step >= 1. */
TN_API tn_tensor *tn_slice(tn_tensor *x, int axis, int64_t start, int64_t end, int64_t step);
/** View: length elements along an axis, from start. */
TN_API tn_tensor *tn_narrow(tn_tensor *x, int axis, int64_t start, int64_t length);
/** Views of `size` elements each along an axis, the last one shorter: fills out[0..count),
 *  returns the count (-1 on failure). count must not exceed max_out. One node in the graph for
 *  all of them. */
TN_API int tn_split(tn_tensor *x, int64_t size, int axis, tn_tensor **out, int max_out);
/** n chunks of ceil(size / n) elements (fewer chunks when they do not fill). As tn_split; n must
 *  not exceed max_out. */
TN_API int tn_chunk(tn_tensor *x, int n, int axis, tn_tensor **out, int max_out);
/** Joins n tensors along an axis; all other sizes equal. Promotes dtypes. */
TN_API tn_tensor *tn_cat(tn_tensor *const *x, int n, int axis);
/** Joins n tensors of one shape along a new axis. */
TN_API tn_tensor *tn_stack(tn_tensor *const *x, int n, int axis);
/** x itself when it is row-major, else a row-major copy. */
TN_API tn_tensor *tn_contiguous(tn_tensor *x);
/** Reversed along the given axes. A copy. */
TN_API tn_tensor *tn_flip(tn_tensor *x, const int *axes, int n_axes);
/** Tiled: counts has an entry per axis (more entries than axes add leading ones). A copy. */
TN_API tn_tensor *tn_repeat(tn_tensor *x, tn_shape counts);
/** axis laid out as the axes of shape, of which one size may be -1: what is left. A view where
 *  strides allow. Errors: sizes whose product differs. PyTorch: Tensor.unflatten */
TN_API tn_tensor *tn_unflatten(tn_tensor *x, int axis, tn_shape shape);
/** Views of each index of an axis, which disappears. Else as tn_split. PyTorch: Tensor.unbind */
TN_API int tn_unbind(tn_tensor *x, int axis, tn_tensor **out, int max_out);
/** Element i, i + k of two axes, which disappear, along a new last axis; k above 0: above the main
 *  diagonal. A view where strides allow. PyTorch: torch.diagonal */
TN_API tn_tensor *tn_diagonal(tn_tensor *x, int64_t k, int axis0, int axis1);
/** Of x [m, n] its diagonal k; of x [n] a square of zeros with x there. PyTorch: torch.diag */
TN_API tn_tensor *tn_diag(tn_tensor *x, int64_t k);
/** Moved by shifts[i] along axes[i], what leaves at the end comes in at the start; axes NULL and n
 *  1: all elements in row-major order. A copy. PyTorch: torch.roll */
TN_API tn_tensor *tn_roll(tn_tensor *x, const int64_t *shifts, const int *axes, int n);
/** Each index of axis count times in a row. A copy. PyTorch: torch.repeat_interleave(x, count,
 *  axis) */
TN_API tn_tensor *tn_repeat_interleave(tn_tensor *x, int64_t count, int axis);
/** n grids [n_0, n_1, ...] from n tensors of one axis: out[i] varies along axis i; xy exchanges the
 *  first two axes. Views. PyTorch: torch.meshgrid; xy is indexing="xy" */
TN_API TN_MUST_USE tn_status tn_meshgrid(tn_tensor *const *x, int n, bool xy, tn_tensor **out);
/** Cast. x itself when it has that dtype. float to integer truncates toward zero. */
TN_API tn_tensor *tn_to_dtype(tn_tensor *x, tn_dtype dtype);
TN_API tn_tensor *tn_to(tn_tensor *x, tn_device device); /* x itself when it is there already */
/** x with zeros above the diagonal that lies k above the main one, in its last two axes. */
TN_API tn_tensor *tn_tril(tn_tensor *x, int64_t k);
TN_API tn_tensor *tn_triu(tn_tensor *x, int64_t k); /* zeros below that diagonal */

/* ---- elementwise, two tensors ---------------------------------------------------------------- */
/*
 * Grad     summed over what was broadcast, in each input's dtype
 * Errors   TN_E_DTYPE for a condition or mask that is not bool
 */

TN_API tn_tensor *tn_add(tn_tensor *a, tn_tensor *b);     /* a + b; of two bools: or */
TN_API tn_tensor *tn_sub(tn_tensor *a, tn_tensor *b);     /* a - b */
TN_API tn_tensor *tn_mul(tn_tensor *a, tn_tensor *b);     /* a b; of two bools: and */
TN_API tn_tensor *tn_div(tn_tensor *a, tn_tensor *b);     /* a / b; integers give f32 */
TN_API tn_tensor *tn_pow(tn_tensor *a, tn_tensor *b);     /* a^b */
TN_API tn_tensor *tn_minimum(tn_tensor *a, tn_tensor *b); /* the smaller, as tn_maximum */
/** The larger. In both NaN wins, and equal elements take half of the gradient each. */
TN_API tn_tensor *tn_maximum(tn_tensor *a, tn_tensor *b);
/** a + weight * (b - a); from a weight of 0.5 on b - (1 - weight) * (b - a) */
TN_API tn_tensor *tn_lerp(tn_tensor *a, tn_tensor *b, double weight);
/** The same with a weight for each element: three tensors of one floating dtype. They broadcast. */
TN_API tn_tensor *tn_lerp_by(tn_tensor *a, tn_tensor *b, tn_tensor *weight);
/** a - b floor(a / b): 0 or of b's sign; exact. Integers stay, and by 0 give 0; floats by 0 NaN. */
TN_API tn_tensor *tn_remainder(tn_tensor *a, tn_tensor *b);
/** condition (bool) ? a : b, elementwise */
TN_API tn_tensor *tn_where(tn_tensor *condition, tn_tensor *a, tn_tensor *b);
/** x where mask (bool) is false, value where it is true. Errors: as tn_full_as for x's dtype */
TN_API tn_tensor *tn_masked_fill(tn_tensor *x, tn_tensor *mask, double value);

/* ---- comparisons and logic: bool results, no gradient ---------------------------------------- */

TN_API tn_tensor *tn_eq(tn_tensor *a, tn_tensor *b); /* a == b; false where either is NaN */
TN_API tn_tensor *tn_ne(tn_tensor *a, tn_tensor *b); /* a != b; true where either is NaN */
TN_API tn_tensor *tn_lt(tn_tensor *a, tn_tensor *b); /* a < b */
TN_API tn_tensor *tn_le(tn_tensor *a, tn_tensor *b); /* a <= b */
TN_API tn_tensor *tn_gt(tn_tensor *a, tn_tensor *b); /* a > b */
TN_API tn_tensor *tn_ge(tn_tensor *a, tn_tensor *b); /* a >= b */
/** Both differ from 0. Any dtype; NaN differs from 0. */
TN_API tn_tensor *tn_logical_and(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_logical_or(tn_tensor *a, tn_tensor *b);  /* a or b differs from 0 */
TN_API tn_tensor *tn_logical_xor(tn_tensor *a, tn_tensor *b); /* exactly one differs from 0 */
TN_API tn_tensor *tn_logical_not(tn_tensor *x);               /* x is 0 */
TN_API tn_tensor *tn_isnan(tn_tensor *x);                     /* x is NaN; false for integers */
TN_API tn_tensor *tn_isfinite(tn_tensor *x); /* neither NaN nor infinite; true for integers */

/* ---- elementwise, tensor and C scalar -------------------------------------------------------- */
/*
 * Integers stay integers, and wrap around, if s is whole and fits an i64 (bool gives i64). For any
 * other s, infinities and NaN too, they give f32, and with div_scalar always. Floating tensors keep
 * their dtype: s is rounded to it, except in bf16 and f16 where s multiplies or divides.
 * Comparisons give bool, and for integers are exact.
 *
 * Errors   TN_E_INVALID for integers raised to a negative integer
 */

TN_API tn_tensor *tn_add_scalar(tn_tensor *x, double s);  /* x + s */
TN_API tn_tensor *tn_sub_scalar(tn_tensor *x, double s);  /* x - s */
TN_API tn_tensor *tn_rsub_scalar(tn_tensor *x, double s); /* s - x */
TN_API tn_tensor *tn_mul_scalar(tn_tensor *x, double s);  /* x s */
TN_API tn_tensor *tn_div_scalar(tn_tensor *x, double s);  /* x / s */
TN_API tn_tensor *tn_pow_scalar(tn_tensor *x, double s);  /* x^s */
TN_API tn_tensor *tn_eq_scalar(tn_tensor *x, double s);   /* x == s */
TN_API tn_tensor *tn_ne_scalar(tn_tensor *x, double s);   /* x != s; true for NaN */
TN_API tn_tensor *tn_lt_scalar(tn_tensor *x, double s);   /* x < s */
TN_API tn_tensor *tn_le_scalar(tn_tensor *x, double s);   /* x <= s */
TN_API tn_tensor *tn_gt_scalar(tn_tensor *x, double s);   /* x > s */
TN_API tn_tensor *tn_ge_scalar(tn_tensor *x, double s);   /* x >= s */
/** As tn_remainder. Errors: an integer x and 0. */
TN_API tn_tensor *tn_remainder_scalar(tn_tensor *x, double s);

/* ---- elementwise, one tensor ----------------------------------------------------------------- */
/*
 * Dtypes   integers give f32, except neg, abs, sign, square, relu, relu6, hardtanh, clamp, and what
 *          makes whole numbers
 * Range    exp, expm1, log, log1p, tanh and erf are within 1 to 2.5 units in the last place
 * Errors   TN_E_INVALID for clamp and hardtanh with low > high, softplus with beta <= 0, softshrink
 *          with lambda < 0, celu with alpha 0
 */

TN_API tn_tensor *tn_neg(tn_tensor *x);        /* -x */
TN_API tn_tensor *tn_abs(tn_tensor *x);        /* |x|; slope 0 at 0 */
TN_API tn_tensor *tn_exp(tn_tensor *x);        /* e^x */
TN_API tn_tensor *tn_log(tn_tensor *x);        /* natural logarithm; -inf at 0, NaN below */
TN_API tn_tensor *tn_log1p(tn_tensor *x);      /* log(1 + x), exact for small x */
TN_API tn_tensor *tn_expm1(tn_tensor *x);      /* e^x - 1, exact for small x */
TN_API tn_tensor *tn_sqrt(tn_tensor *x);       /* square root; NaN below 0; slope inf at 0 */
TN_API tn_tensor *tn_rsqrt(tn_tensor *x);      /* 1 / sqrt(x) */
TN_API tn_tensor *tn_square(tn_tensor *x);     /* x x */
TN_API tn_tensor *tn_reciprocal(tn_tensor *x); /* 1 / x */
TN_API tn_tensor *tn_sin(tn_tensor *x);        /* sine; x in radians */
TN_API tn_tensor *tn_cos(tn_tensor *x);        /* cosine; x in radians */
TN_API tn_tensor *tn_tan(tn_tensor *x);        /* tangent; x in radians */
TN_API tn_tensor *tn_asin(tn_tensor *x);       /* arc sine; NaN beyond -1 and 1 */
TN_API tn_tensor *tn_acos(tn_tensor *x);       /* arc cosine; NaN beyond -1 and 1 */
TN_API tn_tensor *tn_atan(tn_tensor *x);       /* arc tangent */
TN_API tn_tensor *tn_sinh(tn_tensor *x);       /* (e^x - e^-x) / 2 */
TN_API tn_tensor *tn_cosh(tn_tensor *x);       /* (e^x + e^-x) / 2 */
TN_API tn_tensor *tn_asinh(tn_tensor *x);      /* the inverse of sinh */
TN_API tn_tensor *tn_acosh(tn_tensor *x);      /* that of cosh; NaN below 1 */
TN_API tn_tensor *tn_atanh(tn_tensor *x);      /* that of tanh; NaN beyond -1 and 1 */
TN_API tn_tensor *tn_sign(tn_tensor *x);       /* 1, 0 or -1; 0 for NaN; slope 0 */
TN_API tn_tensor *tn_floor(tn_tensor *x);      /* the largest whole number <= x; slope 0 */
TN_API tn_tensor *tn_ceil(tn_tensor *x);       /* the smallest whole number >= x; slope 0 */
TN_API tn_tensor *tn_trunc(tn_tensor *x);      /* x without its fraction; slope 0 */
TN_API tn_tensor *tn_round(tn_tensor *x);      /* to the nearest, of two the even one; slope 0 */
TN_API tn_tensor *tn_tanh(tn_tensor *x);       /* (e^x - e^-x) / (e^x + e^-x) */
TN_API tn_tensor *tn_sigmoid(tn_tensor *x);    /* 1 / (1 + e^-x) */
TN_API tn_tensor *tn_erf(tn_tensor *x);  /* 2 / sqrt(pi) times the integral of e^-t^2, 0 to x */
TN_API tn_tensor *tn_relu(tn_tensor *x); /* max(x, 0); slope 0 at 0 */
TN_API tn_tensor *tn_leaky_relu(tn_tensor *x, double slope); /* x above 0, else slope x */
/** x above 0, else alpha (e^x - 1). Clevert et al. (2016) */
TN_API tn_tensor *tn_elu(tn_tensor *x, double alpha);
/** x above 0, else alpha (e^(x / alpha) - 1). Barron (2017) */
TN_API tn_tensor *tn_celu(tn_tensor *x, double alpha);
TN_API tn_tensor *tn_selu(tn_tensor *x); /* 1.0507 elu(x, 1.6733); Klambauer et al. (2017) */
TN_API tn_tensor *tn_silu(tn_tensor *x); /* x sigmoid(x) */
TN_API tn_tensor *tn_gelu(tn_tensor *x); /* x Phi(x), exact; Hendrycks and Gimpel (2016) */
/* 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))); section 2 of the same */
TN_API tn_tensor *tn_gelu_tanh(tn_tensor *x);
/** log(1 + e^(beta x)) / beta; x where beta x is above threshold. Dugas et al. (2001) */
TN_API tn_tensor *tn_softplus(tn_tensor *x, double beta, double threshold);
TN_API tn_tensor *tn_mish(tn_tensor *x);       /* x tanh(log(1 + e^x)); Misra (2020) */
TN_API tn_tensor *tn_logsigmoid(tn_tensor *x); /* log(sigmoid(x)) */
TN_API tn_tensor *tn_softsign(tn_tensor *x);   /* x / (1 + |x|); Bergstra et al. (2009) */
TN_API tn_tensor *tn_hardshrink(tn_tensor *x, double lambda); /* 0 from -lambda to lambda */
TN_API tn_tensor *tn_softshrink(tn_tensor *x, double lambda); /* x, lambda nearer to 0, or 0 */
TN_API tn_tensor *tn_tanhshrink(tn_tensor *x);                /* x - tanh(x) */
TN_API tn_tensor *tn_relu6(tn_tensor *x);                     /* hardtanh from 0 to 6 */
TN_API tn_tensor *tn_hardsigmoid(tn_tensor *x);               /* relu6(x + 3) / 6 */
TN_API tn_tensor *tn_hardswish(tn_tensor *x); /* x relu6(x + 3) / 6; Howard et al. (2019) */
/** As tn_clamp, but slope 0 at both bounds. */
TN_API tn_tensor *tn_hardtanh(tn_tensor *x, double low, double high);
/** x above 0, else weight x; weight [1], [] or [C], C = x's channels (axis 1; without it 1). He et
 *  al. (2015) */
TN_API tn_tensor *tn_prelu(tn_tensor *x, tn_tensor *weight);
/** a sigmoid(b) of the halves of x along an axis of even size. Dauphin et al. (2017) */
TN_API tn_tensor *tn_glu(tn_tensor *x, int axis);
/** zero fields: 0, and the dtype's largest and smallest number */
typedef struct tn_nan_to_num_options {
    double nan;                  /* in place of NaN */
    double posinf, neginf;       /* of inf, of -inf; 0: the largest, the smallest */
    bool use_posinf, use_neginf; /* take 0 as given */
} tn_nan_to_num_options;
/** x with numbers in place of NaN and infinities, which get no gradient. Integers: x itself. */
TN_API tn_tensor *tn_nan_to_num(tn_tensor *x, tn_nan_to_num_options o);
/** min(max(x, low), high); slope 1 at both bounds. -INFINITY or INFINITY leaves a side open. For an
 *  integer x, bounds that are not whole give f32; bounds between which x's dtype has no value are
 *  an error. */
TN_API tn_tensor *tn_clamp(tn_tensor *x, double low, double high);

/* ---- in place: record nothing, bump the version ---------------------------------------------- */
/* With grad mode on, a target with history or requires_grad, or a source that requires grad, is an
 * error naming the out-of-place form. The source broadcasts to the target and is cast to its dtype
 * (float into integer is an error). Each returns the status. */

TN_API TN_MUST_USE tn_status tn_add_(tn_tensor *x, tn_tensor *b);    /* x += b */
TN_API TN_MUST_USE tn_status tn_sub_(tn_tensor *x, tn_tensor *b);    /* x -= b */
TN_API TN_MUST_USE tn_status tn_mul_(tn_tensor *x, tn_tensor *b);    /* x *= b */
TN_API TN_MUST_USE tn_status tn_div_(tn_tensor *x, tn_tensor *b);    /* x /= b; x not an integer */
TN_API TN_MUST_USE tn_status tn_add_scalar_(tn_tensor *x, double s); /* x += s */
TN_API TN_MUST_USE tn_status tn_mul_scalar_(tn_tensor *x, double s); /* x *= s */
/* x += weight (b - x) */
TN_API TN_MUST_USE tn_status tn_lerp_(tn_tensor *x, tn_tensor *b, double weight);
TN_API TN_MUST_USE tn_status tn_clamp_(tn_tensor *x, double low, double high); /* as tn_clamp */
/** as tn_masked_fill */
TN_API TN_MUST_USE tn_status tn_masked_fill_(tn_tensor *x, tn_tensor *mask, double value);
/* x = source: casts, broadcasts, crosses devices */
TN_API TN_MUST_USE tn_status tn_copy_(tn_tensor *x, tn_tensor *source);
/* x = value, every element; errors as tn_full_as */
TN_API TN_MUST_USE tn_status tn_fill_(tn_tensor *x, double value);
TN_API TN_MUST_USE tn_status tn_zero_(tn_tensor *x); /* tn_fill_(x, 0) */

/* ---- reductions ------------------------------------------------------------------------------ */
/*
 * Shapes   reduced axes disappear, or keep size 1 with keepdim
 * Range    f32 sums are added in double, in blocks: the same bits for any number of threads
 * Errors   TN_E_INDEX for an axis out of range, TN_E_INVALID for one named twice, TN_E_DTYPE for
 *          integers where floats are wanted (mean, var, std, logsumexp, norm), TN_E_SHAPE for the
 *          extreme of no elements. Over no elements sum is 0, prod 1, norm 0, mean NaN, any false,
 *          all true, logsumexp -inf
 */

/* sum; bool and integers give i64 */
TN_API tn_tensor *tn_sum(tn_tensor *x, const int *axes, int n_axes, bool keepdim);
/* mean; floats only */
TN_API tn_tensor *tn_mean(tn_tensor *x, const int *axes, int n_axes, bool keepdim);
/** Sum of squares about the mean over (n - correction): correction 1 is the sample variance. */
TN_API tn_tensor *tn_var(tn_tensor *x, const int *axes, int n_axes, double correction,
                         bool keepdim);
/** Square root of tn_var, right also where that leaves the dtype's range. */
TN_API tn_tensor *tn_std(tn_tensor *x, const int *axes, int n_axes, double correction,
                         bool keepdim);
/** Product; ints give i64. Derivatives of every order are right also where elements are 0. */
TN_API tn_tensor *tn_prod(tn_tensor *x, const int *axes, int n_axes, bool keepdim);
/** log(sum(exp(x))), stable; -inf for a slice of -inf. The gradient is softmax also where the value
 *  is rounded. */
TN_API tn_tensor *tn_logsumexp(tn_tensor *x, const int *axes, int n_axes, bool keepdim);
/** p-norm, p in (0, INFINITY]; slope 0 at 0. Powers that leave the dtype's range do no harm. */
TN_API tn_tensor *tn_norm(tn_tensor *x, double p, const int *axes, int n_axes, bool keepdim);
/** x over the larger of eps and its p-norm along an axis; slope 1 of the larger at eps. PyTorch:
 *  F.normalize */
TN_API tn_tensor *tn_normalize(tn_tensor *x, double p, int axis, double eps);
/** sum a b / (|a| |b|) along an axis of the two broadcast, each norm at least eps. Errors: not one
 *  floating dtype. PyTorch: F.cosine_similarity */
TN_API tn_tensor *tn_cosine_similarity(tn_tensor *a, tn_tensor *b, int axis, double eps);
/** The largest; equal ones share the gradient. NaN wins, and its slice's gradient is NaN (in
 *  tn_max_all the NaN share it). */
TN_API tn_tensor *tn_amax(tn_tensor *x, const int *axes, int n_axes, bool keepdim);
/** The smallest, as tn_amax. */
TN_API tn_tensor *tn_amin(tn_tensor *x, const int *axes, int n_axes, bool keepdim);
/** Along one axis, with the index (i64) of the first extreme, which takes all the gradient. index
 *  may be NULL when not wanted. */
TN_API tn_tensor *tn_max(tn_tensor *x, int axis, bool keepdim, tn_tensor **index);
/** The smallest, as tn_max. */
TN_API tn_tensor *tn_min(tn_tensor *x, int axis, bool keepdim, tn_tensor **index);
/** Index (i64) of the first largest along an axis; no gradient. */
TN_API tn_tensor *tn_argmax(tn_tensor *x, int axis, bool keepdim);
/** Index (i64) of the first smallest along an axis; no gradient. */
TN_API tn_tensor *tn_argmin(tn_tensor *x, int axis, bool keepdim);
/* bool: is any element not 0? */
TN_API tn_tensor *tn_any(tn_tensor *x, const int *axes, int n_axes, bool keepdim);
/* bool: is no element 0? */
TN_API tn_tensor *tn_all(tn_tensor *x, const int *axes, int n_axes, bool keepdim);
TN_API tn_tensor *tn_sum_all(tn_tensor *x);          /* tn_sum over all axes: a single value */
TN_API tn_tensor *tn_mean_all(tn_tensor *x);         /* tn_mean over all axes */
TN_API tn_tensor *tn_max_all(tn_tensor *x);          /* tn_amax over all axes */
TN_API tn_tensor *tn_min_all(tn_tensor *x);          /* tn_amin over all axes */
TN_API tn_tensor *tn_cumsum(tn_tensor *x, int axis); /* running sum along an axis */
/** Running product along an axis; integers give i64. PyTorch: torch.cumprod */
TN_API tn_tensor *tn_cumprod(tn_tensor *x, int axis);

/* ---- products -------------------------------------------------------------------------------- */

/**
 * Matrix product of the last two axes: C_ij = sum_k A_ik B_kj. Transposed and strided operands are
 * read where they lie.
 *
 * Shapes   a [..., m, k], b [..., k, n] -> [..., m, n]; leading axes broadcast. A 1-D a is a row, a
 *          1-D b a column, whose axis disappears: [k] and [k] give a single value
 * Grad     da = dc B^T, db = A^T dc            keeps a, b
 * Errors   columns of a differ from rows of b; leading axes that do not broadcast; a rank of 0;
 *          dtypes that differ or are not floating
 * Note     on a CPU with AMX large f32 products take each number as a sum of three bf16, which has
 *          all its 24 bits. A long sum is rounded less often than in a loop, a short one once more.
 *          Numbers and products below 1e-31 lose bits; results below 1e-38 are 0. bf16 by AMX or
 *          AVX512-BF16: numbers, products and sums below 1e-38 (denormal ones) are 0, in
 *          convolutions and attention, too
 */
TN_API tn_tensor *tn_matmul(tn_tensor *a, tn_tensor *b);
/**
 * y = x W^T + b.
 *
 * Shapes   x [..., in], weight [out, in], bias [out] or TN_NONE -> [..., out]
 * Grad     dx = dy W, dW = dy^T x, db = column sums of dy            keeps x, weight
 * Errors   sizes that do not fit; dtypes that differ or are not floating, but for a weight of bytes
 *          (u8, of tn_quantize_int8), which takes no gradient
 */
TN_API tn_tensor *tn_linear(tn_tensor *x, tn_tensor *weight, tn_tensor *bias);
/** a_i b_j: a [m], b [n] -> [m, n]. PyTorch: torch.outer */
TN_API tn_tensor *tn_outer(tn_tensor *a, tn_tensor *b);
/**
 * Sum of products by subscripts, as tn_einsum("bij,bjk->bik", 2, (tn_tensor *[]){ a, b }): a letter
 * for each axis, "..." for all that are left, equal letters are one index; letters that the result
 * lacks are summed. Without "->" the result has "..." and the letters that stand once, A to Z
 * before a to z. Axes of size 1 stretch.
 *
 * Shapes   up to 32 operands; up to 8 axes each, also in between. Two at a time become one, the
 *          pair with the smallest result first, by tn_matmul where something is summed
 * Errors   other characters; axes that differ in number or size; a result's letter that no operand
 *          has, or twice; dtypes that tn_matmul refuses
 * PyTorch: torch.einsum
 */
TN_API tn_tensor *tn_einsum(const char *equation, int n, tn_tensor *const *x);

/* ---- softmax --------------------------------------------------------------------------------- */

/**
 * exp(x - max) / sum along an axis. Its logarithm is tn_log_softmax.
 *
 * Range    y in [0, 1] with sum 1; a slice of -inf gives NaN
 * Grad     y * (dy - sum(dy * y))            keeps y
 * Source   Goodfellow et al., Deep Learning (2016), section 4.1 (overflow)
 */
TN_API tn_tensor *tn_softmax(tn_tensor *x, int axis);
/** x - logsumexp(x) along an axis: the logarithm without rounding a small y to 0. Its gradient is
 *  dy - exp(y) * sum(dy). */
TN_API tn_tensor *tn_log_softmax(tn_tensor *x, int axis);

/* ---- layers as functions --------------------------------------------------------------------- */

/**
 * training: zero with probability p, scale the rest by 1/(1-p); else (or with p = 0) x itself.
 *
 * The mask comes from counters of the Philox stream that tn_manual_seed sets: the same for f32 and
 * f64, on every device. Backward draws it again, so it is not kept.
 *
 * Errors   p outside [0, 1]
 * Source   Srivastava et al. (2014), section 10
 */
TN_API tn_tensor *tn_dropout(tn_tensor *x, double p, bool training);
/**
 * (x - mean) / sqrt(var + eps) * weight + bias over the last n_axes axes, with the biased variance;
 * weight and bias have the shape of those axes, or are TN_NONE. They may be f32 beside an x of bf16
 * or f16.
 *
 * Grad     with xh the normalised x, r = 1 / sqrt(var + eps), gw = dy weight:
 *          dx = r (gw - mean(gw) - xh mean(gw xh))                          keeps x, mean, r
 * Source   Ba, Kiros, Hinton, Layer Normalization (2016), section 3
 */
TN_API tn_tensor *tn_layer_norm(tn_tensor *x, int n_axes, tn_tensor *weight, tn_tensor *bias,
                                double eps);
/**
 * x / sqrt(mean(x^2) + eps) * weight over the last n_axes axes; weight as above. eps below 0: the
 * epsilon of x's dtype, of f32 for bf16 and f16.
 *
 * Grad     with r = 1 / sqrt(mean(x^2) + eps), xh = x r, gw = dy weight:
 *          dx = r (gw - xh mean(gw xh))                                        keeps x, r
 * Source   Zhang and Sennrich, Root Mean Square Layer Normalization (2019), eq. 4
 * PyTorch: F.rms_norm; its None is an eps below 0
 */
TN_API tn_tensor *tn_rms_norm(tn_tensor *x, int n_axes, tn_tensor *weight, double eps);
/**
 * (x - mean) / sqrt(var + eps) * weight + bias for x [N, C, ...], mean and biased variance of each
 * of so many groups of neighbouring channels of a sample; weight and bias [C], otherwise as
 * tn_layer_norm's. As many groups as channels is instance normalization.
 *
 * Errors   groups that do not divide C
 * Grad     as tn_layer_norm                                                    keeps x, mean, r
 * Source   Wu and He, Group Normalization (2018), eq. 1 to 3
 * PyTorch: F.group_norm
 */
TN_API tn_tensor *tn_group_norm(tn_tensor *x, int groups, tn_tensor *weight, tn_tensor *bias,
                                double eps);
/**
 * (x - mean) / sqrt(var + eps) * weight + bias per channel (axis 1 of [N, C, ...]). training: with
 * the batch's mean and biased variance, and running_mean / running_var (or TN_NONE) move towards
 * them by momentum (variance unbiased); else with these two. Beside an x of bf16 or f16 each of the
 * four may be f32; a bf16 or f16 one is updated in f32 and then rounded.
 *
 * Errors   training with one value per channel; only one running buffer; evaluation without them;
 *          sizes that differ from x's channels. Then nothing has changed, the running buffers
 *          included.
 * Grad     training: dx = w r (dy - mean(dy) - xh mean(dy xh)); else w r dy. Running buffers get no
 *          gradient and are not kept: more forwards may run before backward.
 * Source   Ioffe and Szegedy, Batch Normalization (2015), algorithms 1 and 2
 */
TN_API tn_tensor *tn_batch_norm(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                tn_tensor *running_mean, tn_tensor *running_var, bool training,
                                double momentum, double eps);

/**
 * softmax(q k^T * scale + mask) v, without the T x S matrix in memory: it is computed in blocks
 * that fit the cache.
 *
 * Shapes   q [..., T, D], k [..., S, D], v [..., S, Dv] -> [..., T, Dv]; 2 to 5 axes, leading ones
 *          equal; or q has n times as many heads (axis -3) as k and v, each read by n heads of q in
 *          a row (grouped queries: PyTorch's enable_gqa), without a copy. mask: TN_NONE, bool (true
 *          blocks) or of q's dtype (added), broadcast to [..., T, S]. causal: query t sees keys
 *          s <= t only
 * Range    scale 0 means 1 / sqrt(D). A row with everything blocked (or S = 0) gives zeros and gets
 *          no gradient. On the CPU a blocked key is not read, whatever it and its value hold (but
 *          second derivatives multiply it by 0)
 * Layout   the result's axes have q's order in memory: heads that are a view of [B, T, H D] merge
 *          back into one axis without a copy
 * Grad     dv = p^T dy, ds = p (dy v^T - rowsum(dy y)), dq = scale ds k, dk = scale ds^T q; p is
 *          recomputed from two kept numbers per row. Second derivatives, and the gradient of a mask
 *          (dmask = ds), use the same formulas as ops, with the T x S matrix in memory
 * Errors   sizes or dtypes that do not fit; more than 5 axes
 * Source   Vaswani et al. (2017), eq. 1; Dao et al., FlashAttention (2022), algorithms 1 and 4
 */
TN_API tn_tensor *tn_scaled_dot_product_attention(tn_tensor *q, tn_tensor *k, tn_tensor *v,
                                                  tn_tensor *mask, bool causal, double scale);
/** The same with dropout of the weights: in training each is 0 with probability p, else divided by
 *  1 - p. They are then in memory, T x S for every head, as are keys and values for every head of
 *  grouped queries. Errors: p outside [0, 1]. PyTorch: F.scaled_dot_product_attention(q, k, v,
 *  dropout_p=p); p acts in training alone, and numbers are drawn otherwise */
TN_API tn_tensor *tn_scaled_dot_product_attention_dropout(tn_tensor *q, tn_tensor *k, tn_tensor *v,
                                                          tn_tensor *mask, bool causal,
                                                          double scale, double p, bool training);
/**
 * Rotary positions: pairs (a, b) of each row's first R elements become (a c - b s, b c + a s), a
 * rotation by the angle whose cosine is c and whose sine is s; the rest of the row stays. x is read
 * where it lies; bf16 and f16 are computed in f32 and rounded once.
 *
 * Shapes   x [..., T, D]; cosine, sine [T, R/2], or more axes that broadcast to x's, R <= D ->
 *          [..., T, D]. interleaved: pairs are (2i, 2i + 1), as in the paper and in GPT-J; else
 *          (i, i + R/2), as in Llama and GPT-NeoX
 * Layout   the result's axes have x's order in memory, as tn_scaled_dot_product_attention's
 * Grad     dx: dy turned by the negative angles; cosine and sine get none        keeps cosine, sine
 * Errors   an x without two axes; R > D; tables that differ in shape or dtype, or do not broadcast;
 *          dtypes: x floating, tables of x's dtype, or f32 beside bf16 and f16
 * Source   Su et al., RoFormer (2021), eq. 34
 * PyTorch: none; x * cos + rotate_half(x) * sin in transformers, whose tables have each half twice
 */
TN_API tn_tensor *tn_rotary(tn_tensor *x, tn_tensor *cosine, tn_tensor *sine, bool interleaved);

/* ---- recurrent layers as functions: one layer over a whole sequence, in one direction -------- */

/**
 * h_t = tanh(x_t W_ih^T + b_ih + h_(t-1) W_hh^T + b_hh), or relu.
 *
 * reverse  from the last step to the first: h_T stands for h0
 * Shapes   x [T, B, in], T at least 1, h0 [B, h] or TN_NONE for zeros, w_ih [h, in], w_hh [h, h],
 *          b_ih, b_hh [h] or TN_NONE -> all h_t [T, B, h]
 * Dtypes   bf16 and f16 compute in f32 and round once, at the end. In a region of autocast the
 *          products run in its dtype, with sums in f32; states and results are f32; gradients of x
 *          and the weights are rounded to it, as those of tn_linear are
 * Grad     through time; one product gives each weight's            keeps all inputs, y
 * Errors   sizes that do not fit; no step; dtypes that differ
 * Source   Elman, Finding structure in time (1990)
 */
TN_API tn_tensor *tn_rnn(tn_tensor *x, tn_tensor *h0, tn_tensor *w_ih, tn_tensor *w_hh,
                         tn_tensor *b_ih, tn_tensor *b_hh, bool relu, bool reverse);
/**
 * With a = x_t W_ih^T + b_ih and s = h_(t-1) W_hh^T + b_hh, 3 h each, for r, z, n in this order:
 * r = sigmoid(a_r + s_r), z = sigmoid(a_z + s_z), n = tanh(a_n + r s_n), h_t = (1 - z) n + z
 * h_(t-1).
 *
 * Shapes, Dtypes, Errors   as tn_rnn, with 3 h rows of the weights and elements of the biases
 * Grad                     keeps gates, too
 * Source                   Cho et al., Learning phrase representations using RNN encoder-decoder
 *                          (2014), eq. 5 to 8, with r after the product, as in cuDNN and PyTorch
 */
TN_API tn_tensor *tn_gru(tn_tensor *x, tn_tensor *h0, tn_tensor *w_ih, tn_tensor *w_hh,
                         tn_tensor *b_ih, tn_tensor *b_hh, bool reverse);
/**
 * With a = x_t W_ih^T + b_ih + h_(t-1) W_hh^T + b_hh, 4 h, for i, f, g, o in this order:
 * c_t = sigmoid(a_f) c_(t-1) + sigmoid(a_i) tanh(a_g), h_t = sigmoid(a_o) tanh(c_t).
 *
 * c_n                      NULL, or receives c after the last step, [B, h]; NULL on failure
 * Shapes, Dtypes, Errors   as tn_rnn, c0 as h0, with 4 h rows and elements
 * Grad                     keeps gates and all c_t, too
 * Source                   Hochreiter and Schmidhuber, Long short-term memory (1997), with the
 *                          forget gate of Gers et al. (2000), eq. 3
 */
TN_API tn_tensor *tn_lstm(tn_tensor *x, tn_tensor *h0, tn_tensor *c0, tn_tensor *w_ih,
                          tn_tensor *w_hh, tn_tensor *b_ih, tn_tensor *b_hh, bool reverse,
                          tn_tensor **c_n);

TN_END_C_
#endif
