/*
 * test_generate.c - the loop of generation: over a stand-in whose logits are a known function of
 * the tokens so far, and over small models.
 *
 * Seen to fail: in src/ext/lm/generate.c, the last of several stop strings taken, one looked for in
 * the last bytes only or left in the text; nothing held back, or a byte less; half a character lost
 * at the end; a piece that is not ended, or ends the text; steps that record, or without a scope;
 * the prompt as generated; eos suppressed once too often or never; log-probabilities of processed
 * logits; draws without row or step; rows that go on behind their end; a prompt's last token read
 * again and again, its padding read; a cache too large, too small, of other rows, or left behind;
 * train mode or memory not given back; a model not held. In src/ext/lm/perplexity.c, tokens counted
 * twice, scored by the logits behind them, or in train mode.
 */
#include "ext/lm/generate.h"
#include "files.h"
#include "scarce.h"

/* ---- a decoder that remembers ---------------------------------------------------------------- */

enum { V = 29, ROOM = 64, ROWS = 8 };

/* The tokens so far are its cache. */
typedef struct parrot {
    tn_module base;
    tn_tensor *lengths;
    int64_t batch, capacity, n[ROWS], ids[ROWS][ROOM];
    int64_t steps, failing; /* calls so far; the one that fails, from 1 */
    const int64_t *script;  /* NULL, or the tokens behind the first one */
    bool trained;           /* a call was in train mode, */
    bool recorded;          /* or would have been recorded */
} parrot;

static const tn_module_type parrot_type = { .name = "Parrot", .size = sizeof(parrot) };

static parrot *parrot_new(void)
{
    parrot *p = tn_module_new(&parrot_type);
    assert_made(p);
    tn_register_buffer(&p->base, "lengths", &p->lengths, TN_NONE, TN_CACHE);
    assert_made(tn_module_done(&p->base));
    (void)owned(&p->base);
    assert_ok(tn_eval(&p->base));
    return p;
}

/* In [-4, 4): the logit of v behind n tokens. */
static float logit(const int64_t *ids, int64_t n, int64_t v)
{
    uint64_t h = 14695981039346656037u + (uint64_t)v * 1000003;
    for (int64_t i = 0; i < n; i++) h = (h ^ (uint64_t)(ids[i] + 1)) * 1099511628211u;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    h ^= h >> 32;
    return (float)((double)(h >> 40) / (1 << 21) - 4);
}

static tn_status parrot_info(const tn_module *m, tn_lm_info *info)
{
    const parrot *p = (const parrot *)m;
    *info = (tn_lm_info){ .vocab_size = V, .n_eos = 1, .eos = { 7 }, .capacity = p->capacity };
    return TN_OK;
}

static tn_tensor *parrot_cache(tn_module *m)
{
    return ((parrot *)m)->lengths;
}

static tn_status parrot_set_cache(tn_module *m, int64_t batch, int64_t capacity)
{
    parrot *p = (parrot *)m;
    ck_assert_int_le(batch, ROWS);
    ck_assert_int_le(capacity, ROOM);
    p->batch = batch, p->capacity = capacity;
    memset(p->n, 0, sizeof p->n);
    tn_status status = TN_OK;
    TN_SCOPE
    {
        tn_tensor *lengths = batch ? tn_full_as(TN_SHAPE(batch), 0, TN_I64, tn_cpu()) : TN_NONE;
        status = lengths ? tn_assign(&p->lengths, lengths) : tn_error_status();
    }
    return status;
}

static tn_tensor *parrot_next(tn_module *m, tn_tensor *ids, tn_tensor *lengths)
{
    parrot *p = (parrot *)m;
    p->trained |= tn_training(m);
    p->recorded |= tn_grad_enabled();
    if (++p->steps == p->failing) return tn_fail(TN_E_STATE, "parrot: no more");
    if (!ids || !lengths) return NULL;
    tn_tensor *y = tn_empty(TN_SHAPE(p->batch, V));
    float *to = y ? tn_data_mut(y) : NULL;
    for (int64_t b = 0; to && b < p->batch; b++) {
        int64_t n = tn_is_none(lengths) ? tn_size(ids, 1) : (int64_t)tn_at(lengths, TN_INDEX(b));
        for (int64_t i = 0; i < n; i++) {
            ck_assert_int_lt(p->n[b], p->capacity);
            p->ids[b][p->n[b]++] = (int64_t)tn_at(ids, TN_INDEX(b, i));
        }
        for (int64_t v = 0; v < V; v++)
            to[b * V + v] = p->script ? v == p->script[p->n[b] - 1] : logit(p->ids[b], p->n[b], v);
    }
    return y;
}

