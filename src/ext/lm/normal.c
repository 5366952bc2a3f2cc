/*
 * normal.c - normal forms of a text: Unicode's four, lower case, BERT's, replacements.
 *
 * Source: Unicode Standard Annex 15 (canonical ordering); tokenizers for what each part does.
 */
#include <utf8proc.h>

#include "ext/lm/tokenizer.h"

static bool add_character(tni_bytes *to, int32_t c)
{
    utf8proc_uint8_t utf8[4];
    tni_bytes_add(to, utf8, (size_t)utf8proc_encode_char(c, utf8));
    return !to->failed;
}

/* ---- Unicode's forms ------------------------------------------------------------------------- */

static int by_class(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts marks by their classes, equal ones as they stand. They come in any number: n log n. */
static bool order_marks(tni_work *w, int32_t *mark, size_t n)
{
    if (n < 2) return true;
    if (!tni_room(&w->heap, &w->heap_capacity, 0, n, sizeof *w->heap)) return false;
    for (size_t i = 0; i < n; i++) {
        uint64_t class = (uint64_t)utf8proc_get_property(mark[i])->combining_class;
        w->heap[i] = class << 56 | (uint64_t)i << 24 | (uint64_t)mark[i];
    }
    qsort(w->heap, n, sizeof *w->heap, by_class);
    for (size_t i = 0; i < n; i++) mark[i] = (int32_t)(w->heap[i] & 0xffffff);
    return true;
}

static bool order_all(tni_work *w, int32_t *c, size_t n)
{
    for (size_t i = 0, end; i < n; i = end + 1) {
        for (end = i; end < n && utf8proc_get_property(c[end])->combining_class; end++)
            ;
        if (!order_marks(w, c + i, end - i)) return false;
    }
    return true;
}

/* A character and those beyond ASCII after it: nothing outside has a part in their form. */
static bool form_run(tni_work *w, tni_bytes *to, const char *text, size_t n, unsigned options)
{
    size_t count = 0;
    for (size_t at = 0; at < n;) {
        int32_t c;
        int last = UTF8PROC_BOUNDCLASS_START;
        enum { MOST = 18 }; /* characters that one decomposes into (UAX 15) */
        at += tni_next(text + at, n - at, &c);
        if (!tni_room(&w->character, &w->character_capacity, count, MOST + 1, sizeof c))
            return false;
        utf8proc_ssize_t k = utf8proc_decompose_char(c, w->character + count, MOST,
                                                     (utf8proc_option_t)options, &last);
        count += k > 0 ? (size_t)k : 0;
    }
    if (!order_all(w, w->character, count)) return false;
    utf8proc_ssize_t left = (utf8proc_ssize_t)count;
    if (options & UTF8PROC_COMPOSE)
        left = utf8proc_normalize_utf32(w->character, left, (utf8proc_option_t)options);
    for (utf8proc_ssize_t i = 0; i < left; i++)
        if (!add_character(to, w->character[i])) return false;
    return true;
}

static size_t ascii(const char *text, size_t n)
{
    size_t i = 0;
    for (uint64_t eight; i + 8 <= n; i += 8) {
        memcpy(&eight, text + i, 8);
        if (eight & UINT64_C(0x8080808080808080)) break;
    }
    while (i < n && (unsigned char)text[i] < 0x80) i++;
    return i;
}

static bool form(tni_work *w, tni_bytes *to, const char *text, size_t n, unsigned options)
{
    for (size_t at = 0; at < n;) {
        size_t plain = ascii(text + at, n - at), end = at + plain;
        if (end == n) return tni_bytes_add(to, text + at, plain), !to->failed;
        while (end < n && (unsigned char)text[end] >= 0x80) end++;
        size_t from = plain ? at + plain - 1 : at;
        tni_bytes_add(to, text + at, from - at);
        if (!form_run(w, to, text + from, end - from, options)) return false;
        at = end;
    }
    return true;
}

/* ---- a character at a time ------------------------------------------------------------------- */

static bool ideograph(int32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
           (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b81f) ||
           (c >= 0x2b920 && c <= 0x2ceaf) || (c >= 0xf900 && c <= 0xfaff) ||
           (c >= 0x2f800 && c <= 0x2fa1f);
}

static bool add_clean(tni_bytes *to, int32_t c)
{
    const unsigned gone =
        1u << UTF8PROC_CATEGORY_CC | 1u << UTF8PROC_CATEGORY_CF | 1u << UTF8PROC_CATEGORY_CO;
    if (c == '\t' || c == '\n' || c == '\r') return add_character(to, ' ');
    if (c == 0xfffd || gone >> utf8proc_category(c) & 1) return true;
    return add_character(to, tni_is_space(c) ? ' ' : c);
}

static bool add_one(tni_bytes *to, int kind, int32_t c)
{
    utf8proc_category_t class = c < 0x80 ? UTF8PROC_CATEGORY_LL : utf8proc_category(c);
    bool mn = class == UTF8PROC_CATEGORY_MN;
    switch (kind) {
    case TNI_LOWER: /* the one character whose lower case is two */
        if (c == 0x130) return add_character(to, 'i') && add_character(to, 0x307);
        return add_character(to, utf8proc_tolower(c));
    case TNI_NO_ACCENTS: return mn || add_character(to, c);
    case TNI_NO_MARKS:
        return mn || class == UTF8PROC_CATEGORY_MC || class == UTF8PROC_CATEGORY_ME ||
               add_character(to, c);
    case TNI_CLEAN: return add_clean(to, c);
    default:
        if (!ideograph(c)) return add_character(to, c);
        return add_character(to, ' ') && add_character(to, c) && add_character(to, ' ');
    }
}

static bool each_character(tni_bytes *to, int kind, const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        int32_t c;
        at += tni_next(text + at, n - at, &c);
        if (!add_one(to, kind, c)) return false;
    }
    return !to->failed;
}

