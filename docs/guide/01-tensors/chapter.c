/*
 * Chapter 1: a tensor is memory, and a rule for walking through it: sizes and strides.
 */
#include <inttypes.h>
#include <tenon/tenon.h>

static tn_tensor *base; /* whose memory the others are compared with */

static void show(const char *what, tn_tensor *t)
{
    TN_CHECK_PTR(t);
    printf("%-22s sizes", what);
    for (int i = 0; i < tn_rank(t); i++) printf(" %" PRId64, tn_size(t, i));
    printf("  strides");
    for (int i = 0; i < tn_rank(t); i++) printf(" %" PRId64, tn_stride(t, i));
    printf("  %s\n", tn_same_storage(t, base) ? "same memory" : "memory of its own");
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = base = tn_reshape(tn_arange(0, 6, 1, TN_F32), TN_SHAPE(2, 3));
    tn_print(x);
    show("x", x);

    tn_tensor *t = tn_transpose(x, 0, 1);
    tn_print(t);
    show("x transposed", t);
    show("column 1", tn_select(x, 1, 1));
    show("every other column", tn_slice(x, 1, 0, 3, 2));
    show("column 0, 4 times", tn_expand(tn_narrow(x, 1, 0, 1), TN_SHAPE(2, 4)));
    show("x as [3, 2]", tn_reshape(x, TN_SHAPE(3, 2)));
    show("transposed as [6]", tn_reshape(t, TN_SHAPE(6)));
    show("transposed, in rows", tn_contiguous(t));

    /* Views share: what one writes, the others see. */
    TN_CHECK(tn_fill_(tn_select(x, 1, 1), 9));
    tn_print(x);
    tn_print(t);

    /* Plain C reads rows without gaps. Of any other tensor, take a copy in rows. */
    if (!tn_data(t)) printf("%s\n", tn_error());
    const float *rows = tn_data(tn_contiguous(t));
    printf("%g %g %g\n", (double)rows[0], (double)rows[1], (double)rows[2]);
    tn_scope_end(scope);
    printf("tensors alive: %" PRId64 "\n", tn_live_tensors());
    return 0;
}