static const tni_decoder decoder = { parrot_info, parrot_cache, parrot_set_cache, parrot_next };

static tn_generated *from(tn_generated *made)
{
    assert_made(made);
    return made;
}

#define generate(p, prompts, n, ...)                                                               \
    tni_generate(&decoder, &(p)->base, prompts, n, &(const tn_generate_options){ __VA_ARGS__ })

static const int64_t first[] = { 3, 1, 4, 1, 5 }, second[] = { 2, 7 }, third[] = { 9, 2, 6 };
static const tn_prompt prompts[] = { { first, 5 }, { second, 2 }, { third, 3 } };

/* ---- what comes out -------------------------------------------------------------------------- */

/* A row by a loop of our own: what each token should be, with the draws of this row's number. */
static void assert_row(const tn_generated *made, int64_t row, tn_prompt prompt,
                       tn_sampling_options o, int64_t n)
{
    int64_t ids[ROOM];
    float x[V];
    memcpy(ids, prompt.ids, (size_t)prompt.n * sizeof *ids);
    ck_assert_int_eq(made->rows[row].n, n);
    for (int64_t t = 0; t < n; t++) {
        tn_scope scope = tn_scope_begin();
        for (int64_t v = 0; v < V; v++) x[v] = logit(ids, prompt.n + t, v);
        tn_tensor *logits = tn_expand(tn_from_floats(x, TN_SHAPE(1, V)), TN_SHAPE(ROWS, V));
        tn_tensor *history =
            tn_expand(tn_from_ints(ids, TN_SHAPE(1, prompt.n + t)), TN_SHAPE(ROWS, prompt.n + t));
        tn_tensor *next = tn_sample_token(logits, history, t, o);
        assert_made(next);
        ids[prompt.n + t] = (int64_t)tn_at(next, TN_INDEX(row));
        ck_assert_msg(made->rows[row].ids[t] == ids[prompt.n + t], "row %d, step %d", (int)row,
                      (int)t);
        tn_scope_end(scope);
    }
}

START_TEST(rows_are_those_of_a_loop_by_hand)
{
    static const tn_sampling_options options[] = {
        { .temperature = 0 },
        { .temperature = 1, .seed = 4 },
        { .temperature = 0.8,
          .top_k = 9,
          .top_p = 0.9,
          .min_p = 0.05,
          .repetition_penalty = 1.3,
          .presence_penalty = 0.5,
          .frequency_penalty = 0.25,
          .no_repeat_ngram = 2,
          .suppress = first,
          .n_suppress = 2,
          .seed = 11 },
    };
    for (int i = 0; i < COUNT(options); i++) {
        parrot *p = parrot_new();
        tn_generated *made = from(
            generate(p, prompts, 3, .max_new_tokens = 30, .n_eos = -1, .sampling = options[i]));
        ck_assert_int_eq(made->n, 3);
        for (int64_t r = 0; r < 3; r++) {
            assert_row(made, r, prompts[r], options[i], 30);
            ck_assert_int_eq(made->rows[r].finish, TN_FINISH_LENGTH);
            ck_assert(!made->rows[r].log_probs && !made->rows[r].text);
        }
        ck_assert_int_eq(p->steps, 30); /* the last token is not looked at */
        ck_assert(!p->trained && !p->recorded);
        tn_generated_free(made);
    }
}
END_TEST

START_TEST(several_rows_of_a_prompt)
{
    const tn_sampling_options o = { .temperature = 1, .seed = 2 };
    parrot *p = parrot_new();
    tn_generated *made = from(
        generate(p, prompts, 2, .max_new_tokens = 12, .n_eos = -1, .per_prompt = 3, .sampling = o));
    ck_assert_int_eq(made->n, 6);
    for (int64_t r = 0; r < 6; r++) assert_row(made, r, prompts[r / 3], o, 12);
    ck_assert(memcmp(made->rows[0].ids, made->rows[1].ids, 12 * sizeof(int64_t)) != 0);
    tn_generated_free(made);
    made = from(generate(p, prompts, 2, .n_eos = -1)); /* as transformers: 20 */
    assert_row(made, 1, prompts[1], (tn_sampling_options){ 0 }, 20);
    tn_generated_free(made);
}
END_TEST

