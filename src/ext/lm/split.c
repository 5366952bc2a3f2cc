/*
 * split.c - a text cut into words, by regular expressions.
 *
 * Patterns of tokenizer.json are written for Oniguruma. PCRE2 reads most of them alike; where it
 * would read something else, the pattern is rewritten or refused. A stage hands each piece to the
 * next one as soon as it is found.
 */
#include "ext/lm/tokenizer.h"

/* ---- patterns -------------------------------------------------------------------------------- */

/* What stands for an escape of one letter; NULL: it means something else here; "": as it is. */
static const char *meaning(char letter)
{
    if (letter == 's') return "\\p{White_Space}"; /* PCRE2's has U+180E */
    if (letter == 'S') return "\\P{White_Space}";
    return strchr("wWbBhHvVRXGKkgyYOCMQENU", letter) ? NULL : "";
}

/* The escape at `at`, rewritten; its length, or 0: refused. */
static size_t rewrite_escape(tni_bytes *to, const char *at)
{
    const char *means = at[1] ? meaning(at[1]) : NULL;
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

/* A group other than (...), (?:...), (?i:...) or one that looks ahead or back. */
static bool odd_group(const char *at)
{
    return at[1] == '?' && !(at[2] && strchr(":=!<>", at[2])) && strncmp(at + 2, "i:", 2) != 0;
}

/* In PCRE2's words. NULL, or what it cannot say. */
static const char *rewrite(tni_bytes *to, const char *regex)
{
    bool in_class = false;
    const char *opened = NULL;
    for (const char *at = regex; *at;) {
        if (*at == '\\') {
            size_t k = rewrite_escape(to, at);
            if (!k) return at;
            at += k;
            continue;
        }
        if (in_class && (*at == '[' || (at[0] == '&' && at[1] == '&'))) return at;
        /* possessive here, not there; lazy here, optional there; 0 to n times there, not here */
        if (!in_class && (!strncmp(at, "}+", 2) || !strncmp(at, "}?", 2) || !strncmp(at, "{,", 2)))
            return at;
        if (!in_class && *at == '(' && (at[1] == '*' || odd_group(at))) return at;
        if (in_class && *at == ']' && at > opened + (opened[0] == '^'))
            in_class = false;
        else if (!in_class && *at == '[')
            in_class = true, opened = at + 1;
        tni_bytes_add(to, at++, 1);
    }
    return NULL;
}

pcre2_code *tni_pattern(const char *name, const char *regex)
{
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) rewritten = { 0 };
    const char *refused = rewrite(&rewritten, regex);
    if (refused)
        return tni_fail(TN_E_UNSUPPORTED,
                        "%s: %.20s in the pattern %.200s has another meaning here", name, refused,
                        regex);
    tni_bytes_add(&rewritten, "", 0);
    if (rewritten.failed) return NULL;
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_code *code = pcre2_compile(
        (PCRE2_SPTR)rewritten.data, rewritten.n,
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, NULL);
    uint32_t empty = 0;
    if (code && pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty) == 0 && empty) {
        pcre2_code_free(code);
        return tni_fail(TN_E_UNSUPPORTED, "%s: the pattern %.200s finds empty words", name, regex);
    }
    if (code) {
        pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it, it is slow */
        return code;
    }
    if (error == PCRE2_ERROR_HEAP_FAILED)
        return tni_fail(TN_E_NOMEM, "out of memory: a pattern of %s", name);
    PCRE2_UCHAR reason[160] = "";
    pcre2_get_error_message(error, reason, sizeof reason);
    return tni_fail(TN_E_UNSUPPORTED, "%s: PCRE2 cannot read the pattern %.200s: %s", name, regex,
                    (const char *)reason);
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

static bool cut(tni_work *w, size_t stage, const char *text, size_t n)
{
    if (!prepare(w)) return false;
    for (size_t done = 0, start, end; done < n; done = end) {
        const int found = pcre2_match(w->t->split[stage], (PCRE2_SPTR)text, n, done,
                                      PCRE2_NO_UTF_CHECK, w->match, w->limits);
        if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
            PCRE2_UCHAR reason[160] = "";
            pcre2_get_error_message(found, reason, sizeof reason);
            return tni_false(tni_error(TN_E_INVALID,
                                       "a pattern takes too long on a text of %zu bytes: %s", n,
                                       (const char *)reason));
        }
        const PCRE2_SIZE *place = pcre2_get_ovector_pointer(w->match);
        start = found < 0 ? n : place[0], end = found < 0 ? n : place[1];
        if (found >= 0 && start >= end)
            return tni_false(tni_error(TN_E_INVALID, "tokenizer: a pattern finds an empty word"));
        if (!tni_split_words(w, stage + 1, text + done, start - done)) return false;
        if (!tni_split_words(w, stage + 1, text + start, end - start)) return false;
    }
    return true;
}

/* ---- stages ---------------------------------------------------------------------------------- */

static bool space_before(tni_work *w, size_t stage, const char *text, size_t n)
{
    if (*text == ' ') return tni_split_words(w, stage + 1, text, n);
    tni_bytes *to = &w->scratch;
    to->n = 0;
    tni_bytes_add(to, " ", 1);
    tni_bytes_add(to, text, n);
    return to->failed ? (to->failed = false) : tni_split_words(w, stage + 1, to->data, to->n);
}

bool tni_split_words(tni_work *w, size_t stage, const char *text, size_t n)
{
    if (n == 0) return true;
    if (w->train && stage == w->t->n_split) return tni_train_word(w->train, text, n);
    if (w->t->marked) return tni_marked_words(w, text, n);
    if (w->t->pieces) return tni_bert_words(w, text, n);
    if (stage == w->t->n_split) return tni_word_ids(w, text, n);
    return w->t->split[stage] ? cut(w, stage, text, n) : space_before(w, stage, text, n);
}
