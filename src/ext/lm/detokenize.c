/* detokenize.c - ids to text, one by one: what the whole gives, a stream gives in parts. */
#include "ext/lm/tokenizer.h"

typedef struct decoding {
    const tn_tokenizer *t;
    bool special;
    bool begun;    /* a token came */
    tni_bytes raw; /* bytes that wait */
    tni_bytes *out;
} decoding;

/* Takes out spaces that English has not, as the package tokenizers does: in this order. */
static void clean_up(tni_bytes *b)
{
    static const char *const pairs[][2] = {
        { " .", "." },   { " ?", "?" },     { " !", "!" },    { " ,", "," },
        { " ' ", "'" },  { " n't", "n't" }, { " 'm", "'m" },  { " do not", " don't" },
        { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" }
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && !b->failed; i++) {
        const size_t from = strlen(pairs[i][0]), to = strlen(pairs[i][1]);
        char *at = b->data;
        while ((at = memmem(at, b->n - (size_t)(at - b->data), pairs[i][0], from))) {
            memcpy(at, pairs[i][1], to);
            memmove(at + to, at + from, b->n - (size_t)(at - b->data) - from);
            b->n -= from - to;
        }
    }
}

/* WordPiece's: a space in front, or the prefix taken off, but of the first one. */
static void add_piece(decoding *d, const char *text, size_t n)
{
    const size_t prefix = strlen(d->t->prefix);
    const bool continues = n >= prefix && memcmp(text, d->t->prefix, prefix) == 0;
    const size_t skip = d->begun && continues ? prefix : 0;
    if (d->begun && !continues) tni_bytes_add(&d->raw, " ", 1);
    tni_bytes_add(&d->raw, text + skip, n - skip);
    if (d->t->cleanup) clean_up(&d->raw);
}

/* Of a marked text, whose first space may be none. */
static void say(decoding *d, const char *text, size_t n)
{
    const size_t skip = d->t->strip && !d->begun && n && *text == ' ';
    if (n) tni_bytes_add(d->out, text + skip, n - skip);
    d->begun = d->begun || n;
}

/* What a run of bytes spells, or U+FFFD for each if it is no text. */
static void end_run(decoding *d)
{
    const size_t n = d->raw.n;
    const bool valid = n == 0 || tni_utf8(d->raw.data, n) == n;
    for (size_t i = 0; i < n && !valid; i++) say(d, "\xef\xbf\xbd", 3);
    if (valid) say(d, d->raw.data, n);
    d->raw.n = 0;
}

/* Writes the characters of raw; at the end, or where it cannot go on, one U+FFFD for the longest
 * part of a character (Unicode 3.9, U+FFFD substitution of maximal subparts). */
static void let_out(decoding *d, bool end)
{
    tni_bytes *raw = &d->raw;
    if (d->t->marked) end_run(d);
    size_t at = 0;
    while (at < raw->n) {
        size_t valid = tni_utf8(raw->data + at, raw->n - at);
        tni_bytes_add(d->out, raw->data + at, valid);
        at += valid;
        if (at == raw->n) break;
        size_t length, k = tni_utf8_begun(raw->data + at, raw->n - at, &length);
        if (at + k == raw->n && !end) break; /* it may still become a character */
        tni_bytes_add(d->out, "\xef\xbf\xbd", 3);
        at += TNI_MAX(k, (size_t)1);
    }
    raw->n -= at;
    if (at) memmove(raw->data, raw->data + at, raw->n);
}

static void add_token(decoding *d, int64_t id)
{
    const tn_tokenizer *t = d->t;
    if (id < 0 || id >= (int64_t)t->n_token) return;
    const tni_token *token = &t->token[id];
    if (!token->there || (token->special && !d->special)) return;
    if (t->marked && !token->spells) {
        end_run(d);
        say(d, t->texts.data + token->bytes.at, token->bytes.n);
        return;
    }
    if (t->pieces)
        add_piece(d, t->texts.data + token->text.at, token->text.n);
    else
        tni_bytes_add(&d->raw, t->texts.data + token->bytes.at, token->bytes.n);
    if (t->marked) return;
    d->begun = true;
    let_out(d, t->pieces);
}

/* ---- the whole, and streams ------------------------------------------------------------------ */

tn_status tn_tokenizer_decode(const tn_tokenizer *t, const int64_t *ids, int64_t n,
                              tn_decode_options options, tn_chars *chars)
{
    const char *function = "tn_tokenizer_decode";
    if (!t) return tni_poison(function, "t");
    if (!ids && n > 0) return tni_poison(function, "ids");
    if (!chars) return tni_poison(function, "chars");
    tni_bytes out = { chars->text, (size_t)chars->n, (size_t)chars->capacity, false };
    decoding d = { .t = t, .special = options.special, .out = &out };
    for (int64_t i = 0; i < n; i++) add_token(&d, ids[i]);
    let_out(&d, true);
    tni_bytes_add(&out, "", 1);
    bool ok = !d.raw.failed && !out.failed;
    tni_bytes_free(&d.raw);
    *chars = (tn_chars){ out.data, ok ? (int64_t)out.n - 1 : chars->n, (int64_t)out.capacity };
    if (ok) return TN_OK;
    if (chars->text && chars->n < chars->capacity) chars->text[chars->n] = 0;
    return tni_pending();
}

struct tn_token_stream {
    decoding d;
    tni_bytes out;
};

tn_token_stream *tn_token_stream_new(const tn_tokenizer *t, tn_decode_options options)
{
    if (!t) return tni_poisoned("tn_token_stream_new", "t");
    tn_token_stream *s = tni_calloc_n(1, sizeof *s);
    if (!s) return NULL;
    s->d = (decoding){ .t = t, .special = options.special, .out = &s->out };
    return s;
}

static const char *text_of(tn_token_stream *s)
{
    tni_bytes_add(&s->out, "", 1);
    if (!s->d.raw.failed && !s->out.failed) return s->out.data;
    s->d.raw.failed = s->out.failed = false;
    return NULL;
}

const char *tn_token_stream_add(tn_token_stream *stream, int64_t id)
{
    if (!stream) return tni_poisoned("tn_token_stream_add", "stream");
    stream->out.n = 0;
    add_token(&stream->d, id);
    return text_of(stream);
}

const char *tn_token_stream_end(tn_token_stream *stream)
{
    if (!stream) return tni_poisoned("tn_token_stream_end", "stream");
    stream->out.n = 0;
    let_out(&stream->d, true);
    stream->d.begun = false;
    return text_of(stream);
}

void tn_token_stream_free(tn_token_stream *stream)
{
    if (!stream) return;
    tni_bytes_free(&stream->d.raw);
    tni_bytes_free(&stream->out);
    tni_free(stream, sizeof *stream);
}