/* Each row's end is known from a run without; the others go on as if nothing were. */
START_TEST(tokens_that_end_a_row)
{
    parrot *p = parrot_new();
    tn_generated *all = from(generate(p, prompts, 3, .max_new_tokens = 30, .n_eos = -1));
    const int64_t eos[] = { all->rows[0].ids[4], all->rows[2].ids[11] };
    tn_generated *made =
        from(generate(p, prompts, 3, .max_new_tokens = 30, .eos = eos, .n_eos = 2));
    for (int64_t r = 0; r < 3; r++) {
        int64_t n = 0;
        while (n < 30 && all->rows[r].ids[n] != eos[0] && all->rows[r].ids[n] != eos[1]) n++;
        bool ended = n < 30;
        assert_row(made, r, prompts[r], (tn_sampling_options){ 0 }, n + ended);
        ck_assert_int_eq(made->rows[r].finish, ended ? TN_FINISH_EOS : TN_FINISH_LENGTH);
    }
    ck_assert_int_le(made->rows[0].n, 5);
    tn_generated_free(made);
    made = from(generate(p, prompts, 3, .max_new_tokens = 30)); /* the model's: 7 */
    for (int64_t r = 0; r < 3; r++) {
        int64_t n = 0;
        while (n < 30 && all->rows[r].ids[n] != 7) n++;
        ck_assert_int_eq(made->rows[r].n, n < 30 ? n + 1 : 30);
    }
    tn_generated_free(made);
    tn_generated_free(all);
}
END_TEST

/* The tokens that end a row are suppressed before min_new_tokens, beside others. */
START_TEST(a_row_that_must_not_end_yet)
{
    parrot *p = parrot_new();
    int64_t every[V];
    for (int64_t v = 0; v < V; v++) every[v] = v;
    const tn_sampling_options o = { .suppress = every + 20, .n_suppress = 7 },
                              until = { .suppress = every, .n_suppress = 27 };
    tn_generated *made = from(generate(p, prompts, 1, .max_new_tokens = 9, .min_new_tokens = 4,
                                       .eos = every, .n_eos = 20, .sampling = o));
    ck_assert_int_eq(made->rows[0].n, 5); /* then one of 20 against two */
    tn_generated *short_one =
        from(generate(p, prompts, 1, .max_new_tokens = 4, .n_eos = -1, .sampling = until));
    assert_row(short_one, 0, prompts[0], until, 4);
    ck_assert_mem_eq(made->rows[0].ids, short_one->rows[0].ids, 4 * sizeof(int64_t));
    tn_generated_free(short_one);
    tn_generated_free(made);
}
END_TEST

/* The model's own, whatever the options do. */
START_TEST(log_probabilities)
{
    parrot *p = parrot_new();
    tn_generated *made =
        from(generate(p, prompts, 3, .max_new_tokens = 8, .n_eos = -1, .log_probs = true,
                      .sampling = { .temperature = 2, .top_k = 3, .repetition_penalty = 2 }));
    for (int64_t r = 0; r < 3; r++) {
        int64_t ids[ROOM], n = prompts[r].n;
        memcpy(ids, prompts[r].ids, (size_t)n * sizeof *ids);
        for (int64_t t = 0; t < 8; t++, n++) {
            double sum = 0;
            for (int64_t v = 0; v < V; v++) sum += exp((double)logit(ids, n, v));
            ids[n] = made->rows[r].ids[t];
            ck_assert_double_eq_tol((double)made->rows[r].log_probs[t],
                                    (double)logit(ids, n, ids[n]) - log(sum), 1e-6);
        }
    }
    tn_generated_free(made);
}
END_TEST

/* ---- the model's state ----------------------------------------------------------------------- */

START_TEST(a_cache_that_fits_is_used)
{
    parrot *p = parrot_new();
    tn_generated_free(from(generate(p, prompts, 3, .max_new_tokens = 4)));
    ck_assert_int_eq(p->batch, 0); /* its own is gone */
    assert_ok(parrot_set_cache(&p->base, 3, 8));
    p->n[1] = 5;
    tn_generated *made = from(generate(p, prompts, 3, .max_new_tokens = 4, .n_eos = -1));
    assert_row(made, 1, prompts[1], (tn_sampling_options){ 0 }, 4);
    ck_assert_int_eq(p->batch, 3);
    ck_assert_int_eq(p->capacity, 8);
    tn_generated_free(made);
    tn_generated_free(from(generate(p, prompts, 3, .max_new_tokens = 5))); /* 9 tokens */
    ck_assert_int_eq(p->batch, 0);
    assert_ok(parrot_set_cache(&p->base, 4, 8));
    tn_generated_free(from(generate(p, prompts, 3, .max_new_tokens = 4)));
    ck_assert_int_eq(p->batch, 0);
}
END_TEST

START_TEST(train_mode_comes_back)
{
    parrot *p = parrot_new();
    assert_ok(tn_train(&p->base, true));
    tn_generated_free(from(generate(p, prompts, 3, .max_new_tokens = 4)));
    ck_assert(tn_training(&p->base) && !p->trained && tn_grad_enabled());
    p->failing = p->steps + 3;
    assert_null(generate(p, prompts, 3, .max_new_tokens = 4, .n_eos = -1), TN_E_STATE,
                "parrot: no more");
    ck_assert(tn_training(&p->base) && !p->trained && tn_grad_enabled());
    ck_assert_int_eq(p->batch, 0);
}
END_TEST

