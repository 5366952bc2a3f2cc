/* sample.c - see sample.h */
#include "sample.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

vocabulary vocabulary_of(const tn_text *text)
{
    vocabulary v = { .n = text->vocab };
    memcpy(v.byte_of, text->byte_of, sizeof v.byte_of);
    memcpy(v.id_of, text->id_of, sizeof v.id_of);
    return v;
}

void vocabulary_write(const vocabulary *v, char *hex)
{
    hex[0] = 0;
    for (int i = 0; i < v->n; i++) snprintf(hex + 2 * i, 3, "%02x", v->byte_of[i]);
}

bool vocabulary_read(vocabulary *v, const char *hex)
{
    size_t digits = strlen(hex);
    *v = (vocabulary){ .n = (int)(digits / 2) };
    for (int b = 0; b < 256; b++) v->id_of[b] = -1;
    if (digits % 2 || digits == 0 || digits > 512) return false;
    for (int i = 0; i < v->n; i++) {
        char pair[3] = { hex[2 * i], hex[2 * i + 1], 0 };
        if (!isxdigit((unsigned char)pair[0]) || !isxdigit((unsigned char)pair[1])) return false;
        long byte = strtol(pair, NULL, 16);
        if (v->id_of[byte] >= 0) return false;
        v->byte_of[i] = (unsigned char)byte;
        v->id_of[byte] = i;
    }
    return true;
}

bool vocabulary_equal(const vocabulary *a, const vocabulary *b)
{
    return a->n == b->n && !memcmp(a->byte_of, b->byte_of, (size_t)a->n);
}

/* ---- one character after the other ----------------------------------------------------------- */

typedef struct candidate {
    float logit;
    int id;
} candidate;

static int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->id - y->id; /* equal logits: always in the same order */
}

/* Draws an id with probability softmax(logit / temperature) among the k likeliest. */
static int draw(candidate *c, int n, const sample_options *o, tn_generator *g)
{
    double sum = 0, u = ((double)tn_generator_u32(g) + 0.5) / 4294967296.0;
    qsort(c, (size_t)n, sizeof *c, by_logit);
    if (o->temperature <= 0) return c[0].id;
    int k = o->top_k > 0 && o->top_k < n ? (int)o->top_k : n;
    for (int i = 0; i < k; i++) sum += exp((c[i].logit - c[0].logit) / o->temperature);
    u *= sum;
    for (int i = 0; i < k - 1; i++) {
        u -= exp((c[i].logit - c[0].logit) / o->temperature);
        if (u < 0) return c[i].id;
    }
    return c[k - 1].id;
}

/* Logits for what follows the n ids, into c. Returns how many, -1 on failure. */
static int next_logits(tn_module *model, const unsigned char *ids, int64_t n, tn_device device,
                       candidate *c)
{
    tn_scope scope = tn_scope_begin();
    int64_t window[4096];
    for (int64_t i = 0; i < n; i++) window[i] = ids[i];
    tn_tensor *x = tn_to(tn_from_data(window, TN_SHAPE(1, n), TN_I64), device);
    tn_tensor *last = tn_select(tn_select(tn_forward(model, x), 0, 0), 0, -1);
    int vocab = last ? (int)tn_numel(last) : -1;
    float logit[256];
    if (vocab > 256 || tn_copy_out(last, logit, sizeof *logit * (size_t)vocab, TN_F32)) vocab = -1;
    for (int i = 0; i < vocab; i++) c[i] = (candidate){ logit[i], i };
    tn_scope_end(scope);
    return vocab;
}

tn_status sample(tn_module *model, unsigned char *ids, int64_t prompt_length, sample_options o)
{
    bool training = tn_training(model);
    bool recording = tn_set_grad_enabled(false);
    tn_status status = tn_eval(model);
    tn_generator *g = tn_generator_new(o.seed);
    if (!g) status = tn_error_status();
    int64_t context = o.context < 4096 ? o.context : 4096;
    candidate c[256];
    for (int64_t n = prompt_length; status == TN_OK && n < prompt_length + o.length; n++) {
        int64_t seen = n < context ? n : context;
        int vocab = next_logits(model, ids + n - seen, seen, o.device, c);
        if (vocab < 0) {
            status = tn_error_status();
            break;
        }
        ids[n] = (unsigned char)draw(c, vocab, &o, g);
        if (o.wrote) o.wrote(ids[n], o.user);
    }
    tn_generator_free(g);
    tn_set_grad_enabled(recording);
    if (training) tn_train(model, true);
    return status;
}

/* ---- words ----------------------------------------------------------------------------------- */

typedef struct word {
    const unsigned char *ids;
    int64_t n;
    bool known;
} word;

static int by_ids(const void *a, const void *b)
{
    const word *x = a, *y = b;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return memcmp(x->ids, y->ids, (size_t)x->n);
}

/* The next run of letters at or after *at; false at the end. letter[id] says what a letter is. */
static bool next_word(const unsigned char *ids, int64_t n, const bool *letter, int64_t *at, word *w)
{
    int64_t i = *at;
    while (i < n && !letter[ids[i]]) i++;
    *w = (word){ .ids = ids + i };
    while (i < n && letter[ids[i]]) i++;
    w->n = ids + i - w->ids;
    *at = i;
    return w->n > 0;
}

word_count count_words(const unsigned char *ids, int64_t n, const vocabulary *v,
                       const tn_text *text)
{
    word_count count = { 0 };
    bool letter[256] = { false };
    for (int i = 0; i < v->n; i++) letter[i] = isalpha(v->byte_of[i]) || v->byte_of[i] >= 128;
    word *list = malloc(((size_t)n / 2 + 1) * sizeof *list);
    if (!list) return count;

    while (n > 0 && letter[ids[n - 1]]) n--;
    word w;
    for (int64_t at = 0; next_word(ids, n, letter, &at, &w);) list[count.words++] = w;
    if (count.words) qsort(list, (size_t)count.words, sizeof *list, by_ids);

    /* One pass over the training text; equal words of the sample stand side by side in the list. */
    for (int64_t at = 0; count.words && next_word(text->train, text->n_train, letter, &at, &w);) {
        word *hit = bsearch(&w, list, (size_t)count.words, sizeof *list, by_ids);
        if (hit) hit->known = true;
    }
    for (int64_t i = 0, j; i < count.words; i = j) {
        bool known = false;
        for (j = i; j < count.words && !by_ids(&list[i], &list[j]); j++) known |= list[j].known;
        if (known) count.known += j - i;
    }
    free(list);
    return count;
}
