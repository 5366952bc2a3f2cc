/*
 * detokenize.c - ids to text, one id after the other: what the whole gives, a stream gives in
 * parts.
 */
#include "ext/lm/tokenizer.h"

/* Where a decoding stands. */
typedef struct decoding {
    const tn_tokenizer *t;
    bool special;
    int64_t index;     /* tokens so far */
    int64_t stripped;  /* characters taken off the front, by a Strip after Fuse */
    bool text_began;   /* so nothing more is taken off */
    tni_bytes raw;     /* bytes that wait: of ByteLevel, or of <0x0A> */
    tni_bytes part[2]; /* a token on its way through the parts */
    tni_bytes *out;
} decoding;

static const char lost[] = "\xef\xbf\xbd"; /* U+FFFD */

/* How many bytes at the start of what is not UTF-8 become one U+FFFD: the longest part of a
 * character (Unicode 3.9, U+FFFD substitution of maximal subparts). *whole: it may still become a
 * character. */
static size_t broken(const unsigned char *s, size_t n, bool *open)
{
    size_t want = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2, k = 1;
    *open = false;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 1;
    for (; k < want && k < n; k++) {
        unsigned low = k > 1 ? 0x80 : s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
        unsigned high = k > 1 ? 0xbf : s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
        if (s[k] < low || s[k] > high) return k;
    }
    *open = k < want;
    return k;
}