typedef struct told {
    int64_t n, row[200], step[200], id[200], live;
    bool last[200];
    tn_finish finish;
    double log_prob;
    char text[64]; /* all pieces, each behind a | */
    int64_t enough;
    tn_module *drop;
} told;

static bool listen(const tn_generated_token *token, void *user)
{
    told *t = user;
    int64_t live = tn_live_tensors();
    ck_assert_int_eq(live, t->n ? t->live : live); /* flat */
    t->live = live;
    t->row[t->n] = token->row, t->step[t->n] = token->step, t->id[t->n] = token->id;
    t->last[t->n++] = token->last;
    t->finish = token->finish, t->log_prob = token->log_prob;
    if (token->text) strcat(strcat(t->text, "|"), token->text);
    tn_module_drop(t->drop);
    t->drop = NULL;
    return t->n != t->enough;
}

START_TEST(each_token_is_told)
{
    parrot *p = parrot_new();
    told t = { 0 };
    tn_generated *made = from(generate(p, prompts, 3, .max_new_tokens = 30, .on_token = listen,
                                       .user = &t, .log_probs = true));
    int64_t at = 0, n[3] = { 0 };
    for (int64_t s = 0; s < 30; s++)
        for (int64_t r = 0; r < 3; r++) {
            if (s >= made->rows[r].n) continue;
            ck_assert_int_eq(t.row[at], r);
            ck_assert_int_eq(t.step[at], s);
            ck_assert_int_eq(t.id[at], made->rows[r].ids[s]);
            ck_assert_int_eq(t.last[at], s + 1 == made->rows[r].n);
            n[t.row[at++]]++;
        }
    ck_assert_int_eq(t.n, at);
    ck_assert(t.log_prob < 0 && !t.text[0]);
    for (int64_t r = 0; r < 3; r++) ck_assert_int_eq(n[r], made->rows[r].n);
    tn_generated_free(made);
}
END_TEST

START_TEST(a_callback_that_has_enough)
{
    parrot *p = parrot_new();
    told t = { .enough = 8, .drop = tn_module_keep(&p->base) };
    tn_generated *made = from(
        generate(p, prompts, 3, .max_new_tokens = 30, .n_eos = -1, .on_token = listen, .user = &t));
    ck_assert_int_eq(t.n, 8);
    ck_assert_int_eq(p->steps, 3);
    for (int64_t r = 0; r < 3; r++) {
        assert_row(made, r, prompts[r], (tn_sampling_options){ 0 }, r < 2 ? 3 : 2);
        ck_assert_int_eq(made->rows[r].finish, TN_FINISH_CALLBACK);
    }
    tn_generated_free(made);
    t = (told){ .enough = 1 };
    made = from(generate(p, prompts, 2, .max_new_tokens = 1, .on_token = listen, .user = &t));
    ck_assert_int_eq(made->rows[0].finish, TN_FINISH_LENGTH); /* it had ended before */
    ck_assert_int_eq(made->rows[1].finish, TN_FINISH_CALLBACK);
    ck_assert_int_eq(made->rows[1].n, 0);
    tn_generated_free(made);
}
END_TEST

/* ---- text ------------------------------------------------------------------------------------ */

/* Tokens of a vocabulary: a, b, ST, OP, S, TOP!, two thirds of the sign of the euro, its last
 * third, " end", STO, x; and one that is special. */
enum { A, B, ST, OP, S, TOP, EURO, SIGN, END, STO, X, STOPPED };
static const char ranks[] = "YQ== 0\nYg== 1\nU1Q= 2\nT1A= 3\nUw== 4\nVE9QIQ== 5\n4oI= 6\nrA== 7\n"
                            "IGVuZA== 8\nU1RP 9\neA== 10\n";

static tn_tokenizer *tokenizer_of_pieces(void)
{
    const char *const special[] = { "<|stopped|>" };
    tn_tokenizer *t = tn_tokenizer_load(
        write_bytes("ranks", ranks, strlen(ranks)),
        (tn_tokenizer_options){ .pattern = "[a-z]+", .special = special, .n_special = 1 });
    assert_made(t);
    return t;
}

