/*
 * layouts.c - other files than a tokenizer.json: GPT-2's vocab.json and merges.txt, tiktoken's
 * ranks. Each becomes the tokenizer.json that says the same, and is read as that.
 *
 * Source: transformers, GPT2Tokenizer and Qwen2Tokenizer; tiktoken, its patterns and special tokens
 * (tiktoken_ext/openai_public.py); llama-models, those of Llama 3.
 */
#include <unistd.h>

#include "ext/lm/config.h"
#include "ext/lm/tokenizer.h"

/* What finds words: contractions, letters, digits, signs, white space. */
#define SHORTENED "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define NO_LETTER "[^\\r\\n\\p{L}\\p{N}]?"
#define LETTERS "|" NO_LETTER "\\p{L}+|"
#define SIGNS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define SPACES "|\\s+(?!\\S)|\\s+"
#define WORDS(digits) SHORTENED LETTERS digits SIGNS "|\\s*[\\r\\n]+" SPACES

#define yes(flag) ((flag) ? "true" : "false")
#define wrong(l, ...) tni_false(tni_file_error(TN_E_FORMAT, "tokenizer", (l)->name, __VA_ARGS__))

/* ---- a tokenizer.json ------------------------------------------------------------------------ */

static const char *comma(const tni_bytes *b)
{
    return b->n ? "," : "";
}

/* A token, with the flags that m says, NULL: none; special as given. */
static bool add_flags(tni_layout *l, int64_t id, const char *text, const tni_json_node *m,
                      bool special)
{
    static const char *const flag[] = { "single_word", "lstrip", "rstrip", "normalized" };
    tni_bytes *b = &l->added;
    tni_bytes_printf(b, "%s{\"id\":%" PRId64 ",\"content\":", comma(b), id);
    if (!text || !tni_json_add(b, text))
        return wrong(l, "the token \"%.60s\" is not UTF-8", text ? text : "NULL");
    for (int i = 0; i < 4; i++)
        tni_bytes_printf(b, ",\"%s\":%s", flag[i],
                         yes(tni_json_get_flag(m, flag[i], i == 3 && !special)));
    tni_bytes_printf(b, ",\"special\":%s}", yes(special));
    return true;
}

bool tni_layout_special(tni_layout *l, int64_t id, const char *text)
{
    if (!add_flags(l, id, text, NULL, true)) return false;
    tni_bytes_add(&l->vocab, ",", l->vocab.n > 0);
    tni_json_add(&l->vocab, text);
    tni_bytes_printf(&l->vocab, ":%" PRId64, id);
    return true;
}

bool tni_layout_merge(tni_bytes *b, const char *left, const char *right)
{
    tni_bytes_printf(b, "%s[", comma(b));
    const bool valid = tni_json_add(b, left);
    tni_bytes_add(b, ",", 1);
    const bool both = valid && tni_json_add(b, right);
    tni_bytes_add(b, "]", 1);
    return both;
}

void tni_layout_word(tni_layout *l, int64_t id, const char *bytes, size_t n)
{
    tni_bytes_printf(&l->vocab, "%s\"", comma(&l->vocab));
    tni_letters(&l->vocab, bytes, n);
    tni_bytes_printf(&l->vocab, "\":%" PRId64, id);
}

bool tni_layout_read(tn_tokenizer *t, tni_layout *l, bool ok)
{
    static const char form[] =
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[%s],"
        "\"normalizer\":%s,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[%s"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,\"trim_offsets\":true,\"use_regex\":%s}]},"
        "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
        "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
        "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
        "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":%s,\"vocab\":{%s},"
        "\"merges\":[%s]}}";
    tni_bytes b = { 0 }, split = { 0 }, *all[] = { &b, &split, &l->added, &l->vocab, &l->merges };
    if (l->pattern) {
        tni_bytes_printf(&split, "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,"
                                 "\"pattern\":{\"Regex\":");
        ok = ok && (tni_json_add(&split, l->pattern) || wrong(l, "a pattern that is not UTF-8"));
        tni_bytes_printf(&split, "}},");
    }
    for (int i = 1; i < 5; i++) tni_bytes_add(all[i], "", 1), ok = ok && !all[i]->failed;
    if (ok)
        tni_bytes_printf(&b, form, l->added.data, l->compose ? "{\"type\":\"NFC\"}" : "null",
                         split.data, yes(l->prefix), yes(!l->pattern), yes(l->whole), l->vocab.data,
                         l->merges.data);
    ok = ok && !b.failed && tni_tokenizer_read(t, l->name, &b);
    for (int i = 0; i < 5; i++) tni_bytes_free(all[i]);
    return ok;
}

