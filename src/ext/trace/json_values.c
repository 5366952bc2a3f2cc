/*
 * json_values.c - texts and numbers in JSON, and the tables of a packed account.
 *
 * A number has nine digits, more than an f32 has. In a page all values of a tensor are one string,
 * f32 in base64, from which the page computes norm, extremes and mean; if there are too many
 * values, or they are not f32, those are written as digits.
 */
#include <float.h>
#include <math.h>

#include "io/json.h"
#include "ext/trace/json.h"

/* ---- texts ----------------------------------------------------------------------------------- */

static void put_string(FILE *file, const char *text)
{
    size_t left = strlen(text), valid = tni_utf8(text, left);
    fputc('"', file);
    for (const unsigned char *c = (const unsigned char *)text; left > 0; c++, left--) {
        if (valid == 0) { /* not valid UTF-8, or cut off */
            fputc('?', file);
            valid = tni_utf8((const char *)c + 1, left - 1);
            continue;
        }
        valid--;
        if (*c == '"' || *c == '\\')
            fprintf(file, "\\%c", *c);
        else if (*c < ' ' || *c == '<') /* the latter for a script element's sake */
            fprintf(file, "\\u%04x", *c);
        else
            fputc(*c, file);
    }
    fputc('"', file);
}

/* The text's index in the table; -1: out of memory. */
static int place_of_text(tni_pack *p, const char *text)
{
    int at = tni_get(&p->text_at, text);
    if (at >= 0) return at;
    char *copy = tni_arena_text(&p->arena, text);
    char **row = copy ? tni_arena_more(&p->arena, &p->text, &p->n_texts, sizeof *row) : NULL;
    if (!row) return -1;
    *row = copy;
    at = (int)p->n_texts - 1;
    return tni_put(&p->text_at, copy, at) ? at : -1;
}

static void put_place(const tni_out *o, int at)
{
    o->pack->failed |= at < 0;
    fprintf(o->file, "%d", at);
}