static const struct {
    const char *what;
    int64_t ids[4];
    const char *stop[2];
    const char *told, *text;
    int64_t n;
    tn_finish finish;
} texts[] = {
    { "plain", { A, B, END, X }, { NULL }, "|a|b| end|x", "ab endx", 4, TN_FINISH_LENGTH },
    { "two tokens", { A, ST, OP, B }, { "STOP" }, "|a||", "a", 3, TN_FINISH_STOP },
    { "within tokens", { S, TOP, A, A }, { "TOP" }, "|S|", "S", 2, TN_FINISH_STOP },
    { "at once", { TOP, A, A, A }, { "TO" }, "|", "", 1, TN_FINISH_STOP },
    { "nearly", { STO, X, ST, X }, { "STOP" }, "||STOx||STx", "STOxSTx", 4, TN_FINISH_LENGTH },
    { "the first of two", { S, TOP, A, A }, { "OP!", "TOP" }, "|S|", "S", 2, TN_FINISH_STOP },
    { "begins again", { A, A, A, B }, { "aab" }, "|||a|", "a", 4, TN_FINISH_STOP },
    { "one in another", { ST, OP, A, A }, { "TO", "STOP" }, "||", "", 2, TN_FINISH_STOP },
    { "never more than all",
      { S, S, ST, B },
      { "STOP" },
      "||S|S|STb",
      "SSSTb",
      4,
      TN_FINISH_LENGTH },
    { "a character",
      { A, EURO, SIGN, B },
      { NULL },
      "|a||\xe2\x82\xac|b",
      "a\xe2\x82\xac"
      "b",
      4,
      TN_FINISH_LENGTH },
    { "half of one",
      { A, B, A, EURO },
      { NULL },
      "|a|b|a|\xef\xbf\xbd",
      "aba\xef\xbf\xbd",
      4,
      TN_FINISH_LENGTH },
    { "ends waiting", { B, STO, STOPPED, A }, { "STOP" }, "|b||STO", "bSTO", 3, TN_FINISH_EOS },
    { "stops with eos", { B, STO, OP, STOPPED }, { "OOP" }, "|b|ST|", "bST", 3, TN_FINISH_STOP },
};

START_TEST(what_is_certain_is_told)
{
    parrot *p = parrot_new();
    tn_tokenizer *tokenizer = tokenizer_of_pieces();
    const int64_t begin = A, eos = STOPPED;
    const tn_prompt prompt = { &begin, 1 };
    told t = { 0 };
    p->script = texts[_i].ids;
    tn_generated *made = from(generate(p, &prompt, 1, .max_new_tokens = 4, .eos = &eos, .n_eos = 1,
                                       .tokenizer = tokenizer, .stop = texts[_i].stop,
                                       .n_stop = !!texts[_i].stop[0] + !!texts[_i].stop[1],
                                       .on_token = listen, .user = &t));
    ck_assert_msg(!strcmp(t.text, texts[_i].told), "%s: told %s", texts[_i].what, t.text);
    ck_assert_str_eq(made->rows[0].text, texts[_i].text);
    ck_assert_int_eq(made->rows[0].n, texts[_i].n);
    ck_assert_int_eq(made->rows[0].finish, texts[_i].finish);
    ck_assert_int_eq(t.finish, texts[_i].finish);
    tn_generated_free(made);
    made = from(generate(p, &prompt, 1, .max_new_tokens = 4, .eos = &eos, .n_eos = 1,
                         .tokenizer = tokenizer, .stop = texts[_i].stop,
                         .n_stop = !!texts[_i].stop[0] + !!texts[_i].stop[1]));
    ck_assert_str_eq(made->rows[0].text, texts[_i].text); /* without a callback, too */
    tn_generated_free(made);
    tn_tokenizer_free(tokenizer);
}
END_TEST

/* ---- models ---------------------------------------------------------------------------------- */

static const char gpt2[] =
    "{\"model_type\": \"gpt2\", \"n_embd\": 32, \"n_head\": 4, \"n_layer\": 2, "
    "\"n_positions\": 40, \"vocab_size\": 101, \"eos_token_id\": 100}";