/* ---- vocab.json and merges.txt --------------------------------------------------------------- */

/* The next line, zero-terminated, and what is behind its first space, or NULL. NULL: the end. */
static char *next_line(char **at, char **second)
{
    char *line = *at, *end = strchrnul(line, '\n');
    if (!*line) return NULL;
    *at = end + (*end != '\0');
    *end = '\0';
    if (end > line && end[-1] == '\r') end[-1] = '\0';
    if ((*second = strchr(line, ' '))) *(*second)++ = '\0';
    return line;
}

/* An id, or TNI_NO_ID: the text is none. */
static int64_t number_of(const char *text)
{
    char *end;
    const int64_t id = *text >= '0' && *text <= '9' ? strtoll(text, &end, 10) : TNI_NO_ID;
    return id >= 0 && id < INT32_MAX && !*end ? id : TNI_NO_ID;
}

#define END_OF_TEXT "<|endoftext|>"
enum { VOCAB, ADDED, MAP, CONFIG, MODEL, FILES };

typedef struct added_token {
    const char *text;
    int64_t id;
    const tni_json_node *flags;
    bool special;
} added_token;

typedef struct folder {
    tni_layout l;
    tni_json_tree tree[FILES]; /* without the file empty, and its node NULL */
    tni_bytes text[FILES];
    added_token *added;
    size_t n, capacity;
    int64_t next; /* id of a token that has none */
} folder;

/* id < 0: that of the vocabulary, or a new one. */
static bool add_token(folder *f, const char *text, int64_t id, const tni_json_node *m, bool special)
{
    size_t i = 0;
    while (i < f->n && strcmp(f->added[i].text, text) != 0) i++;
    if (i < f->n) return f->added[i].special |= special, true;
    if (i == 1 << 14) return wrong(&f->l, "more than 16,384 added tokens");
    const tni_json_node *known = id < 0 ? tni_json_get(f->tree[VOCAB].node, text) : NULL;
    if (!tni_room(&f->added, &f->capacity, f->n, 1, sizeof *f->added)) return false;
    if (id < 0) id = known ? known->number : f->next;
    f->next = TNI_MAX(f->next, id + 1);
    f->added[f->n++] = (added_token){ text, id, m, special };
    return true;
}

/* A token that plays a part, or each in a list. */
static bool add_named(folder *f, const tni_json_node *m)
{
    const char *text = m && m->kind == '"' ? m->text : tni_json_get_text(m, "content", NULL);
    bool ok = !text || add_token(f, text, TNI_NO_ID, m, true);
    if (!m || m->kind != '[') return ok;
    for (m = tni_json_first(m); m && ok; m = tni_json_after(m)) ok = add_named(f, m);
    return ok;
}

static int by_id(const void *a, const void *b)
{
    const int64_t x = ((const added_token *)a)->id, y = ((const added_token *)b)->id;
    return x < y ? -1 : x > y;
}

/* Those that have ids, then those that are named. As in transformers, the end of text is the
 * unknown token where none is named. */
