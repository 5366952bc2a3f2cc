/*
 * tokenizer_read.c - a tokenizer.json as a tokenizer. What it asks for is done, or refused by name.
 *
 * Source: tokenizers, the format that its Tokenizer.save writes.
 */
#include "ext/lm/tokenizer.h"

typedef struct reading {
    tn_tokenizer *t;
    const char *name; /* for messages */
    bool by_id;       /* a pair's rank is the id it makes */
} reading;

#define wrong(r, ...) tni_false(tni_file_error(TN_E_FORMAT, "tokenizer", (r)->name, __VA_ARGS__))
#define lacking(r, ...)                                                                            \
    tni_false(tni_file_error(TN_E_UNSUPPORTED, "tokenizer", (r)->name, __VA_ARGS__))

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

/* What a part of the file is called; "" if it has no type. */
static const char *type_of(const tni_json_node *part)
{
    return tni_json_get_text(part, "type", "");
}

/* Reads a part that is no Sequence. */
typedef bool read_part(reading *r, const tni_json_node *part);

/* A part, or each of those in a Sequence's list. */
static bool each_part(reading *r, const tni_json_node *part, const char *list, read_part *read,
                      int depth)
{
    if (!part || part->kind == 'n') return true;
    if (!is(type_of(part), "Sequence")) return read(r, part);
    if (depth > 8) return wrong(r, "Sequences in Sequences, more than 8");
    const tni_json_node *m = tni_json_first(tni_json_get(part, list));
    for (; m; m = tni_json_after(m))
        if (!each_part(r, m, list, read, depth + 1)) return false;
    return true;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* A text into texts, with a zero behind it. */
static bool keep(tn_tokenizer *t, const char *text, size_t n, uint32_t *at)
{
    *at = (uint32_t)t->texts.n;
    tni_bytes_add(&t->texts, text, n);
    tni_bytes_add(&t->texts, "", 1);
    if (t->texts.n > UINT32_MAX / 2)
        return tni_false(tni_error(TN_E_FORMAT, "the tokens have more than 2 GiB"));
    return !t->texts.failed;
}

/* The token of an id, made if it is not there. NULL and a message. */
static tni_token *token_of(reading *r, const tni_json_node *id, int64_t most)
{
    tn_tokenizer *t = r->t;
    if (!id || id->kind != '0' || id->number >= most) {
        wrong(r, "a token's id is not an integer from 0 to %" PRId64, most - 1);
        return NULL;
    }
    size_t wanted = (size_t)id->number + 1;
    if (wanted <= t->n_token) return &t->token[id->number];
    if (!tni_room(&t->token, &t->token_capacity, t->n_token, wanted - t->n_token, sizeof *t->token))
        return NULL;
    memset(t->token + t->n_token, 0, (wanted - t->n_token) * sizeof *t->token);
    t->n_token = wanted;
    return &t->token[id->number];
}

/* Text and what it stands for: its bytes in a byte-level vocabulary. */
static bool set_token(reading *r, tni_token *token, const char *text)
{
    tn_tokenizer *t = r->t;
    token->n_text = (uint32_t)strlen(text);
    token->there = token->word = true;
    if (!keep(t, text, token->n_text, &token->text)) return false;
    token->bytes = token->text;
    token->n_bytes = token->n_text;
    if (!t->byte_level) return true;
    uint32_t at = (uint32_t)t->texts.n;
    token->word = tni_letters_to_bytes(&t->texts, text, token->n_text);
    if (!token->word) return !t->texts.failed;
    token->bytes = at;
    token->n_bytes = (uint32_t)t->texts.n - at;
    return !t->texts.failed;
}

static bool read_vocabulary(reading *r, const tni_json_node *vocab)
{
    enum { HOLES = 1 << 16 };
    if (!vocab || vocab->kind != '{') return wrong(r, "model.vocab is no object");
    int64_t most = TNI_MIN(2 * vocab->number + HOLES, INT32_MAX);
    const tni_json_node *m = tni_json_first(vocab);
    for (; m; m = tni_json_after(m)) {
        tni_token *token = token_of(r, m, most);
        if (!token) return false;
        if (token->there)
            return wrong(r, "\"%.60s\" and \"%.60s\" have the id %" PRId64,
                         r->t->texts.data + token->text, m->key, m->number);
        if (!set_token(r, token, m->key)) return false;
    }
    return true;
}

/* ---- finding them ---------------------------------------------------------------------------- */

static bool make_table(tni_words *words, size_t n)
{
    size_t capacity = 16;
    while (capacity < 2 * n + 2) capacity *= 2;
    words->slot = tni_alloc(capacity * sizeof *words->slot);
    if (!words->slot) return false;
    memset(words->slot, 0xff, capacity * sizeof *words->slot);
    words->capacity = capacity;
    return true;
}

/* Puts a token in; false: its text is there already. */
static bool put(tn_tokenizer *t, tni_words *words, int32_t id)
{
    const tni_token *token = &t->token[id];
    bool bytes = words == &t->by_bytes;
    const char *text = t->texts.data + (bytes ? token->bytes : token->text);
    size_t n = bytes ? token->n_bytes : token->n_text, mask = words->capacity - 1;
    if (tni_find(t, words, text, n) >= 0) return false;
    size_t i = tni_word_hash(t->seed, text, n) & mask;
    while (words->slot[i] >= 0) i = (i + 1) & mask;
    words->slot[i] = id;
    return true;
}

/* Tokens of the model, and those added (there may be `more` of them) by text. */
static bool index_tokens(reading *r, size_t more)
{
    tn_tokenizer *t = r->t;
    if (!make_table(&t->by_text, t->n_token + more) || !make_table(&t->by_bytes, t->n_token))
        return false;
    for (size_t i = 0; i < t->n_token; i++) {
        if (!t->token[i].there) continue;
        if (!put(t, &t->by_text, (int32_t)i))
            return wrong(r, "the token \"%.60s\" is there twice", t->texts.data + t->token[i].text);
        if (t->token[i].word) put(t, &t->by_bytes, (int32_t)i);
    }
    return true;
}

static void find_bytes(tn_tokenizer *t)
{
    for (int b = 0; b < 256; b++) {
        char code[8], one = (char)b;
        snprintf(code, sizeof code, "<0x%02X>", (unsigned)b & 0xff);
        t->byte[b] = t->byte_level ? tni_find(t, &t->by_bytes, &one, 1)
                     : t->fallback ? tni_find(t, &t->by_text, code, strlen(code))
                                   : TNI_NO_ID;
    }
}

/* ---- merges ---------------------------------------------------------------------------------- */

static void put_pair(tn_tokenizer *t, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t hash = (key ^ t->seed) * UINT64_C(0x9e3779b97f4a7c15);
    size_t mask = t->pair_capacity - 1, i = (hash ^ hash >> 32) & mask;
    while (t->pair[i].key != UINT64_MAX && t->pair[i].key != key) i = (i + 1) & mask;
    t->pair[i] = (tni_pair){ key, rank, id };
}

/* The two parts of "a b" or ["a", "b"]. */
static bool parts_of(const tni_json_node *merge, const char **left, size_t *n_left,
                     const char **right)
{
    if (merge->kind == '"') {
        const char *space = strchr(merge->text, ' ');
        if (!space) return false;
        *left = merge->text, *n_left = (size_t)(space - merge->text), *right = space + 1;
        return true;
    }
    const tni_json_node *a = tni_json_first(merge), *b = a ? tni_json_after(a) : NULL;
    if (!b || merge->number != 2 || a->kind != '"' || b->kind != '"') return false;
    *left = a->text, *n_left = strlen(a->text), *right = b->text;
    return true;
}

static bool read_merge(reading *r, const tni_json_node *merge, int32_t rank, tni_bytes *both)
{
    tn_tokenizer *t = r->t;
    const char *left, *right;
    size_t n_left;
    if (!parts_of(merge, &left, &n_left, &right))
        return wrong(r, "merge %d is not of two tokens", (int)rank);
    both->n = 0;
    tni_bytes_add(both, left, n_left);
    tni_bytes_add(both, right, strlen(right));
    if (both->failed) return false;
    int32_t a = tni_find(t, &t->by_text, left, n_left);
    int32_t b = tni_find(t, &t->by_text, right, strlen(right));
    int32_t c = tni_find(t, &t->by_text, both->data ? both->data : "", both->n);
    if (a < 0 || b < 0 || c < 0)
        return wrong(r, "merge %d, \"%.40s\" and \"%.40s\": %s is no token", (int)rank, left, right,
                     a < 0   ? "the first"
                     : b < 0 ? "the second"
                             : "what they make");
    put_pair(t, a, b, r->by_id ? c : rank, c);
    return true;
}

static bool read_merges(reading *r, const tni_json_node *merges)
{
    tn_tokenizer *t = r->t;
    if (!merges || merges->kind != '[') return wrong(r, "model.merges is no list");
    if (merges->number > INT32_MAX / 4) return wrong(r, "too many merges");
    size_t capacity = 16;
    while (capacity < 2 * (size_t)merges->number + 2) capacity *= 2;
    t->pair = tni_alloc(capacity * sizeof *t->pair);
    if (!t->pair) return false;
    t->pair_capacity = capacity;
    for (size_t i = 0; i < capacity; i++) t->pair[i].key = UINT64_MAX;
    tni_bytes both = { 0 };
    bool ok = true;
    int32_t rank = 0;
    const tni_json_node *m = tni_json_first(merges);
    for (; m && ok; m = tni_json_after(m)) ok = read_merge(r, m, rank++, &both);
    tni_bytes_free(&both);
    return ok;
}

/* ---- the model ------------------------------------------------------------------------------- */

static bool read_unknown(reading *r, const tni_json_node *model)
{
    const char *unk = tni_json_get_text(model, "unk_token", NULL);
    r->t->unk = unk ? tni_find(r->t, &r->t->by_text, unk, strlen(unk)) : TNI_NO_ID;
    if ((unk || r->t->model == TNI_WORDPIECE) && r->t->unk < 0)
        return wrong(r, "unk_token \"%.60s\" is no token", unk ? unk : "");
    return true;
}

static bool read_bpe(reading *r, const tni_json_node *model)
{
    tn_tokenizer *t = r->t;
    const tni_json_node *dropout = tni_json_get(model, "dropout");
    if (dropout && (dropout->kind != '0' || dropout->number))
        return lacking(r, "model.dropout is not 0");
    if (*tni_json_get_text(model, "continuing_subword_prefix", ""))
        return lacking(r, "model.continuing_subword_prefix");
    if (*tni_json_get_text(model, "end_of_word_suffix", ""))
        return lacking(r, "model.end_of_word_suffix");
    t->fallback = tni_json_get_flag(model, "byte_fallback", false);
    t->fuse = tni_json_get_flag(model, "fuse_unk", false);
    t->whole = tni_json_get_flag(model, "ignore_merges", false);
    return true;
}

static bool read_wordpiece(reading *r, const tni_json_node *model)
{
    const tni_json_node *longest = tni_json_get(model, "max_input_chars_per_word");
    r->t->model = TNI_WORDPIECE;
    r->t->longest = longest && longest->kind == '0' ? longest->number : 100;
    r->t->prefix = tni_copy_text(tni_json_get_text(model, "continuing_subword_prefix", "##"));
    return r->t->prefix != NULL;
}

static bool read_model(reading *r, const tni_json_node *model, size_t n_added)
{
    /* older files name no type */
    const char *type = type_of(model);
    bool bpe = is(type, "BPE") || (!*type && tni_json_get(model, "merges"));
    if (!model || (!bpe && !is(type, "WordPiece")))
        return lacking(r, "the model %.60s: want BPE or WordPiece", *type ? type : "without type");
    if (!(bpe ? read_bpe(r, model) : read_wordpiece(r, model))) return false;
    if (!read_vocabulary(r, tni_json_get(model, "vocab")) || !index_tokens(r, n_added) ||
        !read_unknown(r, model))
        return false;
    find_bytes(r->t);
    return !bpe || read_merges(r, tni_json_get(model, "merges"));
}

/* ---- added tokens ---------------------------------------------------------------------------- */

static bool normal_text(reading *r, const char **text, size_t *n, tni_work **work)
{
    *work = tni_work_take(r->t);
    return *work && tni_normal_form(*work, text, n);
}

static bool find_in_text(reading *r, const tni_json_node *a, int32_t id)
{
    const char *text = tni_json_get_text(a, "content", "");
    size_t n = strlen(text);
    if (!tni_json_get_flag(a, "normalized", true)) return tni_trie_add(&r->t->raw, text, n, id);
    tni_work *work = NULL;
    bool ok = normal_text(r, &text, &n, &work) &&
              (n == 0 || tni_trie_add(&r->t->normalised, text, n, id));
    if (work) tni_work_give(work);
    return ok;
}

static bool read_added(reading *r, const tni_json_node *a, int64_t most)
{
    tn_tokenizer *t = r->t;
    const char *text = tni_json_get_text(a, "content", "");
    if (!*text) return wrong(r, "an added token without content");
    tni_token *token = token_of(r, tni_json_get(a, "id"), most);
    if (!token) return false;
    int32_t id = (int32_t)(token - t->token), other = tni_find(t, &t->by_text, text, strlen(text));
    if (other >= 0 && other != id)
        return wrong(r, "the added token \"%.60s\" has the id %d, in the vocabulary %d", text, id,
                     other);
    if (token->there && other < 0)
        return wrong(r, "the added token \"%.60s\" has the id %d of \"%.60s\"", text, id,
                     t->texts.data + token->text);
    if (!token->there && !set_token(r, token, text)) return false;
    if (other < 0) put(t, &t->by_text, id);
    token->special = tni_json_get_flag(a, "special", false);
    token->left = tni_json_get_flag(a, "lstrip", false);
    token->right = tni_json_get_flag(a, "rstrip", false);
    token->single = tni_json_get_flag(a, "single_word", false);
    return find_in_text(r, a, id);
}

static bool read_all_added(reading *r, const tni_json_node *list)
{
    enum { HOLES = 1 << 16 };
    int64_t most = (int64_t)r->t->n_token + (list ? list->number : 0) + HOLES;
    const tni_json_node *m = list && list->kind == '[' ? tni_json_first(list) : NULL;
    for (; m; m = tni_json_after(m))
        if (!read_added(r, m, TNI_MIN(most, INT32_MAX))) return false;
    return true;
}

/* ---- normal forms ---------------------------------------------------------------------------- */

static tni_normal *add_normal(reading *r, int kind)
{
    tn_tokenizer *t = r->t;
    if (t->n_normal == TNI_STAGES) {
        lacking(r, "more than %d normalizers", TNI_STAGES);
        return NULL;
    }
    tni_normal *op = &t->normal[t->n_normal++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    return op;
}

/* The pattern of a Split or Replace: {"String": ...} or {"Regex": ...}. */
static pcre2_code *read_pattern(reading *r, const tni_json_node *part)
{
    const tni_json_node *pattern = tni_json_get(part, "pattern");
    const char *regex = tni_json_get_text(pattern, "Regex", NULL);
    const char *text = tni_json_get_text(pattern, "String", NULL);
    if (regex) return tni_pattern(r->name, regex);
    if (text) return tni_pattern_of_text(r->name, text);
    wrong(r, "%.60s without a pattern", type_of(part));
    return NULL;
}

static bool read_replace(reading *r, const tni_json_node *part)
{
    tni_normal *op = add_normal(r, TNI_REPLACE);
    return op && (op->text = tni_copy_text(tni_json_get_text(part, "content", ""))) &&
           (op->pattern = read_pattern(r, part));
}

static bool read_bert(reading *r, const tni_json_node *part)
{
    bool lower = tni_json_get_flag(part, "lowercase", true);
    bool strip = tni_json_get_flag(part, "strip_accents", lower);
    return (!tni_json_get_flag(part, "clean_text", true) || add_normal(r, TNI_CLEAN)) &&
           (!tni_json_get_flag(part, "handle_chinese_chars", true) || add_normal(r, TNI_CJK)) &&
           (!strip || (add_normal(r, TNI_NFD) && add_normal(r, TNI_NO_ACCENTS))) &&
           (!lower || add_normal(r, TNI_LOWER));
}

static bool read_normalizer(reading *r, const tni_json_node *part)
{
    static const struct {
        const char *name;
        int kind;
    } plain[] = {
        { "NFC", TNI_NFC },   { "NFD", TNI_NFD },         { "NFKC", TNI_NFKC },
        { "NFKD", TNI_NFKD }, { "Lowercase", TNI_LOWER }, { "StripAccents", TNI_NO_MARKS }
    };
    const char *type = type_of(part);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (is(type, plain[i].name)) return add_normal(r, plain[i].kind) != NULL;
    if (is(type, "Replace")) return read_replace(r, part);
    if (is(type, "BertNormalizer")) return read_bert(r, part);
    if (is(type, "Strip"))
        return (!tni_json_get_flag(part, "strip_left", true) || add_normal(r, TNI_TRIM_LEFT)) &&
               (!tni_json_get_flag(part, "strip_right", true) || add_normal(r, TNI_TRIM_RIGHT));
    if (is(type, "Prepend")) {
        tni_normal *op = add_normal(r, TNI_PREPEND);
        return op && (op->text = tni_copy_text(tni_json_get_text(part, "prepend", "")));
    }
    return lacking(r, "the normalizer %.60s", type);
}

/* ---- cuts ------------------------------------------------------------------------------------ */

static tni_split *add_split(reading *r, int kind)
{
    tn_tokenizer *t = r->t;
    if (t->n_split == TNI_STAGES - 1) {
        lacking(r, "more than %d pre-tokenizers", TNI_STAGES - 1);
        return NULL;
    }
    if (t->byte_level) {
        lacking(r, "a pre-tokenizer after ByteLevel");
        return NULL;
    }
    tni_split *s = &t->split[t->n_split++];
    memset(s, 0, sizeof *s);
    s->kind = kind;
    return s;
}

/* A cut by a pattern of ours. */
static bool add_cut(reading *r, const char *regex, int behaviour, bool invert)
{
    tni_split *s = add_split(r, TNI_CUT);
    if (!s) return false;
    s->behaviour = behaviour;
    s->invert = invert;
    return (s->pattern = tni_pattern(r->name, regex)) != NULL;
}

static bool read_behaviour(reading *r, const char *name, int *behaviour)
{
    static const char *const names[] = { "Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                         "MergedWithNext" };
    for (int i = 0; i < 5; i++)
        if (is(name, names[i])) return *behaviour = i, true;
    return lacking(r, "the behavior %.60s", name);
}

static bool read_split(reading *r, const tni_json_node *part)
{
    int behaviour;
    tni_split *s = add_split(r, TNI_CUT);
    if (!s || !read_behaviour(r, tni_json_get_text(part, "behavior", ""), &behaviour)) return false;
    s->behaviour = behaviour;
    s->invert = tni_json_get_flag(part, "invert", false);
    return (s->pattern = read_pattern(r, part)) != NULL;
}

static bool read_byte_level(reading *r, const tni_json_node *part)
{
    if (tni_json_get_flag(part, "add_prefix_space", true) && !add_split(r, TNI_SPACE_BEFORE))
        return false;
    if (tni_json_get_flag(part, "use_regex", true) &&
        !add_cut(r, tni_known_pattern("gpt2"), TNI_ISOLATED, false))
        return false;
    return r->t->byte_level = true;
}

/* Metaspace's scheme; older files have add_prefix_space in its place. */
static bool prepends(reading *r, const tni_json_node *part, int *scheme)
{
    const char *otherwise = tni_json_get_flag(part, "add_prefix_space", true) ? "always" : "never";
    const char *name = tni_json_get_text(part, "prepend_scheme", otherwise);
    *scheme = is(name, "always") ? TNI_ALWAYS : is(name, "first") ? TNI_FIRST : TNI_NEVER;
    return *scheme != TNI_NEVER || is(name, "never") ||
           lacking(r, "the prepend_scheme %.60s", name);
}

static bool read_metaspace(reading *r, const tni_json_node *part)
{
    int scheme, next = TNI_WITH_NEXT;
    tni_split *s = add_split(r, TNI_METASPACE);
    const char *sign = tni_json_get_text(part, "replacement", "\xe2\x96\x81");
    if (!s || !prepends(r, part, &scheme)) return false;
    s->prepend = scheme;
    if (!(s->text = tni_copy_text(sign))) return false;
    if (!tni_json_get_flag(part, "split", true)) return true;
    if (!(s = add_split(r, TNI_CUT))) return false;
    s->behaviour = next;
    return (s->pattern = tni_pattern_of_text(r->name, sign)) != NULL;
}

static bool read_pre_tokenizer(reading *r, const tni_json_node *part)
{
    static const char sign[] = "[\\p{P}$+<=>^`|~]";
    const char *type = type_of(part);
    int behaviour;
    if (is(type, "ByteLevel")) return read_byte_level(r, part);
    if (is(type, "Split")) return read_split(r, part);
    if (is(type, "Metaspace")) return read_metaspace(r, part);
    if (is(type, "Whitespace")) return add_cut(r, "\\w+|[^\\w\\s]+", TNI_REMOVED, true);
    if (is(type, "WhitespaceSplit")) return add_cut(r, "\\s", TNI_REMOVED, false);
    if (is(type, "Digits"))
        return add_cut(r, "\\p{N}",
                       tni_json_get_flag(part, "individual_digits", false) ? TNI_ISOLATED
                                                                           : TNI_CONTIGUOUS,
                       false);
    if (is(type, "Punctuation"))
        return read_behaviour(r, tni_json_get_text(part, "behavior", "Isolated"), &behaviour) &&
               add_cut(r, sign, behaviour, false);
    if (is(type, "BertPreTokenizer"))
        return add_cut(r, "\\s", TNI_REMOVED, false) && add_cut(r, sign, TNI_ISOLATED, false);
    return lacking(r, "the pre-tokenizer %.60s", type);
}

/* ---- around a text --------------------------------------------------------------------------- */

/* The ids of one part of a template. */
static bool add_part(reading *r, const tni_json_node *template, const char *name, tn_ids *to)
{
    const tni_json_node *special = tni_json_get(tni_json_get(template, "special_tokens"), name);
    const tni_json_node *id = tni_json_first(tni_json_get(special, "ids"));
    if (!id) return wrong(r, "the template's \"%.60s\" has no ids", name);
    for (; id; id = tni_json_after(id)) {
        if (id->kind != '0') return wrong(r, "an id of \"%.60s\" is no integer", name);
        if (!tni_ids_add(to, id->number)) return false;
    }
    return true;
}

static bool read_template(reading *r, const tni_json_node *template, tn_ids *before, tn_ids *after)
{
    bool text = false;
    const tni_json_node *m = tni_json_first(tni_json_get(template, "single"));
    for (; m; m = tni_json_after(m)) {
        const char *name = tni_json_get_text(tni_json_get(m, "SpecialToken"), "id", NULL);
        const char *sequence = tni_json_get_text(tni_json_get(m, "Sequence"), "id", "");
        if (!name && (!is(sequence, "A") || text))
            return wrong(r, "a template's single is not of special tokens and one A");
        text = text || !name;
        if (name && !add_part(r, template, name, text ? after : before)) return false;
    }
    return text || wrong(r, "a template's single has no A");
}

/* ["[SEP]", 102] */
static bool read_pair(reading *r, const tni_json_node *part, const char *key, tn_ids *to)
{
    const tni_json_node *m = tni_json_first(tni_json_get(part, key));
    const tni_json_node *id = m ? tni_json_after(m) : NULL;
    if (!id || id->kind != '0') return wrong(r, "%s of %s is no pair", key, type_of(part));
    return tni_ids_add(to, id->number);
}

/* Each part stands around what those before it made. */
static bool wrap(tn_tokenizer *t, tn_ids *before, const tn_ids *after)
{
    bool ok = true;
    for (int64_t i = 0; i < t->before.n && ok; i++) ok = tni_ids_add(before, t->before.id[i]);
    for (int64_t i = 0; i < after->n && ok; i++) ok = tni_ids_add(&t->after, after->id[i]);
    tn_ids swap = t->before;
    t->before = *before;
    *before = swap;
    return ok;
}

static bool read_post_processor(reading *r, const tni_json_node *part)
{
    const char *type = type_of(part);
    tn_ids before = { 0 }, after = { 0 };
    bool ok = true;
    if (is(type, "ByteLevel")) return true;
    if (is(type, "TemplateProcessing"))
        ok = read_template(r, part, &before, &after);
    else if (is(type, "BertProcessing") || is(type, "RobertaProcessing"))
        ok = read_pair(r, part, "cls", &before) && read_pair(r, part, "sep", &after);
    else
        ok = lacking(r, "the post-processor %.60s", type);
    ok = ok && wrap(r->t, &before, &after);
    tn_ids_free(&before);
    tn_ids_free(&after);
    return ok;
}

/* ---- back ------------------------------------------------------------------------------------ */

static bool fused(const tn_tokenizer *t)
{
    for (size_t i = 0; i < t->n_undo; i++)
        if (t->undo[i].kind == TNI_UNDO_FUSE) return true;
    return false;
}

static bool add_undo(reading *r, int kind, const char *text, const char *by, bool flag)
{
    tn_tokenizer *t = r->t;
    bool alone = kind == TNI_UNDO_BYTES || kind == TNI_UNDO_PIECES;
    if (t->n_undo == TNI_STAGES || (t->n_undo && t->undo[0].kind == TNI_UNDO_BYTES) ||
        (t->n_undo && alone))
        return lacking(r, "a list of decoders of this kind");
    if (fused(t) && kind != TNI_UNDO_STRIP) return lacking(r, "a decoder after Fuse but Strip");
    tni_undo *u = &t->undo[t->n_undo++];
    memset(u, 0, sizeof *u);
    u->kind = kind;
    u->flag = flag;
    u->text = tni_copy_text(text);
    u->by = tni_copy_text(by);
    return u->text && u->by;
}

static int64_t count(const tni_json_node *part, const char *key)
{
    const tni_json_node *m = tni_json_get(part, key);
    return m && m->kind == '0' ? m->number : 0;
}

static bool read_strip(reading *r, const tni_json_node *part)
{
    tn_tokenizer *t = r->t;
    if (fused(t) && count(part, "stop"))
        return lacking(r, "the decoder Strip at the end of a text");
    if (!add_undo(r, TNI_UNDO_STRIP, tni_json_get_text(part, "content", ""), "", false))
        return false;
    t->undo[t->n_undo - 1].start = count(part, "start");
    t->undo[t->n_undo - 1].stop = count(part, "stop");
    return true;
}

static bool read_decoder(reading *r, const tni_json_node *part)
{
    const char *type = type_of(part);
    int scheme;
    if (is(type, "ByteLevel")) return add_undo(r, TNI_UNDO_BYTES, "", "", false);
    if (is(type, "ByteFallback")) return add_undo(r, TNI_UNDO_FALLBACK, "", "", false);
    if (is(type, "Fuse")) return add_undo(r, TNI_UNDO_FUSE, "", "", false);
    if (is(type, "Strip")) return read_strip(r, part);
    if (is(type, "WordPiece"))
        return add_undo(r, TNI_UNDO_PIECES, tni_json_get_text(part, "prefix", "##"), "",
                        tni_json_get_flag(part, "cleanup", true));
    if (is(type, "Metaspace"))
        return prepends(r, part, &scheme) &&
               add_undo(r, TNI_UNDO_META, tni_json_get_text(part, "replacement", "\xe2\x96\x81"),
                        "", scheme != TNI_NEVER);
    if (is(type, "Replace")) {
        const char *text = tni_json_get_text(tni_json_get(part, "pattern"), "String", NULL);
        return text ? add_undo(r, TNI_UNDO_REPLACE, text, tni_json_get_text(part, "content", ""),
                               false)
                    : lacking(r, "the decoder Replace by a regular expression");
    }
    return lacking(r, "the decoder %.60s", type);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Whether the ids around a text are tokens. */
static bool check_around(reading *r, const tn_ids *ids)
{
    const tn_tokenizer *t = r->t;
    for (int64_t i = 0; i < ids->n; i++)
        if (ids->id[i] >= (int64_t)t->n_token || !t->token[ids->id[i]].there)
            return wrong(r, "the post-processor's id %" PRId64 " is no token", ids->id[i]);
    return true;
}

static bool read_root(reading *r, const tni_json_node *root)
{
    const tni_json_node *added = tni_json_get(root, "added_tokens");
    if (root->kind != '{') return wrong(r, "it is no object");
    return each_part(r, tni_json_get(root, "normalizer"), "normalizers", read_normalizer, 0) &&
           each_part(r, tni_json_get(root, "pre_tokenizer"), "pretokenizers", read_pre_tokenizer,
                     0) &&
           each_part(r, tni_json_get(root, "post_processor"), "processors", read_post_processor,
                     0) &&
           each_part(r, tni_json_get(root, "decoder"), "decoders", read_decoder, 0) &&
           read_model(r, tni_json_get(root, "model"), added ? (size_t)added->number : 0) &&
           read_all_added(r, added) && check_around(r, &r->t->before) &&
           check_around(r, &r->t->after);
}

static bool read_text(reading *r, char *text, size_t n)
{
    tni_json_tree tree;
    bool ok = tni_json_tree_read(&tree, text, n);
    if (tree.problem) wrong(r, "at byte %zu: %s", tree.at, tree.problem);
    ok = ok && read_root(r, tree.node);
    tni_json_tree_free(&tree);
    return ok;
}

tn_tokenizer *tni_tokenizer_read(const char *name, tni_bytes *json, bool by_id)
{
    tn_tokenizer *t = tni_calloc_n(1, sizeof *t);
    if (!t) return NULL;
    pthread_mutex_init(&t->lock, NULL);
    t->seed = (uint64_t)(uintptr_t)t * UINT64_C(0x9e3779b97f4a7c15);
    t->unk = t->bos = t->eos = t->pad = t->cls = t->sep = t->mask = TNI_NO_ID;
    reading r = { t, name, by_id };
    t->n_file = json->n;
    t->file = tni_alloc(json->n);
    if (t->file && json->n) memcpy(t->file, json->data, json->n);
    if (t->file && read_text(&r, json->data, json->n)) return t;
    tn_tokenizer_free(t);
    return NULL;
}
