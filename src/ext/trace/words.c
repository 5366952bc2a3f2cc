/* words.c - numbers, shapes and names as the writers of text print them. */
#include "io/json.h"
#include "ext/trace/words.h"

enum { FEW = 8 };

/* Adds to a phrase. */
#define ADD(p, ...) tni_text_add((p)->s, sizeof(p)->s, __VA_ARGS__)

/* Without the sign that a NaN may have: it depends on the processor. */
static double unsigned_nan(double x)
{
    return isnan(x) ? (double)NAN : x;
}

tni_phrase tni_amount_phrase(const tni_numbers *v)
{
    if (!v->known) return tni_phrase_of("-");
    return tni_phrase_of("%.4g", unsigned_nan(v->n == 1 ? v->mean : v->norm));
}

/* "[[1, 2], [3, 4]]" */
static void add_values(tni_phrase *p, const tni_numbers *v, const tn_shape *s)
{
    for (int64_t i = 0; i < v->n; i++) {
        int64_t row = 1;
        int open = 0, close = 0;
        for (int d = s->rank - 1; d >= 0; d--) {
            row *= s->size[d];
            open += i % row == 0;
            close += (i + 1) % row == 0;
        }
        ADD(p, "%s%.*s%.4g%.*s", i ? ", " : "", open, "[[[[[[[[", unsigned_nan(v->value[i]), close,
            "]]]]]]]]");
    }
}

tni_phrase tni_numbers_phrase(const char *before, const char *name, const tni_numbers *v,
                              const tn_shape *shape)
{
    tni_phrase p = { "" };
    if (!v->known) return p;
    const char *bar = v->n == 1 ? "" : "|";
    ADD(&p, "%s%s%s%s %s", before, bar, name, bar, tni_amount_phrase(v).s);
    if (v->n == 1 || !v->value || v->n > FEW || !shape) return p;
    ADD(&p, " = ");
    add_values(&p, v, shape);
    return p;
}

const char *tni_tensor_name(const tni_log_tensor *t)
{
    return !t ? "a tensor" : t->name[0] ? t->name : t->requires_grad ? "a leaf" : "data";
}

tni_phrase tni_source_phrase(const tni_log_in *in)
{
    const tni_log_node *n = in->node;
    if (!n) return tni_phrase_of("%s", tni_tensor_name(in->tensor));
    if (!in->output) return tni_phrase_of("%s #%d", n->op->name, n->id);
    return tni_phrase_of("%s #%d.%d", n->op->name, n->id, in->output);
}

tni_phrase tni_moved_phrase(unsigned moved)
{
    static const char *const by[] = { "by hand", "by forward", "by backward", "by the optimizer" };
    tni_phrase p = { "" };
    if (moved & TNI_MOVED_UNKNOWN) return tni_phrase_of("not known");
    for (unsigned i = 0; i < 4; i++)
        if (moved & 1u << i) ADD(&p, "%s%s", p.s[0] ? " and " : "", by[i]);
    return p.s[0] ? p : tni_phrase_of("no");
}

void tni_escape(void *to, const char *text, void (*put)(void *to, unsigned char byte))
{
    size_t left = strlen(text), valid = tni_utf8(text, left);
    for (; left > 0; text++, left--) {
        put(to, valid > 0 ? (unsigned char)*text : '?');
        valid = valid > 0 ? valid - 1 : tni_utf8(text + 1, left - 1);
    }
}

static void put_byte(void *file, unsigned char c)
{
    const char *markup = c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : "&quot;";
    if (strchr("<>&\"", c))
        fputs(markup, file);
    else
        fputc(c < 0x20 || c == 0x7f ? ' ' : c, file);
}

void tni_put_markup(FILE *file, const char *text)
{
    tni_escape(file, text, put_byte);
}
