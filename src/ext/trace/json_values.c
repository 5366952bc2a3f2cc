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
    char *copy = tni_strdup(text);
    if (!copy) return -1;
    if (!tni_room(&p->text, &p->text_room, p->n_texts, 1, sizeof *p->text) ||
        tni_put(&p->text_at, copy, (int)p->n_texts) != TN_OK) {
        tni_strfree(copy);
        return -1;
    }
    p->text[p->n_texts] = copy;
    return (int)p->n_texts++;
}

static void put_place(const tni_out *o, int at)
{
    o->pack->failed |= at < 0;
    fprintf(o->file, "%d", at);
}

void tni_put_text(const tni_out *o, const char *text)
{
    if (o->pack)
        put_place(o, place_of_text(o->pack, text));
    else
        put_string(o->file, text);
}

/* ---- numbers --------------------------------------------------------------------------------- */

void tni_put_number(const tni_out *o, double x)
{
    if (isfinite(x))
        fprintf(o->file, "%.9g", x);
    else
        fprintf(o->file, isnan(x) ? "\"nan\"" : x > 0 ? "\"inf\"" : "\"-inf\"");
}

static void put_field(const tni_out *o, const char *name, double x)
{
    fprintf(o->file, "\"%s\":", name);
    tni_put_number(o, x);
    fputc(',', o->file);
}

static void put_values(const tni_out *o, const tni_numbers *v)
{
    fputc('[', o->file);
    for (int64_t i = 0; i < v->n; i++) {
        if (i) fputc(',', o->file);
        tni_put_number(o, v->value[i]);
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
    if (!tni_room(&p->value, &p->value_room, p->n_values, 1, sizeof(tni_numbers *)) ||
        (at < 0 && tni_put(&p->value_at, key, (int)p->n_values) != TN_OK))
        return -1;
    p->value[p->n_values] = v;
    return (int)p->n_values++;
}

void tni_put_numbers(const tni_out *o, const tni_numbers *v)
{
    if (!v->known) {
        fprintf(o->file, "null");
        return;
    }
    if (o->pack) {
        put_place(o, place_of_numbers(o->pack, v));
        return;
    }
    fputc('{', o->file);
    put_field(o, "norm", v->norm);
    put_field(o, "min", v->min);
    put_field(o, "max", v->max);
    put_field(o, "mean", v->mean);
    fprintf(o->file, "\"zeros\":%" PRId64 ",\"nan\":%" PRId64 ",\"inf\":%" PRId64, v->zeros, v->nan,
            v->inf);
    if (v->value) {
        fprintf(o->file, ",\"values\":");
        put_values(o, v);
    }
    fputc('}', o->file);
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
        tni_put_number(o, v->value[0]);
    } else {
        const double x[] = { v->norm, v->min, v->max, v->mean };
        for (int i = 0; i < 4; i++) {
            fputc(i ? ',' : '[', o->file);
            tni_put_number(o, x[i]);
        }
        fprintf(o->file, ",%" PRId64 ",%" PRId64 ",%" PRId64, v->zeros, v->nan, v->inf);
        if (v->value) {
            fputc(',', o->file);
            put_values(o, v);
        }
        fputc(']', o->file);
    }
}

void tni_put_tables(const tni_out *o)
{
    const tni_pack *p = o->pack;
    fprintf(o->file, "\"texts\":[");
    for (size_t i = 0; i < p->n_texts; i++) {
        fprintf(o->file, i ? ",\n" : "\n");
        put_string(o->file, p->text[i]);
    }
    fprintf(o->file, "],\n\"values\":[");
    for (size_t i = 0; i < p->n_values; i++) {
        fprintf(o->file, i ? ",\n" : "\n");
        put_row(o, p->value[i]);
    }
    fputc(']', o->file);
}

void tni_pack_free(tni_pack *p)
{
    for (size_t i = 0; i < p->n_texts; i++) tni_strfree(p->text[i]);
    tni_room_free(&p->text, &p->text_room, sizeof *p->text);
    tni_room_free(&p->value, &p->value_room, sizeof(tni_numbers *));
    tni_map_free(&p->text_at);
    tni_map_free(&p->value_at);
}
