/*
 * tokenizer_read.c - a tokenizer.json as a tokenizer. What it asks for is done, or refused by name.
 *
 * Source: tokenizers, the format that its Tokenizer.save writes.
 */
#include "ext/lm/config.h"
#include "ext/lm/tokenizer.h"

typedef struct reading {
    tn_tokenizer *t;
    const char *name; /* for messages */
    bool byte_level;  /* the last pre-tokenizer was read */
    int step;         /* of the decoder of a marked text, the next one */
    const char *undo; /* the prefix that the decoder WordPiece takes off; NULL: another decoder */
} reading;

/* Reads a part that is no Sequence. */
typedef bool read_part(reading *r, const tni_json_node *part);

enum { HOLES = 1 << 16 }; /* ids without a token, at most, beside as many as there are tokens */

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

/* A part, or each of those in a Sequence's list. */
static bool each_part(reading *r, const tni_json_node *part, const char *list, read_part *read,
                      int depth)
{
    if (!part || part->kind == 'n') return true;
    if (!is(type_of(part), "Sequence")) return read(r, part);
    if (depth > 8) return wrong(r, "Sequences in Sequences, more than 8");
    const tni_json_node *m = tni_json_first(tni_json_get(part, list));
    while (m && each_part(r, m, list, read, depth + 1)) m = tni_json_after(m);
    return !m;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The token of an id, made if it is not there. NULL and a message. */
static tni_token *token_of(reading *r, const tni_json_node *id, int64_t most)
{
    if (id && id->kind == '0' && id->number < most) return tni_token_at(r->t, (size_t)id->number);
    wrong(r, "a token's id is not an integer from 0 to %" PRId64, most - 1);
    return NULL;
}

static bool read_vocabulary(reading *r, const tni_json_node *vocab)
{
    if (!vocab || vocab->kind != '{') return wrong(r, "model.vocab is no object");
    int64_t most = TNI_MIN(2 * vocab->number + HOLES, INT32_MAX);
    for (const tni_json_node *m = tni_json_first(vocab); m; m = tni_json_after(m)) {
        tni_token *token = token_of(r, m, most);
        if (!token) return false;
        if (token->there)
            return wrong(r, "\"%.60s\" and \"%.60s\" have the id %" PRId64,
                         r->t->texts.data + token->text.at, m->key, m->number);
        if (!tni_token_set(r->t, token, m->key)) return false;
    }
    return true;
}

/* ---- merges ---------------------------------------------------------------------------------- */

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
    tni_bytes_add(both, right, strlen(right) + 1);
    if (both->failed) return false;
    int32_t a = tni_find(t, &t->by_text, left, n_left);
    int32_t b = tni_find(t, &t->by_text, right, strlen(right));
    int32_t c = tni_find(t, &t->by_text, both->data, both->n - 1);
    if (a < 0 || b < 0 || c < 0)
        return wrong(r, "merge %d, \"%.40s\" and \"%.40s\": %s is no token", (int)rank, left, right,
                     a < 0   ? "the first"
                     : b < 0 ? "the second"
                             : "what they make");
    const tni_merge made = { .key = tni_merge_key(a, b), .rank = rank, .id = c };
    *tni_merge_at(t->pair, t->pair_capacity, t->seed, made.key) = made;
    if (t->cut == TNI_WORDS && tni_goes_on(both->data)) t->cut = TNI_WHOLE;
    return true;
}

static bool read_merges(reading *r, const tni_json_node *merges)
{
    tn_tokenizer *t = r->t;
    if (!merges || merges->kind != '[') return wrong(r, "model.merges is no list");
    if (merges->number > INT32_MAX / 4) return wrong(r, "too many merges");
    t->pair = tni_table((size_t)merges->number, sizeof *t->pair, &t->pair_capacity);
    if (!t->pair) return false;
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) both = { 0 };
    int32_t rank = 0;
    const tni_json_node *m = tni_json_first(merges);
    while (m && read_merge(r, m, rank++, &both)) m = tni_json_after(m);
    return !m;
}

/* ---- the model ------------------------------------------------------------------------------- */