static const char llama[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 48, "
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 101, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, "
    "\"hidden_act\": \"silu\", \"eos_token_id\": [99, 100], \"tie_word_embeddings\": false}";

/* With weights that make some tokens far more likely than others. */
static tn_module *model(const char *config)
{
    tn_manual_seed(8);
    tn_module *m = tn_lm_new(write_bytes("config.json", config, strlen(config)));
    assert_made(m);
    tn_list *all = tn_parameters(owned(m));
    TN_NO_GRAD
    for (int i = 0; i < all->n; i++)
        if (tn_rank(all->entry[i].tensor) == 2) assert_ok(tn_normal_(all->entry[i].tensor, 0, 0.3));
    assert_ok(tn_eval(m));
    return m;
}

/* Each token is the most likely one of a pass over the whole text, or within `off` of it. */
static void assert_greedy(tn_module *m, tn_prompt prompt, const tn_generated_row *row, float off)
{
    const int64_t n = prompt.n + row->n;
    int64_t *ids = owned(malloc((size_t)n * sizeof *ids));
    memcpy(ids, prompt.ids, (size_t)prompt.n * sizeof *ids);
    memcpy(ids + prompt.n, row->ids, (size_t)row->n * sizeof *ids);
    tn_tensor *logits;
    TN_NO_GRAD logits = tn_forward(m, tn_from_ints(ids, TN_SHAPE(1, n)));
    logits = tn_to_dtype(logits, TN_F32);
    const float *x = tn_data(logits);
    for (int64_t t = prompt.n; t < n; t++) {
        const float *of = x + (t - 1) * 101;
        for (int64_t v = 0; v < 101; v++)
            ck_assert_msg(of[v] <= of[ids[t]] + off, "token %d: %g, and %g", (int)t,
                          (double)of[ids[t]], (double)of[v]);
    }
}

START_TEST(a_thousand_tokens)
{
    tn_module *m = model(llama);
    tn_generated *made = from(
        tn_generate(m, prompts, 3, (tn_generate_options){ .max_new_tokens = 1000, .n_eos = -1 }));
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(made->rows[i].n, 1000);
        assert_greedy(m, prompts[i], &made->rows[i], 1e-5F);
    }
    tn_lm_info info;
    assert_ok(tn_lm_get_info(m, &info));
    ck_assert_int_eq(info.capacity, 0);
    tn_generated_free(made);
}
END_TEST

START_TEST(rows_are_those_of_single_runs)
{
    tn_module *m = model(_i ? gpt2 : llama);
    tn_generate_options o = { .max_new_tokens = 35, .log_probs = true };
    tn_generated *all = from(tn_generate(m, prompts, 3, o));
    for (int i = 0; i < 3; i++) {
        tn_generated *one = from(tn_generate(m, &prompts[i], 1, o));
        ck_assert_int_eq(one->rows[0].n, all->rows[i].n);
        for (int64_t t = 0; t < one->rows[0].n; t++) {
            ck_assert_int_eq(one->rows[0].ids[t], all->rows[i].ids[t]);
            ck_assert_float_eq_tol(one->rows[0].log_probs[t], all->rows[i].log_probs[t], 1e-4F);
        }
        assert_greedy(m, prompts[i], &one->rows[0], 1e-5F);
        tn_generated_free(one);
    }
    tn_generated_free(all);
}
END_TEST

START_TEST(weights_in_half_precision)
{
    tn_module *m = model(llama);
    assert_ok(tn_module_to_dtype(m, TN_BF16));
    tn_generated *made = from(
        tn_generate(m, prompts, 3, (tn_generate_options){ .max_new_tokens = 100, .n_eos = -1 }));
    for (int i = 0; i < 3; i++) assert_greedy(m, prompts[i], &made->rows[i], 0.25F);
    tn_generated_free(made);
}
END_TEST

START_TEST(a_clone_by_itself)
{
    tn_module *m = model(llama);
    const tn_generate_options o = { .max_new_tokens = 30, .sampling = { .temperature = 1 } };
    assert_ok(tn_lm_set_cache(m, 3, 40));
    tn_generated *made = from(tn_generate(m, prompts, 3, o));
    tn_module *copy = owned(tn_module_clone(m));
    tn_generated *again = from(tn_generate(copy, prompts, 3, o));
    tn_generated *once_more = from(tn_generate(m, prompts, 3, o));
    for (int i = 0; i < 3; i++) {
        size_t size = (size_t)made->rows[i].n * sizeof(int64_t);
        ck_assert_int_eq(made->rows[i].n, again->rows[i].n);
        ck_assert_mem_eq(made->rows[i].ids, again->rows[i].ids, size);
        ck_assert_mem_eq(made->rows[i].ids, once_more->rows[i].ids, size);
    }
    tn_generated_free(made), tn_generated_free(again), tn_generated_free(once_more);
}
END_TEST

START_TEST(more_than_the_model_has_room_for)
{
    tn_module *m = model(gpt2);
    assert_ok(tn_train(m, true));
    tn_generate_options o = { .max_new_tokens = 36, .n_eos = -1 };
    tn_generated_free(from(tn_generate(m, prompts, 3, o))); /* 5 + 36 - 1: the last is not read */
    o.max_new_tokens = 37;
    assert_null(tn_generate(m, prompts, 3, o), TN_E_STATE, "40");
    ck_assert(tn_training(m));
    tn_module *other = owned(tn_relu_new());
    assert_null(tn_generate(other, prompts, 3, o), TN_E_INVALID, "");
}
END_TEST

