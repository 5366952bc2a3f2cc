/*
 * split.c - a text cut into words, by regular expressions.
 *
 * The patterns of tokenizer.json are written for Oniguruma, those of tiktoken for Rust. PCRE2 reads
 * most of them alike; where it would read something else, the pattern is rewritten or refused. A
 * stage hands each piece to the next one as soon as it is found.
 */
#include "ext/lm/tokenizer.h"

/* ---- patterns -------------------------------------------------------------------------------- */

static const struct {
    const char *name, *regex;
} patterns[] = {
    { "gpt2",
      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" },
    { "cl100k", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { "llama3", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { "qwen2", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
               " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { "o200k",
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
      "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
};

const char *tni_known_pattern(const char *name)
{
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (strcmp(patterns[i].name, name) == 0) return patterns[i].regex;
    return name;
}

/* What stands for an escape of one letter; NULL: it is refused; "": as it is. */
static const char *meaning(char letter, bool in_class)
{
    switch (letter) {
    case 's': return "\\p{White_Space}"; /* PCRE2's has U+180E */
    case 'S': return "\\P{White_Space}";
    case 'w':
        return in_class ? "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
                        : "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]";
    case 'W': return in_class ? NULL : "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]";
    case 'b':
    case 'B':
    case 'h':
    case 'H':
    case 'R':
    case 'X':
    case 'G':
    case 'K':
    case 'k':
    case 'g':
    case 'y':
    case 'Y':
    case 'O':
    case 'C':
    case 'M':
    case 'Q':
    case 'E':
    case 'N':
    case 'U': return NULL;
    default: return "";
    }
}

/* The escape at `at`, rewritten; its length, or 0: refused. */
static size_t rewrite_escape(tni_bytes *to, const char *at, bool in_class)
{
    const char *means = at[1] ? meaning(at[1], in_class) : NULL;
    if (!means) return 0;
    if (at[1] == 'u') { /* \u4e00 */
        for (int i = 2; i < 6; i++)
            if (!at[i] || !strchr("0123456789abcdefABCDEF", at[i])) return 0;
        tni_bytes_printf(to, "\\x{%.4s}", at + 2);
        return 6;
    }
    const char *close = at[2] == '{' && strchr("pPx", at[1]) ? strchr(at, '}') : NULL;
    size_t k = close ? (size_t)(close - at) + 1 : 2;
    tni_bytes_add(to, *means ? means : at, *means ? strlen(means) : k);
    return k;
}

/* In PCRE2's words. NULL, or what it cannot say. */
static const char *rewrite(tni_bytes *to, const char *regex)
{
    bool in_class = false;
    const char *opened = NULL;
    for (const char *at = regex; *at;) {
        if (*at == '\\') {
            size_t k = rewrite_escape(to, at, in_class);
            if (!k) return at;
            at += k;
            continue;
        }
        if (in_class && (*at == '[' || (at[0] == '&' && at[1] == '&'))) return at;
        /* possessive here, not there; and 0 to n times there, not here */
        if (!in_class && (strncmp(at, "}+", 2) == 0 || strncmp(at, "{,", 2) == 0)) return at;
        if (in_class && *at == ']' && at > opened + (opened[0] == '^'))
            in_class = false;
        else if (!in_class && *at == '[')
            in_class = true, opened = at + 1;
        tni_bytes_add(to, at++, 1);
    }
    return NULL;
}

static void *take(size_t n, void *user)
{
    (void)user;
    enum { BEFORE = 64 }; /* the size, and as aligned as before */
    char *block = n < SIZE_MAX / 2 ? tni_alloc(n + BEFORE) : NULL;
    if (!block) return NULL;
    memcpy(block, &n, sizeof n);
    return block + BEFORE;
}

static void give(void *block, void *user)
{
    (void)user;
    enum { BEFORE = 64 };
    size_t n;
    if (!block) return;
    memcpy(&n, (char *)block - BEFORE, sizeof n);
    tni_free((char *)block - BEFORE, n + BEFORE);
}

static pcre2_code *compile(const char *name, const char *regex, const tni_bytes *rewritten)
{
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    pcre2_compile_context *context = memory ? pcre2_compile_context_create(memory) : NULL;
    pcre2_code *code = NULL;
    if (context) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        pcre2_set_parens_nest_limit(context, 100);
        code = pcre2_compile((PCRE2_SPTR)rewritten->data, rewritten->n,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &error, &at, context);
    }
    pcre2_compile_context_free(context);
    pcre2_general_context_free(memory);
    if (code) {
        pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it, it is slow */
        return code;
    }
    if (!context || error == PCRE2_ERROR_HEAP_FAILED)
        return tni_fail(TN_E_NOMEM, "out of memory: a pattern of %s", name);
    PCRE2_UCHAR reason[160] = "";
    pcre2_get_error_message(error, reason, sizeof reason);
    return tni_fail(TN_E_UNSUPPORTED, "%s: PCRE2 cannot read the pattern %.200s: %s", name, regex,
                    (const char *)reason);
}

pcre2_code *tni_pattern(const char *name, const char *regex)
{
    tni_bytes rewritten = { 0 };
    const char *refused = rewrite(&rewritten, regex);
    tni_bytes_add(&rewritten, "", 0);
    pcre2_code *code = NULL;
    if (refused)
        tni_fail(TN_E_UNSUPPORTED, "%s: %.20s in the pattern %.200s has another meaning here", name,
                 refused, regex);
    else if (!rewritten.failed)
        code = compile(name, regex, &rewritten);
    tni_bytes_free(&rewritten);
    return code;
}

pcre2_code *tni_pattern_of_text(const char *name, const char *text)
{
    tni_bytes b = { 0 };
    for (const char *c = text; *c; c++) {
        bool sign = (unsigned char)*c < 0x80 && !(*c >= '0' && *c <= '9') &&
                    !((*c | 32) >= 'a' && (*c | 32) <= 'z');
        if (sign) tni_bytes_add(&b, "\\", 1);
        tni_bytes_add(&b, c, 1);
    }
    pcre2_code *code = b.failed ? NULL : compile(name, text, &b);
    tni_bytes_free(&b);
    return code;
}

/* ---- matching -------------------------------------------------------------------------------- */

static bool prepare(tni_work *w)
{
    enum { BACKTRACKS = 10 * 1000 * 1000, DEEPEST = 100 * 1000, HEAP_KIB = 64 * 1024 };
    if (w->match && w->limits) return true;
    if (!w->match) w->match = pcre2_match_data_create(1, NULL);
    if (!w->limits) w->limits = pcre2_match_context_create(NULL);
    if (!w->stack) w->stack = pcre2_jit_stack_create(32 * 1024, 4 * 1024 * 1024, NULL);
    if (!w->match || !w->limits)
        return tni_false(tni_error(TN_E_NOMEM, "out of memory: matching a pattern"));
    pcre2_set_match_limit(w->limits, BACKTRACKS);
    pcre2_set_depth_limit(w->limits, DEEPEST);
    pcre2_set_heap_limit(w->limits, HEAP_KIB);
    if (w->stack) pcre2_jit_stack_assign(w->limits, NULL, w->stack);
    return true;
}

int tni_match(tni_work *w, const pcre2_code *pattern, const char *text, size_t n, size_t from,
              size_t *start, size_t *end)
{
    if (!w->limits && !prepare(w)) return -1;
    int found =
        pcre2_match(pattern, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, w->match, w->limits);
    if (found == PCRE2_ERROR_NOMATCH) return 0;
    if (found < 0) {
        PCRE2_UCHAR reason[160] = "";
        pcre2_get_error_message(found, reason, sizeof reason);
        return tni_minus_one(tni_error(TN_E_INVALID,
                                       "a pattern takes too long on a text of %zu bytes: %s", n,
                                       (const char *)reason));
    }
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(w->match);
    *start = place[0];
    *end = TNI_MAX(place[1], place[0]);
    return 1;
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* A piece that may still grow. */
typedef struct pending {
    tni_work *w;
    const tni_split *split;
    size_t stage, start, end;
    const char *text;
    bool first, match, there;
} pending;

static bool hand_on(pending *p)
{
    if (!p->there || p->end == p->start) return true;
    p->there = false;
    return tni_split_words(p->w, p->stage + 1, p->text + p->start, p->end - p->start,
                           p->first && p->start == 0);
}

/* Whether a part goes with the one before it. */
static bool joins(const pending *p, bool match)
{
    switch (p->split->behaviour) {
    case TNI_CONTIGUOUS: return match == p->match;
    case TNI_WITH_PREVIOUS: return match && !p->match;
    case TNI_WITH_NEXT: return !match && p->match;
    default: return false;
    }
}

/* The next part of the text: a match of the pattern, or what is between. */
static bool part(pending *p, size_t start, size_t end, bool match)
{
    match = match != p->split->invert;
    if (start == end) return true;
    if (p->there && joins(p, match)) {
        p->end = end;
        /* what was joined ends a piece that takes one neighbour */
        p->match = match;
        return true;
    }
    if (!hand_on(p)) return false;
    if (match && p->split->behaviour == TNI_REMOVED) return true;
    p->start = start, p->end = end, p->match = match, p->there = true;
    return true;
}

static bool cut(tni_work *w, size_t stage, const char *text, size_t n, bool first)
{
    pending p = { w, &w->t->split[stage], stage, 0, 0, text, first, false, false };
    size_t done = 0, start, end;
    for (size_t from = 0; from < n;) {
        int found = tni_match(w, p.split->pattern, text, n, from, &start, &end);
        if (found < 0) return false;
        if (!found) break;
        if (!part(&p, done, start, false) || !part(&p, start, end, true)) return false;
        done = from = end;
        if (start == end) { /* an empty match only cuts */
            int32_t c;
            from += end < n ? tni_next(text + end, n - end, &c) : 1;
        }
    }
    return part(&p, done, n, false) && hand_on(&p);
}

static bool space_before(tni_work *w, size_t stage, const char *text, size_t n, bool first)
{
    if (*text == ' ') return tni_split_words(w, stage + 1, text, n, first);
    tni_bytes *to = &w->scratch[stage];
    to->n = 0;
    tni_bytes_add(to, " ", 1);
    tni_bytes_add(to, text, n);
    if (to->failed) return to->failed = false;
    return tni_split_words(w, stage + 1, to->data, to->n, first);
}

static bool metaspace(tni_work *w, size_t stage, const char *text, size_t n, bool first)
{
    const tni_split *s = &w->t->split[stage];
    tni_bytes *to = &w->scratch[stage];
    size_t k = strlen(s->text);
    bool has = *text == ' ' || (n >= k && memcmp(text, s->text, k) == 0);
    to->n = 0;
    if (!has && (s->prepend == TNI_ALWAYS || (s->prepend == TNI_FIRST && first)))
        tni_bytes_add(to, s->text, k);
    for (size_t at = 0; at < n; at++) {
        const char *space = memchr(text + at, ' ', n - at);
        size_t plain = space ? (size_t)(space - text) - at : n - at;
        tni_bytes_add(to, text + at, plain);
        if (space) tni_bytes_add(to, s->text, k);
        at += plain;
    }
    if (to->failed) return to->failed = false;
    return tni_split_words(w, stage + 1, to->data, to->n, first);
}

bool tni_split_words(tni_work *w, size_t stage, const char *text, size_t n, bool first)
{
    if (n == 0) return true;
    if (stage == w->t->n_split) return w->word(w, text, n);
    switch (w->t->split[stage].kind) {
    case TNI_SPACE_BEFORE: return space_before(w, stage, text, n, first);
    case TNI_METASPACE: return metaspace(w, stage, text, n, first);
    default: return cut(w, stage, text, n, first);
    }
}