/* What BPE may ask for beyond merges: texts that are not empty, flags that are true. */
static bool plain_bpe(reading *r, const tni_json_node *model)
{
    static const char *const texts[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const tni_json_node *dropout = tni_json_get(model, "dropout");
    if (dropout && (dropout->kind != '0' || dropout->number)) return lacking(r, "model.dropout");
    if (tni_json_get_flag(model, "byte_fallback", false) && !r->t->marked)
        return lacking(r, "model.byte_fallback of another text than one with U+2581 for spaces");
    for (int i = 0; i < 2; i++)
        if (*tni_json_get_text(model, texts[i], "")) return lacking(r, "model.%s", texts[i]);
    if (r->t->pieces || r->undo) return lacking(r, "BPE with a part of WordPiece's");
    if (r->t->marked && (r->byte_level || r->t->n_split || !r->step))
        return lacking(r, "U+2581 for spaces with other pre-tokenizers, or without a decoder");
    return r->byte_level || r->t->marked ||
           lacking(r, "a pre-tokenizer other than ByteLevel at the end");
}

/* Tokens of bytes, and of what is unknown, in a marked text. */
static bool read_fallback(reading *r, const tni_json_node *model)
{
    tn_tokenizer *t = r->t;
    const char *unknown = tni_json_get_text(model, "unk_token", NULL);
    t->fallback = tni_json_get_flag(model, "byte_fallback", false);
    t->fuse = tni_json_get_flag(model, "fuse_unk", false);
    t->unknown = unknown ? tni_find(t, &t->by_text, unknown, strlen(unknown)) : TNI_NO_ID;
    bool all = t->fallback;
    for (int b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        if ((t->byte[b] = tni_find(t, &t->by_text, name, 6)) < 0) all = false;
    }
    if (!t->cut && !t->whole && (all || !unknown)) t->cut = TNI_WORDS;
    return !unknown || t->unknown >= 0 || wrong(r, "unk_token \"%.60s\" is no token", unknown);
}

/* Where a byte has no token, unk_token would stand for it. */
static bool check_bytes(reading *r, const tni_json_node *model)
{
    bool all = !tni_json_get(model, "unk_token");
    if (r->t->marked) return read_fallback(r, model);
    for (int b = 0; b < 256 && !all; b++)
        if (r->t->byte[b] < 0) return lacking(r, "model.unk_token");
    return true;
}

static bool read_pieces(reading *r, const tni_json_node *model, size_t n_added)
{
    tn_tokenizer *t = r->t;
    const char *prefix = tni_json_get_text(model, "continuing_subword_prefix", "##");
    const char *unknown = tni_json_get_text(model, "unk_token", "[UNK]");
    const tni_json_node *longest = tni_json_get(model, "max_input_chars_per_word");
    if (!t->pieces || t->n_split || r->byte_level || t->marked)
        return lacking(r, "WordPiece with another pre-tokenizer than BertPreTokenizer");
    if (!r->undo || !is(r->undo, prefix)) return lacking(r, "WordPiece without its decoder");
    if (strlen(prefix) >= sizeof t->prefix) return lacking(r, "the prefix %.60s...", prefix);
    strcpy(t->prefix, prefix);
    t->longest = longest && longest->kind == '0' ? longest->number : 100;
    if (!read_vocabulary(r, tni_json_get(model, "vocab")) || !tni_tokens_index(t, n_added))
        return false;
    t->unknown = tni_find(t, &t->by_text, unknown, strlen(unknown));
    return t->unknown >= 0 || wrong(r, "unk_token \"%.60s\" is no token", unknown);
}

static bool read_model(reading *r, const tni_json_node *model, size_t n_added)
{
    /* older files name no type */
    const char *type = type_of(model);
    if ((r->t->normal & (TNI_PREPEND | TNI_SPACES)) == TNI_PREPEND)
        return lacking(r, "the normalizer Prepend without Replace");
    if (is(type, "WordPiece")) return read_pieces(r, model, n_added);
    if (!is(type, "BPE") && (*type || !tni_json_get(model, "merges")))
        return lacking(r, "the model %.60s: want BPE or WordPiece", *type ? type : "without type");
    r->t->whole = tni_json_get_flag(model, "ignore_merges", false);
    return plain_bpe(r, model) && read_vocabulary(r, tni_json_get(model, "vocab")) &&
           tni_tokens_index(r->t, n_added) && check_bytes(r, model) &&
           read_merges(r, tni_json_get(model, "merges"));
}

/* ---- added tokens ---------------------------------------------------------------------------- */

static bool find_in_text(reading *r, const tni_json_node *a, int32_t id)
{
    const char *text = tni_json_get_text(a, "content", "");
    size_t n = strlen(text);
    if (!tni_json_get_flag(a, "normalized", true)) return tni_trie_add(&r->t->raw, text, n, id);
    tni_work *work = tni_work_take(r->t);
    if (!work) return false;
    bool ok = tni_normal_form(work, &text, &n) &&
              (n == 0 || tni_trie_add(&r->t->normalised, text, n, id));
    if (r->t->marked && ok) tni_marked_set(r->t, &r->t->token[id], text, n); /* as the package */
    tni_work_give(work);
    return ok && !r->t->texts.failed;
}

static bool read_added(reading *r, const tni_json_node *a, int64_t most)
{
    static const char *const flags[] = { "lstrip", "rstrip", "single_word" };
    tn_tokenizer *t = r->t;
    const char *text = tni_json_get_text(a, "content", "");
    if (!*text || strlen(text) > 1024)
        return wrong(r, "an added token without content, or of more than 1,024 bytes");
    tni_token *token = token_of(r, tni_json_get(a, "id"), most);
    if (!token) return false;
    int32_t id = (int32_t)(token - t->token), other = tni_find(t, &t->by_text, text, strlen(text));
    if (other >= 0 && other != id)
        return wrong(r, "the added token \"%.60s\" has the id %d, in the vocabulary %d", text, id,
                     other);
    if (token->there && other < 0)
        return wrong(r, "the added token \"%.60s\" has the id %d of \"%.60s\"", text, id,
                     t->texts.data + token->text.at);
    if (!token->there) {
        if (!tni_token_set(t, token, text)) return false;
        token->word = false;
    }
    if (other < 0) tni_token_put(t, &t->by_text, id);
    token->special = tni_json_get_flag(a, "special", false);
    for (int i = 0; i < 3; i++)
        if (tni_json_get_flag(a, flags[i], false))
            return lacking(r, "%s of the added token \"%.60s\"", flags[i], text);
    return find_in_text(r, a, id);
}

static bool read_all_added(reading *r, const tni_json_node *list)
{
    int64_t most = (int64_t)r->t->n_token + (list ? list->number : 0) + HOLES;
    for (const tni_json_node *m = tni_json_first(list); m; m = tni_json_after(m))
        if (!read_added(r, m, TNI_MIN(most, INT32_MAX))) return false;
    for (tni_merge *p = r->t->pair; p && p < r->t->pair + r->t->pair_capacity; p++)
        if (p->key != UINT64_MAX && r->t->token[p->id].special) p->rank = INT32_MAX; /* none */
    return true;
}

/* ---- normal forms, cuts ---------------------------------------------------------------------- */

static bool replaces(const tni_json_node *part, const char *from, const char *to)
{
    return is(type_of(part), "Replace") && is(tni_json_get_text(part, "content", ""), to) &&
           is(tni_json_get_text(tni_json_get(part, "pattern"), "String", ""), from);
}

static bool read_normalizer(reading *r, const tni_json_node *part)
{
    const bool lower = tni_json_get_flag(part, "lowercase", true);
    unsigned *normal = &r->t->normal;
    const bool prepend = is(tni_json_get_text(part, "prepend", ""), TNI_MARK);
    if (replaces(part, " ", TNI_MARK) && !(*normal & ~TNI_PREPEND))
        return *normal |= TNI_SPACES, r->t->marked = true;
    if (prepend && is(type_of(part), "Prepend") && !(*normal & ~TNI_SPACES))
        return (*normal |= TNI_PREPEND) != 0;
    if (*normal) return lacking(r, "more than one normalizer");
    if (is(type_of(part), "NFC")) return (*normal = TNI_COMPOSE) != 0;
    if (!is(type_of(part), "BertNormalizer"))
        return lacking(r, "the normalizer %.60s", type_of(part));
    *normal = lower ? TNI_LOWER : 0;
    if (tni_json_get_flag(part, "clean_text", true)) *normal |= TNI_CLEAN;
    if (tni_json_get_flag(part, "handle_chinese_chars", true)) *normal |= TNI_IDEOGRAPHS;
    if (tni_json_get_flag(part, "strip_accents", lower)) *normal |= TNI_NO_ACCENTS;
    return true;
}

/* regex NULL: a space in front. */
static bool add_split(reading *r, const char *regex)
{
    tn_tokenizer *t = r->t;
    if (t->n_split == TNI_STAGES) return lacking(r, "more than %d pre-tokenizers", TNI_STAGES);
    if (r->byte_level) return lacking(r, "a pre-tokenizer after ByteLevel");
    if (regex && !(t->split[t->n_split] = tni_pattern(r->name, regex))) return false;
    t->n_split++;
    return true;
}

static bool read_split(reading *r, const tni_json_node *part)
{
    const char *regex = tni_json_get_text(tni_json_get(part, "pattern"), "Regex", NULL);
    const char *behaviour = tni_json_get_text(part, "behavior", "");
    if (!regex) return lacking(r, "a Split without a Regex");
    if (!is(behaviour, "Isolated")) return lacking(r, "the behavior %.60s of Split", behaviour);
    return add_split(r, regex);
}

static bool read_byte_level(reading *r, const tni_json_node *part)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|"
                               " ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    if (tni_json_get_flag(part, "add_prefix_space", true) && !add_split(r, NULL)) return false;
    if (tni_json_get_flag(part, "use_regex", true) && !add_split(r, gpt2)) return false;
    return r->byte_level = true;
}