/* ---- the rest -------------------------------------------------------------------------------- */

static bool replace(tni_work *w, const tni_normal *op, tni_bytes *to, const char *text, size_t n)
{
    size_t done = 0, start, end, by = strlen(op->text);
    for (size_t from = 0; from <= n;) {
        int found = tni_match(w, op->pattern, text, n, from, &start, &end);
        if (found < 0) return false;
        if (!found) break;
        tni_bytes_add(to, text + done, start - done);
        tni_bytes_add(to, op->text, by);
        done = end;
        from = end;
        if (start == end) { /* an empty match: go on behind the next character */
            int32_t c;
            from += end < n ? tni_next(text + end, n - end, &c) : 1;
        }
    }
    tni_bytes_add(to, text + done, n - done);
    return !to->failed;
}

static bool trim(bool left, tni_bytes *to, const char *text, size_t n)
{
    int32_t c;
    size_t from = 0, end = 0;
    for (size_t at = 0; at < n;) {
        size_t k = tni_next(text + at, n - at, &c);
        bool space = tni_is_space(c);
        if (left && space && from == at) from = at + k;
        at += k;
        if (!left && !space) end = at;
    }
    if (left) end = n;
    tni_bytes_add(to, text + from, end - from);
    return !to->failed;
}

static bool apply(tni_work *w, const tni_normal *op, tni_bytes *to, const char *text, size_t n)
{
    static const unsigned options[] = {
        [TNI_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [TNI_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [TNI_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [TNI_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    if (op->kind <= TNI_NFKD) return form(w, to, text, n, options[op->kind]);
    switch (op->kind) {
    case TNI_TRIM_LEFT:
    case TNI_TRIM_RIGHT: return trim(op->kind == TNI_TRIM_LEFT, to, text, n);
    case TNI_REPLACE: return replace(w, op, to, text, n);
    case TNI_PREPEND:
        if (n) tni_bytes_add(to, op->text, strlen(op->text));
        tni_bytes_add(to, text, n);
        return !to->failed;
    default: return each_character(to, (int)op->kind, text, n);
    }
}

bool tni_normal_form(tni_work *w, const char **text, size_t *n)
{
    for (size_t i = 0; i < w->t->n_normal; i++) {
        const tni_normal *op = &w->t->normal[i];
        bool same = op->kind <= TNI_NO_ACCENTS && op->kind != TNI_LOWER;
        if (same && ascii(*text, *n) == *n) continue;
        tni_bytes *to = &w->normal[*text == w->normal[0].data ? 1 : 0];
        to->n = 0;
        if (!apply(w, op, to, *text, *n)) return to->failed = false;
        *text = to->n ? to->data : "";
        *n = to->n;
    }
    return true;
}
