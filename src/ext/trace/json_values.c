/*
 * json_values.c - items of JSON from templates: texts, numbers, shapes. A number has nine digits,
 * more than an f32 has.
 */
#include <math.h>

#include "io/json.h"
#include "ext/trace/words.h"

/* ---- texts ----------------------------------------------------------------------------------- */

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
    if (c == '"' || c == '\\')
        fprintf(file, "\\%c", c);
    else if (c < ' ' || c == '<')
        fprintf(file, "\\u%04x", c);
    else
        fputc(c, file);
}

static void put_text(FILE *file, const char *text)
{
    fputs(text ? "\"" : "null", file);
    if (!text) return;
    tni_escape(file, text, put_byte);
    fputc('"', file);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void put_number(FILE *file, double x)
{
    if (isfinite(x))
        fprintf(file, "%.9g", x);
    else
        fprintf(file, isnan(x) ? "\"nan\"" : x > 0 ? "\"inf\"" : "\"-inf\"");
}

static void put_values(FILE *file, const tni_numbers *v)
{
    for (int64_t i = 0; i < v->n; i++) {
        fputc(i ? ',' : '[', file);
        put_number(file, v->value[i]);
    }
    fputc(']', file);
}

static void put_numbers(const tni_words *o, const tni_numbers *v)
{
    if (!v->known) {
        fputs("null", o->file);
        return;
    }
    tni_write(o, "{'norm':%g,'min':%g,'max':%g,'mean':%g,'zeros':%l,'nan':%l,'inf':%l", v->norm,
              v->min, v->max, v->mean, v->zeros, v->nan, v->inf);
    fprintf(o->file, ",\"hash\":\"%016" PRIx64 "\"", v->hash);
    if (v->value) fputs(",\"values\":", o->file);
    if (v->value) put_values(o->file, v);
    fputc('}', o->file);
}

/* ---- templates ------------------------------------------------------------------------------- */

static void put_id(FILE *file, int id)
{
    fprintf(file, id < 0 ? "null" : "%d", id);
}

static void put_item(const tni_words *o, char code, va_list *args)
{
    FILE *file = o->file;
    switch (code) {
    case 'i': put_id(file, va_arg(*args, int)); break;
    case 'd': fprintf(file, "%d", va_arg(*args, int)); break;
    case 'z': fprintf(file, "%zu", va_arg(*args, size_t)); break;
    case 'l': fprintf(file, "%" PRId64, va_arg(*args, int64_t)); break;
    case 'g': put_number(file, va_arg(*args, double)); break;
    case 'b': fputs(va_arg(*args, int) ? "true" : "false", file); break;
    case 'w': fputs(va_arg(*args, const char *), file); break;
    case 's': put_text(file, va_arg(*args, const char *)); break;
    case 'v': put_numbers(o, va_arg(*args, const tni_numbers *)); break;
    case 'h': fputs(tni_shape_phrase(va_arg(*args, const tn_shape *)).s, file); break;
    case 't': fprintf(file, "\"t%d\"", va_arg(*args, int)); break;
    case ',': fputs(va_arg(*args, size_t) ? "," : "", file); break;
    case 'n': fputs(va_arg(*args, size_t) ? ",\n" : "\n", file); break;
    }
}

void tni_write(const tni_words *o, const char *form, ...)
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