/* Older files have add_prefix_space in place of prepend_scheme. */
static bool read_metaspace(reading *r, const tni_json_node *part)
{
    static const char *const schemes[] = { "", "never", "first", "always" };
    const char *mark = tni_json_get_text(part, "replacement", ""), *scheme;
    const bool prefix = tni_json_get_flag(part, "add_prefix_space", true);
    scheme = tni_json_get_text(part, "prepend_scheme", schemes[prefix ? TNI_ALWAYS : TNI_NEVER]);
    tn_tokenizer *t = r->t;
    int k = TNI_ALWAYS;
    while (k && !is(scheme, schemes[k])) k--;
    if (!k || !is(mark, TNI_MARK) || t->normal || t->metaspace)
        return lacking(r, "Metaspace with %.20s, %.20s and a normalizer or another one", mark,
                       scheme);
    t->metaspace = k;
    t->cut = tni_json_get_flag(part, "split", true) ? TNI_MARKS : TNI_WHOLE;
    return t->marked = true;
}

static bool read_pre_tokenizer(reading *r, const tni_json_node *part)
{
    const char *type = type_of(part);
    bool each = tni_json_get_flag(part, "individual_digits", false);
    if (is(type, "ByteLevel")) return read_byte_level(r, part);
    if (is(type, "BertPreTokenizer")) return r->t->pieces = true;
    if (is(type, "Metaspace")) return read_metaspace(r, part);
    if (is(type, "Split") && r->t->normal & TNI_SPACES &&
        is(tni_json_get_text(tni_json_get(part, "pattern"), "String", ""), " "))
        return true; /* there are none */
    if (is(type, "Split")) return read_split(r, part);
    if (is(type, "Digits")) return add_split(r, each ? "\\p{N}" : "\\p{N}+");
    return lacking(r, "the pre-tokenizer %.60s", type);
}