/* Context counts: a small stride is another number than a large one, and each is that of a loop. */
START_TEST(perplexity_of_a_model)
{
    enum { N = 30 };
    tn_module *m = model(llama);
    int64_t ids[N];
    for (int i = 0; i < N; i++) ids[i] = i * 7 % 101;
    double found[2];
    for (int k = 0; k < 2; k++) {
        const int64_t window = 12, stride = k ? 3 : 12;
        double sum = 0;
        int64_t n = 0, known = 0;
        for (int64_t t = 1; t < N; t++) {
            int64_t begin = t < window ? 0 : ((t - window) / stride + 1) * stride;
            if (t == begin) continue; /* the first of a window */
            tn_tensor *x = tn_from_ints(ids + begin, TN_SHAPE(1, t - begin));
            tn_tensor *p = tn_log_softmax(tn_select(tn_forward(m, x), 1, -1), -1);
            sum -= tn_at(p, TN_INDEX(0, ids[t]));
            n++;
        }
        (void)known;
        found[k] = tn_perplexity(m, ids, N, window, stride);
        ck_assert_double_eq_tol(log(found[k]), sum / (double)n, 1e-5);
    }
    ck_assert(fabs(found[0] - found[1]) > 1e-3);
}
END_TEST

/* ---- perplexity ------------------------------------------------------------------------------ */

/* -log of the probability of b behind a, of a model whose logits are the rows of a table. */
static double surprise(tn_tensor *table, int64_t a, int64_t b)
{
    double sum = 0;
    for (int64_t v = 0; v < V; v++) sum += exp(tn_at(table, TN_INDEX(a, v)));
    return log(sum) - tn_at(table, TN_INDEX(a, b));
}