static bool add_tokens(folder *f)
{
    static const char *const names[] = { "bos_token",  "eos_token",
                                         "unk_token",  "sep_token",
                                         "pad_token",  "cls_token",
                                         "mask_token", "additional_special_tokens" };
    const tni_json_node *list = tni_json_get(f->tree[CONFIG].node, "added_tokens_decoder"), *m;
    if (list && list->kind != '{') return wrong(&f->l, "added_tokens_decoder is no object");
    bool ok = true;
    f->next = f->tree[VOCAB].node->number;
    for (m = tni_json_first(list ? list : f->tree[ADDED].node); m && ok; m = tni_json_after(m)) {
        const char *text = list ? tni_json_get_text(m, "content", "") : m->key;
        const int64_t id = list ? number_of(m->key) : m->kind == '0' ? m->number : TNI_NO_ID;
        if (id < 0 || id >= INT32_MAX)
            return wrong(&f->l, "the id of the added token \"%.60s\": want 0 to 2^31 - 2", text);
        ok = add_token(f, text, id, list ? m : NULL, tni_json_get_flag(m, "special", false));
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && ok; i++) {
        m = tni_json_get(f->tree[CONFIG].node, names[i]);
        if (!m) m = tni_json_get(f->tree[MAP].node, names[i]);
        ok = add_named(f, m);
        if (!m && i == 2 && ok && tni_json_get(f->tree[VOCAB].node, END_OF_TEXT))
            ok = add_token(f, END_OF_TEXT, TNI_NO_ID, NULL, true);
    }
    tni_sort(f->added, f->n, sizeof *f->added, by_id);
    for (const added_token *a = f->added; a && a < f->added + f->n && ok; a++)
        ok = add_flags(&f->l, a->id, a->text, a->flags, a->special);
    return ok;
}

static bool add_merges(folder *f, const char *path)
{
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) text = { 0 };
    if (tni_bytes_file(&text, "tokenizer", path, TNI_LARGEST) != TN_OK) return false;
    char *at = text.data, *left, *right;
    for (int n = 1; (left = next_line(&at, &right)); n++)
        if (*left && strncmp(left, "#version", 8) != 0 &&
            !(right && !strchr(right, ' ') && tni_layout_merge(&f->l.merges, left, right)))
            return wrong(&f->l, "merges.txt, line %d, \"%.40s\": want two tokens and a space", n,
                         left);
    return at == text.data + text.n || wrong(&f->l, "a zero byte in merges.txt");
}

/* Who cuts the text is said by the class, or else by the model. */
static bool choose_class(folder *f)
{
    const tni_json_node *config = f->tree[CONFIG].node;
    const char *model = tni_json_get_text(f->tree[MODEL].node, "model_type", "");
    const char *name = tni_json_get_text(config, "tokenizer_class", "");
    const bool qwen = *name ? !strncmp(name, "Qwen2Tokenizer", 14) : !strncmp(model, "qwen", 4);
    if (*name && !qwen && strncmp(name, "GPT2Tokenizer", 13) != 0)
        return tni_false(tni_file_error(TN_E_UNSUPPORTED, "tokenizer", f->l.name,
                                        "the tokenizer_class %.60s: want GPT2Tokenizer or "
                                        "Qwen2Tokenizer, or a tokenizer.json",
                                        name));
    if (qwen) f->l.pattern = WORDS("\\p{N}"), f->l.compose = true;
    f->l.prefix = !qwen && tni_json_get_flag(config, "add_prefix_space", false);
    return true;
}

bool tni_vocab_read(tn_tokenizer *t, const char *path, size_t n)
{
    static const char *const file[] = { "vocab.json", "added_tokens.json",
                                        "special_tokens_map.json", "tokenizer_config.json",
                                        "config.json" };
    char inside[4096];
    folder f = { .l = { .name = path } };
    bool ok = true;
    for (int i = 0; i < FILES && ok; i++) {
        snprintf(inside, sizeof inside, "%.*s%s", (int)n, path, file[i]);
        if (i != VOCAB && access(inside, F_OK) != 0) continue;
        ok = tni_bytes_file(&f.text[i], "tokenizer", inside, TNI_LARGEST) == TN_OK;
        const char *open = ok ? strchr(f.text[i].data, '{') : NULL, *end = NULL;
        if (i == VOCAB && open && (end = strrchr(open, '}')))
            tni_bytes_add(&f.l.vocab, open + 1, (size_t)(end - open) - 1);
        ok = ok && tni_lm_tree("tokenizer", inside, &f.text[i], &f.tree[i]) == TN_OK;
    }
    snprintf(inside, sizeof inside, "%.*smerges.txt", (int)n, path);
    ok = tni_layout_read(t, &f.l,
                         ok && choose_class(&f) && add_tokens(&f) && add_merges(&f, inside));
    for (int i = 0; i < FILES; i++) tni_json_tree_free(&f.tree[i]), tni_bytes_free(&f.text[i]);
    tni_room_free(&f.added, &f.capacity, sizeof *f.added);
    return ok;
}