static void put_text(const tni_out *o, const char *text)
{
    if (!text)
        fputs("null", o->file);
    else if (o->pack)
        put_place(o, place_of_text(o->pack, text));
    else
        put_string(o->file, text);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void put_number(const tni_out *o, double x)
{
    if (isfinite(x))
        fprintf(o->file, "%.9g", x);
    else
        fprintf(o->file, isnan(x) ? "\"nan\"" : x > 0 ? "\"inf\"" : "\"-inf\"");
}

static void put_values(const tni_out *o, const tni_numbers *v)
{
    for (int64_t i = 0; i < v->n; i++) {
        fputc(i ? ',' : '[', o->file);
        put_number(o, v->value[i]);
    }
    fputc(']', o->file);
}

static bool same_numbers(const tni_numbers *a, const tni_numbers *b)
{
    return a->n == b->n && a->hash == b->hash && !a->value == !b->value;
}

/* The index of numbers in the table; -1: out of memory. If two differ but have the same hash, the
 * later one is written each time. */
static int place_of_numbers(tni_pack *p, const tni_numbers *v)
{
    const void *key = tni_sequence_key(v->hash | 1);
    int at = tni_get(&p->value_at, key);
    if (at >= 0 && same_numbers(p->value[at], v)) return at;
    const tni_numbers **row = tni_arena_more(&p->arena, &p->value, &p->n_values, sizeof *row);
    if (!row) return -1;
    *row = v;
    bool known = at >= 0 || tni_put(&p->value_at, key, (int)p->n_values - 1);
    return known ? (int)p->n_values - 1 : -1;
}

static void put_numbers(const tni_out *o, const tni_numbers *v)
{
    if (!v->known) {
        fputs("null", o->file);
    } else if (o->pack) {
        put_place(o, place_of_numbers(o->pack, v));
    } else {
        tni_write(o, "{'norm':%g,'min':%g,'max':%g,'mean':%g,'zeros':%l,'nan':%l,'inf':%l", v->norm,
                  v->min, v->max, v->mean, v->zeros, v->nan, v->inf);
        if (v->value) fputs(",\"values\":", o->file);
        if (v->value) put_values(o, v);
        fputc('}', o->file);
    }
}

/* ---- templates ------------------------------------------------------------------------------- */

static void put_id(FILE *file, int id)
{
    fprintf(file, id < 0 ? "null" : "%d", id);
}

static void put_item(const tni_out *o, char code, va_list *args)
{
    switch (code) {
    case 'i': put_id(o->file, va_arg(*args, int)); break;
    case 'd': fprintf(o->file, "%d", va_arg(*args, int)); break;
    case 'z': fprintf(o->file, "%zu", va_arg(*args, size_t)); break;
    case 'l': fprintf(o->file, "%" PRId64, va_arg(*args, int64_t)); break;
    case 'g': put_number(o, va_arg(*args, double)); break;
    case 'b': fputs(va_arg(*args, int) ? "true" : "false", o->file); break;
    case 'w': fputs(va_arg(*args, const char *), o->file); break;
    case 's': put_text(o, va_arg(*args, const char *)); break;
    case 'v': put_numbers(o, va_arg(*args, const tni_numbers *)); break;
    case 'h': fputs(tni_shape_phrase(va_arg(*args, const tn_shape *)).s, o->file); break;
    case 't': fprintf(o->file, "\"t%d\"", va_arg(*args, int)); break;
    case ',': fputs(va_arg(*args, size_t) ? "," : "", o->file); break;
    case 'n': fputs(va_arg(*args, size_t) ? ",\n" : "\n", o->file); break;
    }
}

void tni_write(const tni_out *o, const char *form, ...)
{
    va_list args;
    va_start(args, form);
    for (const char *c = form; *c; c++) {
        size_t plain = strcspn(c, "%'");
        fwrite(c, 1, plain, o->file);
        c += plain;
        if (*c == '%')
            put_item(o, *++c, &args);
        else if (*c)
            fputc('"', o->file);
        else
            break;
    }
    va_end(args);
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Whether x fits an f32, except for rounding. */
static bool fits_f32(double x)
{
    return x == 0 || !isfinite(x) || (fabs(x) >= (double)FLT_MIN && fabs(x) <= (double)FLT_MAX);
}

static bool all_fit(const tni_numbers *v)
{
    bool fit = v->value && v->n > 1;
    for (int64_t i = 0; fit && i < v->n; i++) fit = fits_f32(v->value[i]);
    return fit;
}

/* The values as f32, the lowest byte first, in base64. */
static void put_base64(FILE *file, const tni_numbers *v)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t three = 0, bits;
    int64_t n = 4 * v->n, i = 0;
    fputc('"', file);
    for (; i < n; i++) {
        float x = (float)v->value[i / 4];
        memcpy(&bits, &x, sizeof bits);
        three = three << 8 | (bits >> 8 * (i % 4) & 255);
        for (int k = 3; i % 3 == 2 && k >= 0; k--) fputc(digit[three >> 6 * k & 63], file);
        if (i % 3 == 2) three = 0;
    }
    int left = (int)(n % 3);
    three <<= left ? 8 * (3 - left) : 0;
    for (int k = 3; left && k >= 3 - left; k--) fputc(digit[three >> 6 * k & 63], file);
    fprintf(file, "%.*s\"", left ? 3 - left : 0, "==");
}

/* Numbers in the table: a single number; base64; else a list that begins with a norm. */
static void put_row(const tni_out *o, const tni_numbers *v)
{
    if (all_fit(v)) {
        put_base64(o->file, v);
    } else if (v->n == 1 && v->value && isfinite(v->value[0])) {
        put_number(o, v->value[0]);
    } else {
        tni_write(o, "[%g,%g,%g,%g,%l,%l,%l", v->norm, v->min, v->max, v->mean, v->zeros, v->nan,
                  v->inf);
        if (v->value) fputc(',', o->file);
        if (v->value) put_values(o, v);
        fputc(']', o->file);
    }
}

void tni_put_tables(const tni_out *o)
{
    const tni_pack *p = o->pack;
    tni_write(o, "'texts':[");
    for (size_t i = 0; i < p->n_texts; i++) {
        tni_write(o, "%n", i);
        put_string(o->file, p->text[i]);
    }
    tni_write(o, "],\n'values':[");
    for (size_t i = 0; i < p->n_values; i++) {
        tni_write(o, "%n", i);
        put_row(o, p->value[i]);
    }
    fputc(']', o->file);
}

void tni_pack_free(tni_pack *p)
{
    tni_arena_free(&p->arena);
    tni_map_free(&p->text_at);
    tni_map_free(&p->value_at);
}