/* With a stride of the whole window the first token of each has nothing before it. */
START_TEST(each_token_counts_once)
{
    enum { N = 23 };
    tn_module *m = owned(
        tn_sequential(tn_embedding_new(V, V, (tn_embedding_options){ 0 }), tn_dropout_new(0.5)));
    tn_tensor *table = tn_get_parameter(m, "0.weight");
    int64_t ids[N];
    double all = 0;
    for (int i = 0; i < N; i++) ids[i] = i * i % V;
    for (int i = 1; i < N; i++) all += surprise(table, ids[i - 1], ids[i]);
    for (int64_t stride = 1; stride < 6; stride++)
        ck_assert_double_eq_tol(log(tn_perplexity(m, ids, N, 6, stride)), all / (N - 1), 1e-6);
    ck_assert_double_eq_tol(log(tn_perplexity(m, ids, N, 1000, 1000)), all / (N - 1), 1e-6);
    for (int i = 6; i < N; i += 6) all -= surprise(table, ids[i - 1], ids[i]);
    ck_assert_double_eq_tol(log(tn_perplexity(m, ids, N, 6, 6)), all / (N - 4), 1e-6);
    all = surprise(table, ids[0], ids[1]);
    ck_assert_double_eq_tol(log(tn_perplexity(m, ids, 2, 2, 2)), all, 1e-6);
    ck_assert(tn_training(m) && tn_grad_enabled() && tn_is_none(tn_grad(table)));
    ck_assert(isnan(tn_perplexity(m, ids, 1, 6, 3)));
    assert_error(TN_E_INVALID, "1 ids");
    ck_assert(isnan(tn_perplexity(m, ids, N, 6, 7)));
    assert_error(TN_E_INVALID, "stride 7, window 6");
    ck_assert(isnan(tn_perplexity(m, ids, N, 1, 1)));
    assert_error(TN_E_INVALID, "stride 1, window 1");
    ck_assert(isnan(tn_perplexity(m, NULL, N, 6, 1)));
    assert_error(TN_E_INVALID, "ids is NULL");
    ids[7] = V;
    ck_assert(isnan(tn_perplexity(m, ids, N, 6, 3)));
    assert_error(TN_E_INDEX, "29");
    ck_assert(tn_training(m));
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(what_is_refused)
{
    parrot *p = parrot_new();
    const tn_prompt none = { first, 0 }, null = { NULL, 3 }, alien = { (int64_t[]){ 1, V }, 2 },
                    below = { (int64_t[]){ -1 }, 1 };
    const char *const empty[] = { "a", "" };
    tn_tokenizer *tokenizer = tokenizer_of_pieces();
#define REFUSED(status, says, at, n, ...) assert_null(generate(p, at, n, __VA_ARGS__), status, says)
    REFUSED(TN_E_INVALID, "prompts is NULL", NULL, 1, .n_eos = -1);
    REFUSED(TN_E_INVALID, "prompts 0", prompts, 0, .n_eos = -1);
    REFUSED(TN_E_INVALID, "prompts -1", prompts, -1, .n_eos = -1);
    REFUSED(TN_E_INVALID, "prompt 0 has no ids", &none, 1, .n_eos = -1);
    REFUSED(TN_E_INVALID, "prompt 0 has no ids", &null, 1, .n_eos = -1);
    REFUSED(TN_E_INDEX, "id 29 in prompt 0: want 0 to 28", &alien, 1, .n_eos = -1);
    REFUSED(TN_E_INDEX, "id -1 in prompt 0", &below, 1, .n_eos = -1);
    REFUSED(TN_E_INVALID, "max_new_tokens -1", prompts, 1, .max_new_tokens = -1);
    REFUSED(TN_E_INVALID, "min_new_tokens -2", prompts, 1, .min_new_tokens = -2);
    REFUSED(TN_E_INVALID, "per_prompt -1", prompts, 1, .per_prompt = -1);
    REFUSED(TN_E_NOMEM, "", prompts, 1, .per_prompt = INT32_MAX, .max_new_tokens = INT32_MAX);
    REFUSED(TN_E_INVALID, "n_eos -2", prompts, 1, .n_eos = -2);
    REFUSED(TN_E_INVALID, "n_eos 1", prompts, 1, .n_eos = 1);
    REFUSED(TN_E_INVALID, "n_stop 1", prompts, 1, .n_stop = 1);
    REFUSED(TN_E_INVALID, "n_stop -1", prompts, 1, .n_stop = -1);
    REFUSED(TN_E_INVALID, "without a tokenizer", prompts, 1, .n_stop = 1, .stop = empty);
    REFUSED(TN_E_INVALID, "empty stop string 1", prompts, 1, .n_stop = 2, .stop = empty,
            .tokenizer = tokenizer);
    REFUSED(TN_E_INVALID, "tn_generate: top_p 2", prompts, 1, .sampling.top_p = 2);
    int64_t every[V];
    for (int64_t v = 0; v < V; v++) every[v] = v;
    REFUSED(TN_E_INVALID, "row 0 is -inf", prompts, 1, .sampling.suppress = every,
            .sampling.n_suppress = V);
    ck_assert_int_eq(p->batch, 0);
    assert_null(tn_generate(NULL, prompts, 1, (tn_generate_options){ 0 }), TN_E_INVALID,
                "m is NULL");
    tn_generated_free(NULL);
    tn_tokenizer_free(tokenizer);
}
END_TEST

static tn_status generate_from_model(void *user)
{
    tn_generated *made;
    const tn_generate_options o = { .max_new_tokens = 2, .n_eos = -1 };
    TN_SCOPE made = tn_generate(user, prompts, 3, o);
    tn_generated_free(made);
    return made ? TN_OK : tn_error_status();
}

static tn_status generate_some(void *user)
{
    tn_generated *made;
    told t = { 0 };
    TN_SCOPE
    made = generate((parrot *)user, prompts, 3, .max_new_tokens = 3, .log_probs = true,
                    .on_token = listen, .user = &t);
    tn_generated_free(made);
    return made ? TN_OK : tn_error_status();
}

START_TEST(memory_runs_out)
{
    tn_module *m = tn_lm_load(golden_path("lm/llama"), (tn_lm_options){ 0 });
    assert_made(m);
    (void)owned(m);
    ck_assert_int_gt(scarce_sweep_warm(generate_some, NULL, parrot_new()), 6);
    ck_assert_int_gt(scarce_sweep_warm(generate_from_model, NULL, m), 100);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("generate");
    TCase *t = test_case(suite, "rows");
    add_tests(t, rows_are_those_of_a_loop_by_hand, several_rows_of_a_prompt, tokens_that_end_a_row,
              a_row_that_must_not_end_yet, log_probabilities);
    t = test_case(suite, "state");
    add_tests(t, a_cache_that_fits_is_used, train_mode_comes_back);
    t = file_case(suite, "told");
    add_tests(t, each_token_is_told, a_callback_that_has_enough);
    tcase_add_loop_test(t, what_is_certain_is_told, 0, COUNT(texts));
    add_tests(t, each_token_counts_once, what_is_refused);
    t = file_case(suite, "models");
    tcase_add_loop_test(t, rows_are_those_of_single_runs, 0, 2);
    add_tests(t, a_thousand_tokens, weights_in_half_precision, a_clone_by_itself,
              more_than_the_model_has_room_for, perplexity_of_a_model);
    t = scarce_case(suite, "memory");
    tcase_add_test(t, memory_runs_out);
    return suite;
}