/* ---- tiktoken's ranks ------------------------------------------------------------------------ */

#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

/* pattern NULL: GPT-2's. A number stands before the special token whose id it is, and that of those
 * which follow. */
static const struct encoding {
    const char *name, *pattern, *special;
} encodings[] = {
    { "gpt2", NULL, "50256 " END_OF_TEXT },
    { "cl100k_base", SHORTENED LETTERS "\\p{N}{1,3}" SIGNS "|\\s+\\z|\\s*[\\r\\n]+" SPACES,
      "100257 " END_OF_TEXT
      " <|fim_prefix|> <|fim_middle|> <|fim_suffix|> 100276 <|endofprompt|>" },
    { "o200k_base",
      NO_LETTER UPPER "*" LOWER "+" SHORTENED "?|" NO_LETTER UPPER "+" LOWER "*" SHORTENED
                      "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" SPACES,
      "199999 " END_OF_TEXT " 200018 <|endofprompt|>" },
    { "llama3", WORDS("\\p{N}{1,3}"),
      "128000 <|begin_of_text|> <|end_of_text|> <|reserved_special_token_0|> "
      "<|reserved_special_token_1|> <|finetune_right_pad_id|> <|step_id|> <|start_header_id|> "
      "<|end_header_id|> <|eom_id|> <|eot_id|> <|python_tag|> <|image|>" },
};

/* name NULL: as the file is called, up to its first dot. NULL: none is called so. */
static const struct encoding *encoding_of(const char *name, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!name) name = slash ? slash + 1 : path;
    if (!strcmp(name, "tokenizer.model")) name = "llama3";
    const size_t n = sizeof encodings / sizeof *encodings, k = strcspn(name, ".");
    for (const struct encoding *e = encodings; e < encodings + n; e++)
        if (strlen(e->name) == k && !strncmp(name, e->name, k)) return e;
    return NULL;
}

/* Llama 3 has more that are reserved, 256 in all. */
static bool add_specials(tni_layout *l, const struct encoding *e)
{
    char text[40];
    int64_t id = 0;
    int n = 0, reserved = strcmp(e->name, "llama3") ? 246 : 2;
    bool ok = true;
    for (const char *at = e->special; ok && (*at || reserved < 246); at += n, n = 0) {
        if (sscanf(at, "%39s%n", text, &n) != 1)
            snprintf(text, sizeof text, "<|reserved_special_token_%d|>", reserved++);
        if (*text != '<') id = strtoll(text, NULL, 10);
        if (*text == '<') ok = tni_layout_special(l, id++, text);
    }
    return ok;
}

/* The bytes, in place; 0: there are none, or it is no base64. */
static size_t from_base64(char *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = text, *digit;
    size_t n = 0;
    unsigned bits = 0, have = 0;
    for (; *at && (digit = strchr(digits, *at)); at++) {
        bits = bits << 6 | (unsigned)(digit - digits);
        if ((have += 6) >= 8) text[n++] = (char)(bits >> (have -= 8));
    }
    return at[strspn(at, "=")] ? 0 : n;
}