/* Writes the characters of raw; at the end, or where it cannot go on, U+FFFD. */
static void let_out(decoding *d, bool end)
{
    tni_bytes *raw = &d->raw;
    size_t at = 0;
    while (at < raw->n) {
        size_t valid = tni_utf8(raw->data + at, raw->n - at);
        tni_bytes_add(d->out, raw->data + at, valid);
        at += valid;
        if (at == raw->n) break;
        bool open;
        size_t k = broken((unsigned char *)raw->data + at, raw->n - at, &open);
        if (open && !end) break;
        tni_bytes_add(d->out, lost, 3);
        at += k;
    }
    raw->n -= at;
    if (at) memmove(raw->data, raw->data + at, raw->n);
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void replace_all(tni_bytes *to, const tni_bytes *from, const char *text, const char *by)
{
    size_t k = strlen(text), at = 0;
    while (at < from->n) {
        bool here = k && from->n - at >= k && memcmp(from->data + at, text, k) == 0;
        tni_bytes_add(to, here ? by : from->data + at, here ? strlen(by) : 1);
        at += here ? k : 1;
    }
}

/* WordPiece's: a space before each word but the first, "##" taken off, and no space before signs
 * that follow a word, each token for itself. */
static void join_piece(const decoding *d, const tni_undo *u, tni_bytes *to, const tni_bytes *from,
                       tni_bytes *other)
{
    static const char *const clean[][2] = {
        { " .", "." },   { " ?", "?" },     { " !", "!" },    { " ,", "," },
        { " ' ", "'" },  { " n't", "n't" }, { " 'm", "'m" },  { " do not", " don't" },
        { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" }
    };
    size_t k = strlen(u->text);
    bool continues = k && from->n >= k && memcmp(from->data, u->text, k) == 0;
    if (d->index > 0 && !continues) tni_bytes_add(to, " ", 1);
    size_t skip = d->index > 0 && continues ? k : 0;
    if (from->n > skip) tni_bytes_add(to, from->data + skip, from->n - skip);
    for (size_t i = 0; u->flag && i < sizeof clean / sizeof *clean; i++) {
        other->n = 0;
        replace_all(other, to, clean[i][0], clean[i][1]);
        tni_bytes swap = *to;
        *to = *other;
        *other = swap;
    }
}

static void strip(decoding *d, const tni_undo *u, bool fused, tni_bytes *to, const tni_bytes *from)
{
    size_t k = strlen(u->text), at = 0, end = from->n;
    int64_t taken = fused ? d->stripped : 0;
    bool stop = fused && d->text_began;
    while (!stop && k && taken < u->start && end - at >= k &&
           memcmp(from->data + at, u->text, k) == 0)
        at += k, taken++;
    for (int64_t i = 0; !fused && i < u->stop && end - at >= k && k &&
                        memcmp(from->data + end - k, u->text, k) == 0;
         i++)
        end -= k;
    if (fused) d->stripped = taken, d->text_began = d->text_began || end > at;
    if (end > at) tni_bytes_add(to, from->data + at, end - at);
}

static int hex(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* The byte of "<0x0A>"; -1: it is no such token. */
static int byte_of(const tni_bytes *token)
{
    const char *s = token->data;
    if (token->n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int high = hex(s[3]), low = hex(s[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* A run of <0x..> is text if all of it is, else one U+FFFD for each. */
static void end_run(tni_bytes *to, tni_bytes *raw)
{
    bool valid = tni_utf8(raw->data, raw->n) == raw->n;
    if (valid) tni_bytes_add(to, raw->data, raw->n);
    for (size_t i = 0; i < raw->n && !valid; i++) tni_bytes_add(to, lost, 3);
    raw->n = 0;
}

static void pass(decoding *d, size_t from, int which, bool fused);

/* One part's work on d->part[which]; the result is in the other one. False: nothing goes on. */
static bool step(decoding *d, size_t i, int which, bool *fused)
{
    const tni_undo *u = &d->t->undo[i];
    tni_bytes *from = &d->part[which], *to = &d->part[!which];
    tni_bytes other = { 0 };
    to->n = 0;
    switch (u->kind) {
    case TNI_UNDO_FUSE: *fused = true; break;
    case TNI_UNDO_PIECES:
        join_piece(d, u, to, from, &other);
        tni_bytes_free(&other);
        return true;
    case TNI_UNDO_META: /* the first token has no spaces */
        replace_all(to, from, u->text, u->flag && d->index == 0 ? "" : " ");
        return true;
    case TNI_UNDO_STRIP: strip(d, u, *fused, to, from); return true;
    case TNI_UNDO_REPLACE: replace_all(to, from, u->text, u->by); return true;
    case TNI_UNDO_BYTES: tni_bytes_add(&d->raw, from->data, from->n); return false;
    case TNI_UNDO_FALLBACK: {
        int byte = byte_of(from);
        char c = (char)byte;
        if (byte >= 0) return tni_bytes_add(&d->raw, &c, 1), false;
        if (!d->raw.n) break;
        /* the run goes on its way first, then the token */
        tni_bytes token = *from;
        *from = (tni_bytes){ 0 };
        end_run(from, &d->raw);
        pass(d, i + 1, which, *fused);
        tni_bytes_free(from);
        *from = token;
        break;
    }
    }
    to->n = 0;
    tni_bytes_add(to, from->data, from->n);
    return true;
}

/* The token in d->part[which] through the parts from `from` on, to the end of the text. */
static void pass(decoding *d, size_t from, int which, bool fused)
{
    for (size_t i = from; i < d->t->n_undo; i++, which = !which)
        if (!step(d, i, which, &fused)) return;
    tni_bytes_add(d->out, d->part[which].data, d->part[which].n);
}

static bool ends_in(const tn_tokenizer *t, int kind, size_t *place)
{
    for (*place = 0; *place < t->n_undo; ++*place)
        if ((int)t->undo[*place].kind == kind) return true;
    return false;
}

static void add_token(decoding *d, int64_t id)
{
    const tn_tokenizer *t = d->t;
    if (id < 0 || id >= (int64_t)t->n_token) return;
    const tni_token *token = &t->token[id];
    if (!token->there || (token->special && !d->special)) return;
    bool bytes = t->n_undo && t->undo[0].kind == TNI_UNDO_BYTES;
    if (!t->n_undo && d->index > 0) tni_bytes_add(d->out, " ", 1);
    d->part[0].n = 0;
    tni_bytes_add(&d->part[0], t->texts.data + (bytes ? token->bytes : token->text),
                  bytes ? token->n_bytes : token->n_text);
    pass(d, 0, 0, false);
    d->index++;
    if (bytes) let_out(d, false);
}

static void finish(decoding *d)
{
    size_t place;
    if (ends_in(d->t, TNI_UNDO_FALLBACK, &place) && d->raw.n) {
        bool fused = false;
        for (size_t i = 0; i < place; i++) fused = fused || d->t->undo[i].kind == TNI_UNDO_FUSE;
        d->part[0].n = 0;
        end_run(&d->part[0], &d->raw);
        pass(d, place + 1, 0, fused);
    }
    let_out(d, true);
    d->index = d->stripped = 0;
    d->text_began = false;
}

static bool failed(const decoding *d)
{
    return d->raw.failed || d->part[0].failed || d->part[1].failed || d->out->failed;
}

static void free_parts(decoding *d)
{
    tni_bytes_free(&d->raw);
    tni_bytes_free(&d->part[0]);
    tni_bytes_free(&d->part[1]);
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
    finish(&d);
    tni_bytes_add(&out, "", 1);
    bool ok = !failed(&d);
    free_parts(&d);
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
    if (!failed(&s->d)) return s->out.data;
    s->d.raw.failed = s->d.part[0].failed = s->d.part[1].failed = s->out.failed = false;
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
    finish(&stream->d);
    return text_of(stream);
}

void tn_token_stream_free(tn_token_stream *stream)
{
    if (!stream) return;
    free_parts(&stream->d);
    tni_bytes_free(&stream->out);
    tni_free(stream, sizeof *stream);
}
