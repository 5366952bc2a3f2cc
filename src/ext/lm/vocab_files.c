/*
 * vocab_files.c - tokenizers from files: tokenizer.json, or vocab.json and merges.txt, ranks of
 * tiktoken, vocab.txt, of which a tokenizer.json is made that says the same.
 */
#include <errno.h>
#include <sys/stat.h>
#include <utf8proc.h>

#include "ext/lm/tokenizer.h"

static const char function[] = "tn_tokenizer_load";

static void add(tni_bytes *to, const char *text)
{
    tni_bytes_add(to, text, strlen(text));
}

/* ---- the parts of a tokenizer.json ----------------------------------------------------------- */

bool tni_json_begin(tni_bytes *json, const char *pattern, bool whole)
{
    const char *regex = tni_known_pattern(pattern ? pattern : "gpt2");
    bool gpt2 = strcmp(regex, tni_known_pattern("gpt2")) == 0;
    add(json, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"normalizer\":");
    add(json, pattern && strcmp(pattern, "qwen2") == 0 ? "{\"type\":\"NFC\"}" : "null");
    add(json, ",\"pre_tokenizer\":");
    if (!gpt2) {
        add(json, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
                  "{\"Regex\":");
        if (!tni_json_add(json, regex))
            return tni_false(tni_error(TN_E_INVALID, "tokenizer: the pattern is not UTF-8"));
        add(json, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    add(json, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
              "\"use_regex\":");
    add(json, gpt2 ? "true}" : "false}]}");
    add(json, ",\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
              "true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\","
              "\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
              "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,"
              "\"ignore_merges\":");
    add(json, whole ? "true,\"vocab\":" : "false,\"vocab\":");
    return !json->failed;
}

bool tni_json_added(tni_bytes *json, int64_t id, const char *text, bool first)
{
    tni_bytes_printf(json, "%s{\"id\":%" PRId64 ",\"content\":", first ? "" : ",", id);
    if (!tni_json_add(json, text))
        return tni_false(tni_error(TN_E_INVALID, "tokenizer: a special token is not UTF-8"));
    add(json, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
              "\"special\":true}");
    return !json->failed;
}

void tni_json_letters(tni_bytes *json, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        utf8proc_uint8_t utf8[4];
        int32_t c = tni_byte_letter((unsigned char)bytes[i]);
        if (c == '"' || c == '\\') add(json, "\\");
        tni_bytes_add(json, utf8, (size_t)utf8proc_encode_char(c, utf8));
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool read_file(const char *path, tni_bytes *to)
{
    tni_input in;
    if (tni_input_open(&in, function, path) != TN_OK) return false;
    size_t n = (size_t)in.size;
    bool ok = tni_room(&to->data, &to->capacity, 0, n + 1, 1) &&
              tni_input_read(&in, 0, to->data, n) == TN_OK;
    tni_input_close(&in);
    if (ok) to->n = n, to->data[n] = 0;
    return ok;
}

/* FOLDER/name, or the file `name` beside a file. tni_strfree. */
static char *beside(const char *path, bool folder, const char *name)
{
    const char *slash = strrchr(path, '/');
    size_t n = folder ? strlen(path) : slash ? (size_t)(slash - path) : 0;
    tni_bytes b = { 0 };
    tni_bytes_add(&b, path, n);
    if (folder || slash) add(&b, "/");
    add(&b, name);
    tni_bytes_add(&b, "", 1);
    char *text = b.failed ? NULL : tni_copy_text(b.data);
    tni_bytes_free(&b);
    return text;
}

static bool is_there(const char *path, bool *folder)
{
    struct stat s;
    bool there = stat(path, &s) == 0;
    *folder = there && S_ISDIR(s.st_mode);
    return there;
}

/* The next line of a text without its end; false: there is none. */
static bool next_line(char **at, char *end, char **line, size_t *n)
{
    if (*at >= end) return false;
    char *stop = memchr(*at, '\n', (size_t)(end - *at));
    *line = *at;
    *n = (size_t)((stop ? stop : end) - *at);
    *at = stop ? stop + 1 : end;
    if (*n && (*line)[*n - 1] == '\r') --*n;
    return true;
}

static bool bad(const char *path, size_t line, const char *what)
{
    return tni_false(tni_file_error(TN_E_FORMAT, function, path, "line %zu: %s", line, what));
}

/* ---- special tokens -------------------------------------------------------------------------- */

static bool like(const char *pattern, const char *name)
{
    return pattern && strcmp(pattern, name) == 0;
}

/* Llama 3's 256 special tokens (its models' tokenizer.py). */
static bool add_llama3(tni_bytes *json, int64_t id)
{
    static const char *const known[] = { "<|begin_of_text|>",
                                         "<|end_of_text|>",
                                         "<|reserved_special_token_0|>",
                                         "<|reserved_special_token_1|>",
                                         "<|finetune_right_pad_id|>",
                                         "<|step_id|>",
                                         "<|start_header_id|>",
                                         "<|end_header_id|>",
                                         "<|eom_id|>",
                                         "<|eot_id|>",
                                         "<|python_tag|>",
                                         "<|image|>" };
    const int n = sizeof known / sizeof *known;
    for (int i = 0; i < 256; i++) {
        char name[40];
        snprintf(name, sizeof name, "<|reserved_special_token_%d|>", i - n + 2);
        if (!tni_json_added(json, id + i, i < n ? known[i] : name, i == 0)) return false;
    }
    return true;
}

/* Special tokens with ids from `id` on. */
static bool add_special(tni_bytes *json, tn_tokenizer_options o, int64_t id)
{
    add(json, ",\"added_tokens\":[");
    bool ok = true;
    if (!o.special && like(o.pattern, "llama3"))
        ok = add_llama3(json, id);
    else if (!o.special && (!o.pattern || like(o.pattern, "gpt2")))
        ok = tni_json_added(json, id, "<|endoftext|>", true);
    for (int i = 0; o.special && i < o.n_special && ok; i++)
        ok = tni_json_added(json, id + i, o.special[i], i == 0);
    add(json, "]}");
    return ok && !json->failed;
}

/* ---- ranks of tiktoken ----------------------------------------------------------------------- */

typedef struct ranks {
    tni_bytes bytes;
    struct rank {
        size_t at, n;
    } * of;
    size_t n, capacity;
    int32_t *slot; /* by their bytes: a hash table of ranks */
    size_t n_slot;
} ranks;

/* Appends what base64 stands for; false: it is none. */
static bool decode_base64(tni_bytes *to, const char *s, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    int filled = 0;
    while (n && s[n - 1] == '=') n--;
    for (size_t i = 0; i < n; i++) {
        const char *digit = s[i] ? strchr(digits, s[i]) : NULL;
        if (!digit) return false;
        bits = bits << 6 | (uint32_t)(digit - digits);
        filled += 6;
        if (filled < 8) continue;
        char byte = (char)(bits >> (filled -= 8) & 0xff);
        tni_bytes_add(to, &byte, 1);
    }
    return !to->failed && n > 0;
}

static int32_t find_rank(const ranks *r, const char *text, size_t n, size_t *place)
{
    size_t i = tni_word_hash((uintptr_t)r, text, n) & (r->n_slot - 1);
    for (; r->slot[i] >= 0; i = (i + 1) & (r->n_slot - 1)) {
        const struct rank *rank = &r->of[r->slot[i]];
        if (rank->n == n && memcmp(r->bytes.data + rank->at, text, n) == 0) break;
    }
    if (place) *place = i;
    return r->slot[i];
}

static bool read_ranks(ranks *r, const char *path, char *at, char *end)
{
    char *line;
    size_t n;
    for (size_t number = 1; next_line(&at, end, &line, &n); number++) {
        if (n == 0) continue;
        char *space = memchr(line, ' ', n), *stop = NULL;
        if (!space || !tni_room(&r->of, &r->capacity, r->n, 1, sizeof *r->of))
            return space ? false : bad(path, number, "want a token in base64 and its rank");
        long long rank = strtoll(space + 1, &stop, 10);
        if (stop != line + n || rank != (long long)r->n)
            return bad(path, number, "want ranks 0, 1, 2 and so on");
        size_t begin = r->bytes.n;
        if (!decode_base64(&r->bytes, line, (size_t)(space - line)))
            return !r->bytes.failed && bad(path, number, "want base64");
        r->of[r->n++] = (struct rank){ begin, r->bytes.n - begin };
    }
    return r->n < INT32_MAX / 4 || bad(path, r->n, "too many ranks");
}

static bool index_ranks(ranks *r, const char *path)
{
    for (r->n_slot = 16; r->n_slot < 2 * r->n;) r->n_slot *= 2;
    r->slot = tni_alloc(r->n_slot * sizeof *r->slot);
    if (!r->slot) return false;
    memset(r->slot, 0xff, r->n_slot * sizeof *r->slot);
    for (size_t i = 0; i < r->n; i++) {
        size_t place;
        if (find_rank(r, r->bytes.data + r->of[i].at, r->of[i].n, &place) >= 0)
            return bad(path, i + 1, "a token that was there before");
        r->slot[place] = (int32_t)i;
    }
    return true;
}

/* All pairs of tokens that make a token, in the order of what they make. */
static void add_pairs(tni_bytes *json, const ranks *r)
{
    bool first = true;
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 1; k < r->of[i].n; k++) {
            const char *text = r->bytes.data + r->of[i].at;
            if (find_rank(r, text, k, NULL) < 0 || find_rank(r, text + k, r->of[i].n - k, NULL) < 0)
                continue;
            add(json, first ? "[\"" : ",[\"");
            first = false;
            tni_json_letters(json, text, k);
            add(json, "\",\"");
            tni_json_letters(json, text + k, r->of[i].n - k);
            add(json, "\"]");
        }
}

static bool ranks_to_json(tni_bytes *json, const ranks *r, tn_tokenizer_options o)
{
    if (!tni_json_begin(json, o.pattern, true)) return false;
    add(json, "{");
    for (size_t i = 0; i < r->n; i++) {
        add(json, i ? ",\"" : "\"");
        tni_json_letters(json, r->bytes.data + r->of[i].at, r->of[i].n);
        tni_bytes_printf(json, "\":%zu", i);
    }
    add(json, "},\"merges\":[");
    add_pairs(json, r);
    add(json, "]}");
    return add_special(json, o, (int64_t)r->n);
}

static bool from_ranks(tni_bytes *json, const char *path, tni_bytes *file, tn_tokenizer_options o)
{
    ranks r = { 0 };
    bool pieces = file->n > 4 && memchr(file->data, 0, file->n);
    if (pieces)
        return tni_false(tni_file_error(TN_E_UNSUPPORTED, function, path,
                                        "a file of SentencePiece, not ranks of tiktoken"));
    bool ok = read_ranks(&r, path, file->data, file->data + file->n) && index_ranks(&r, path) &&
              ranks_to_json(json, &r, o);
    tni_free(r.slot, r.n_slot * sizeof *r.slot);
    tni_room_free(&r.of, &r.capacity, sizeof *r.of);
    tni_bytes_free(&r.bytes);
    return ok;
}

/* ---- vocab.txt ------------------------------------------------------------------------------- */

/* The id of a line that is this text; -1. */
static int64_t line_of(const tni_bytes *file, const char *text)
{
    char *at = file->data, *end = at + file->n, *line;
    size_t n;
    for (int64_t i = 0; next_line(&at, end, &line, &n); i++)
        if (n == strlen(text) && memcmp(line, text, n) == 0) return i;
    return -1;
}

static bool add_lines(tni_bytes *json, const char *path, const tni_bytes *file)
{
    char *at = file->data, *end = at + file->n, *line;
    size_t n;
    add(json, "{");
    for (size_t i = 0; next_line(&at, end, &line, &n); i++) {
        line[n] = 0; /* its end, or the zero behind the text */
        if (i) add(json, ",");
        if (!tni_json_add(json, line)) return bad(path, i + 1, "it is not UTF-8");
        tni_bytes_printf(json, ":%zu", i);
    }
    add(json, "}");
    return !json->failed;
}

static bool from_lines(tni_bytes *json, const char *path, tni_bytes *file, bool cased)
{
    static const char *const special[] = { "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]" };
    int64_t cls = line_of(file, "[CLS]"), sep = line_of(file, "[SEP]");
    tni_bytes_printf(json,
                     "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"normalizer\":"
                     "{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":"
                     "true,\"strip_accents\":null,\"lowercase\":%s},\"pre_tokenizer\":{\"type\":"
                     "\"BertPreTokenizer\"},\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\","
                     "\"cleanup\":true},\"post_processor\":",
                     cased ? "false" : "true");
    if (cls >= 0 && sep >= 0)
        tni_bytes_printf(json,
                         "{\"type\":\"BertProcessing\",\"sep\":[\"[SEP]\",%" PRId64
                         "],\"cls\":[\"[CLS]\",%" PRId64 "]}",
                         sep, cls);
    else
        add(json, "null");
    add(json, ",\"added_tokens\":[");
    bool first = true, ok = true;
    for (int i = 0; i < 5; i++) {
        int64_t id = line_of(file, special[i]);
        if (id < 0) continue;
        ok = ok && tni_json_added(json, id, special[i], first);
        first = false;
    }
    add(json, "],\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\","
              "\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":100,\"vocab\":");
    ok = ok && add_lines(json, path, file);
    add(json, "}}");
    return ok && !json->failed;
}

/* ---- vocab.json and merges.txt --------------------------------------------------------------- */

static bool add_merges(tni_bytes *json, const char *path, const tni_bytes *file)
{
    char *at = file->data, *end = at + file->n, *line;
    size_t n, written = 0;
    add(json, ",\"merges\":[");
    for (size_t i = 1; next_line(&at, end, &line, &n); i++) {
        line[n] = 0;
        if (n == 0 || strncmp(line, "#version", 8) == 0) continue;
        if (written++) add(json, ",");
        if (!tni_json_add(json, line)) return bad(path, i, "it is not UTF-8");
    }
    add(json, "]}");
    return !json->failed;
}

/* The special tokens that a vocabulary.json has, as added ones. */
static bool add_own(tni_bytes *json, const char *path, tni_bytes *vocab, tn_tokenizer_options o)
{
    static const char *const gpt2[] = { "<|endoftext|>" };
    const char *const *special = o.special ? o.special : gpt2;
    int n = o.special ? o.n_special : 1;
    bool first = true, ok = true;
    tni_json_tree tree;
    bool read = tni_json_tree_read(&tree, vocab->data, vocab->n);
    if (tree.problem)
        tni_file_error(TN_E_FORMAT, function, path, "at byte %zu: %s", tree.at, tree.problem);
    int64_t next = read ? tree.node->number : 0;
    add(json, ",\"added_tokens\":[");
    for (int i = 0; i < n && read && ok; i++) {
        const tni_json_node *id = tni_json_get(tree.node, special[i]);
        if (!id && !o.special) continue;
        ok = tni_json_added(json, id ? id->number : next++, special[i], first);
        first = false;
    }
    add(json, "]}");
    tni_json_tree_free(&tree);
    return read && ok && !json->failed;
}

static bool from_vocabulary(tni_bytes *json, const char *path, tni_bytes *vocab,
                            tn_tokenizer_options o)
{
    char *other = beside(path, false, "merges.txt");
    tni_bytes merges = { 0 };
    bool ok = other && read_file(other, &merges) && tni_json_begin(json, o.pattern, false);
    if (ok) tni_bytes_add(json, vocab->data, vocab->n);
    ok = ok && add_merges(json, other, &merges) && add_own(json, path, vocab, o);
    tni_bytes_free(&merges);
    tni_strfree(other);
    return ok;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* A tokenizer_config.json's "bos_token": "<s>" or {"content": "<s>"}. */
static int64_t named(const tn_tokenizer *t, const tni_json_node *config, const char *key)
{
    const tni_json_node *m = tni_json_get(config, key);
    const char *text = m && m->kind == '"' ? m->text : tni_json_get_text(m, "content", NULL);
    return text ? tni_find(t, &t->by_text, text, strlen(text)) : TNI_NO_ID;
}

static bool read_config(tn_tokenizer *t, const char *path, bool folder)
{
    char *config = beside(path, folder, "tokenizer_config.json");
    tni_bytes file = { 0 };
    tni_json_tree tree = { 0 };
    bool is_folder, there = config && is_there(config, &is_folder) && !is_folder;
    bool ok =
        config &&
        (!there || (read_file(config, &file) && tni_json_tree_read(&tree, file.data, file.n)));
    if (tree.problem)
        tni_file_error(TN_E_FORMAT, function, config, "at byte %zu: %s", tree.at, tree.problem);
    if (ok && there) {
        t->bos = named(t, tree.node, "bos_token");
        t->eos = named(t, tree.node, "eos_token");
        t->pad = named(t, tree.node, "pad_token");
        t->cls = named(t, tree.node, "cls_token");
        t->sep = named(t, tree.node, "sep_token");
        t->mask = named(t, tree.node, "mask_token");
    }
    tni_json_tree_free(&tree);
    tni_bytes_free(&file);
    tni_strfree(config);
    return ok;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

/* The file that a folder's tokenizer is in. tni_strfree; NULL and a message. */
static char *choose(const char *folder)
{
    static const char *const names[] = { "tokenizer.json", "vocab.json", "tokenizer.model",
                                         "vocab.txt" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool is_folder;
        char *path = beside(folder, true, names[i]);
        if (!path || (is_there(path, &is_folder) && !is_folder)) return path;
        tni_strfree(path);
    }
    tni_file_error(TN_E_IO, function, folder,
                   "has no tokenizer.json, vocab.json, tokenizer.model or vocab.txt");
    return NULL;
}

static tn_tokenizer *load(const char *path, tn_tokenizer_options o)
{
    tni_bytes file = { 0 }, json = { 0 };
    bool vocabulary = ends_with(path, "vocab.json"), lines = ends_with(path, ".txt");
    bool whole = !vocabulary && ends_with(path, ".json");
    bool ok = read_file(path, &file);
    if (vocabulary)
        ok = ok && from_vocabulary(&json, path, &file, o);
    else if (lines)
        ok = ok && from_lines(&json, path, &file, o.cased);
    else if (!whole)
        ok = ok && from_ranks(&json, path, &file, o);
    tn_tokenizer *t =
        ok ? tni_tokenizer_read(path, whole ? &file : &json, !whole && !vocabulary && !lines)
           : NULL;
    tni_bytes_free(&file);
    tni_bytes_free(&json);
    return t;
}

tn_tokenizer *tn_tokenizer_load(const char *path, tn_tokenizer_options options)
{
    bool folder;
    if (!path) return tni_poisoned(function, "path");
    is_there(path, &folder);
    char *file = folder ? choose(path) : tni_copy_text(path);
    tn_tokenizer *t = file ? load(file, options) : NULL;
    tni_strfree(file);
    if (t && !read_config(t, path, folder)) {
        tn_tokenizer_free(t);
        return NULL;
    }
    return t;
}