static bool read_ranks(tni_layout *l, int64_t *last)
{
    enum { LONGEST = 512 };
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) text = { 0 };
    if (tni_bytes_file(&text, "tokenizer", l->name, TNI_LARGEST) != TN_OK) return false;
    if (*text.data == '\n') return wrong(l, "not of tiktoken, but of SentencePiece, it seems");
    char *at = text.data, *token, *rank;
    for (int line = 1; (token = next_line(&at, &rank)); line++) {
        const bool none = strcmp(token, "=") == 0; /* Whisper's files have a token of no bytes */
        const size_t n = from_base64(token);
        const int64_t id = rank ? number_of(rank + strspn(rank, " \t")) : TNI_NO_ID;
        if (!rank && !*token) continue;
        if (n > LONGEST || (n == 0 && !none) || id < 0)
            return wrong(l, "line %d: want 1 to %d bytes in base64, a space and a rank", line,
                         LONGEST);
        if (!none) tni_layout_word(l, id, token, n);
        *last = TNI_MAX(*last, id);
    }
    return at == text.data + text.n || wrong(l, "a zero byte in it");
}

/* The token that has these bytes and a rank, or TNI_NO_ID. */
static int32_t ranked(const tn_tokenizer *t, const char *bytes, size_t n)
{
    const int32_t id = tni_find(t, &t->by_bytes, bytes, n);
    return id >= 0 && !t->token[id].special ? id : TNI_NO_ID;
}

/* Two tokens become one wherever their bytes are those of a token, whose rank counts. */
static bool join_all(tn_tokenizer *t, tni_bytes *merges)
{
    size_t n = 0;
    for (int fill = 0; fill < 2; fill++) {
        if (fill && !(t->pair = tni_table(n, sizeof *t->pair, &t->pair_capacity))) return false;
        for (int32_t id = 0; id < (int32_t)t->n_token; id++) {
            const struct tni_span s = t->token[id].bytes;
            const char *text = t->texts.data + s.at;
            if (!t->token[id].there || ranked(t, text, s.n) != id) continue;
            for (uint32_t k = 1; k < s.n; k++) {
                const int32_t a = ranked(t, text, k);
                const int32_t b = a < 0 ? a : ranked(t, text + k, s.n - k);
                if (b < 0 || (n++, !fill)) continue;
                const tni_merge both = { .key = tni_merge_key(a, b), .rank = id, .id = id };
                *tni_merge_at(t->pair, t->pair_capacity, t->seed, both.key) = both;
                tni_layout_merge(merges, t->texts.data + t->token[a].text.at,
                                 t->texts.data + t->token[b].text.at);
            }
        }
    }
    return true;
}

bool tni_ranks_read(tn_tokenizer *t, const char *path, const tn_tiktoken_options *o)
{
    const struct encoding *e = encoding_of(o->encoding, path);
    tni_layout l = { .name = path, .whole = true };
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) merges = { 0 };
    int64_t last = -1;
    if (!e && (o->encoding || !o->pattern))
        return tni_false(
            tni_file_error(TN_E_INVALID, "tokenizer", path,
                           "%s%.60s: want gpt2, cl100k_base, o200k_base or llama3, or a pattern",
                           o->encoding ? "the encoding " : "its name is no encoding's",
                           o->encoding ? o->encoding : ""));
    l.pattern = o->pattern ? o->pattern : e->pattern;
    bool ok = read_ranks(&l, &last) && (o->special || !e || add_specials(&l, e));
    for (int64_t i = 0; o->special && i < o->n_special && ok; i++)
        ok = tni_layout_special(&l, o->special_ids ? o->special_ids[i] : last + 1 + i,
                                o->special[i]);
    if (!tni_layout_read(t, &l, ok)) return false;
    for (int b = 0; b < 256; b++)
        if (t->byte[b] < 0) return wrong(&l, "no token for the byte 0x%02X alone", b);
    tni_free(t->pair, t->pair_capacity * sizeof *t->pair);
    t->pair = NULL;
    if (!join_all(t, &merges)) return false;
    tni_bytes_printf(&merges, "]}}");
    t->file.n -= 3; /* its "]}}" */
    tni_bytes_add(&t->file, merges.data, merges.n);
    return !merges.failed && !t->file.failed;
}