/* ---- around a text --------------------------------------------------------------------------- */

static bool add_id(reading *r, const tni_json_node *id, const char *name, tn_ids *to)
{
    if (!id || id->kind != '0') return wrong(r, "an id of \"%.60s\" is no integer", name);
    if (id->number >= (int64_t)r->t->n_token || !r->t->token[id->number].there)
        return wrong(r, "the post-processor's id %" PRId64 " is no token", id->number);
    return tni_ids_add(to, &(int32_t){ (int32_t)id->number }, 1);
}

/* The id of BertProcessing's "cls": ["[CLS]", 101]. */
static bool add_named(reading *r, const tni_json_node *part, const char *name, tn_ids *to)
{
    const tni_json_node *text = tni_json_first(tni_json_get(part, name));
    return add_id(r, text ? tni_json_after(text) : NULL, name, to);
}

/* The ids of one part of a template. */
static bool add_part(reading *r, const tni_json_node *template, const char *name, tn_ids *to)
{
    const tni_json_node *special = tni_json_get(tni_json_get(template, "special_tokens"), name);
    const tni_json_node *id = tni_json_first(tni_json_get(special, "ids"));
    if (!id) return wrong(r, "the template's \"%.60s\" has no ids", name);
    while (id && add_id(r, id, name, to)) id = tni_json_after(id);
    return !id;
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

static bool read_post_processor(reading *r, const tni_json_node *part)
{
    const char *type = type_of(part);
    tn_ids *before = &r->t->before, *after = &r->t->after;
    if (is(type, "ByteLevel")) return true;
    if (before->n || after->n) return lacking(r, "more than one post-processor");
    if (is(type, "TemplateProcessing")) return read_template(r, part, before, after);
    if (!is(type, "BertProcessing") && !is(type, "RobertaProcessing"))
        return lacking(r, "the post-processor %.60s", type);
    return add_named(r, part, "cls", before) && add_named(r, part, "sep", after);
}

/* Of a marked text: Replace, ByteFallback, Fuse, Strip, in this order. */
static bool read_step(reading *r, const tni_json_node *part)
{
    static const char *const steps[] = { "Replace", "ByteFallback", "Fuse", "Strip" };
    const tni_json_node *start = tni_json_get(part, "start"), *stop = tni_json_get(part, "stop");
    int k = 0;
    while (k < 4 && !is(type_of(part), steps[k])) k++;
    const bool one = start && start->number == 1 && stop && stop->kind == '0' && !stop->number;
    if (k == 4 || k < r->step || (k > 0 && !r->step) ||
        (k == 0 && !replaces(part, TNI_MARK, " ")) ||
        (k == 3 && (r->step != 3 || !one || !is(tni_json_get_text(part, "content", ""), " "))))
        return lacking(r, "the decoder %.60s, as it stands here", type_of(part));
    r->step = k + 1;
    if (k == 1) r->t->spells = true;
    if (k == 3) r->t->strip = true;
    return true;
}

static bool read_decoder(reading *r, const tni_json_node *part)
{
    const char *type = type_of(part);
    if (r->t->marked) return read_step(r, part);
    if (!is(type, "WordPiece"))
        return (is(type, "ByteLevel") && !r->undo) || lacking(r, "the decoder %.60s", type);
    r->undo = tni_json_get_text(part, "prefix", "##");
    r->t->cleanup = tni_json_get_flag(part, "cleanup", true);
    return true;
}

static bool read_root(reading *r, const tni_json_node *root)
{
    const tni_json_node *added = tni_json_get(root, "added_tokens");
    if (added && added->kind != '[') return wrong(r, "added_tokens is no list");
    return each_part(r, tni_json_get(root, "normalizer"), "normalizers", read_normalizer, 0) &&
           each_part(r, tni_json_get(root, "pre_tokenizer"), "pretokenizers", read_pre_tokenizer,
                     0) &&
           each_part(r, tni_json_get(root, "decoder"), "decoders", read_decoder, 0) &&
           read_model(r, tni_json_get(root, "model"), added ? (size_t)added->number : 0) &&
           read_all_added(r, added) &&
           each_part(r, tni_json_get(root, "post_processor"), "processors", read_post_processor, 0);
}

bool tni_tokenizer_read(tn_tokenizer *t, const char *name, tni_bytes *json)
{
    reading r = { .t = t, .name = name };
    tni_json_tree TN_WHEN_LEFT(tni_json_tree_free) tree = { 0 };
    tni_bytes_add(&t->file, json->data, json->n);
    return !t->file.failed && tni_lm_tree("tokenizer", name, json, &tree) == TN_OK &&
           read_root(&r, tree.node);
}
