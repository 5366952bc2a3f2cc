/*
 * json.c - see json.h.
 *
 * Written only for the headers of safetensors files: a JSON library builds a tree ten times the
 * header's size, with malloc instead of our allocator, and the one in Debian loses bytes, or
 * overruns its buffer, when malloc fails (docs/measurements.md, JSON readers).
 *
 * Source: RFC 8259 (JSON), RFC 3629 (UTF-8).
 */
#include "io/json.h"

enum { DEEPEST = 129 }; /* the reference reads 127 in a tensor's entry */

static bool wrong(tni_json *j, const char *problem)
{
    if (!j->problem) j->problem = problem;
    return false;
}

tni_json tni_json_of(char *text, size_t n)
{
    return (tni_json){ .text = text, .at = text, .end = text + n };
}

static void skip_space(tni_json *j)
{
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r'))
        j->at++;
}

char tni_json_kind(tni_json *j)
{
    skip_space(j);
    if (j->problem) return 0;
    if (j->at == j->end) return wrong(j, "it is cut off"), '\0';
    char c = *j->at;
    if (c == '{' || c == '[' || c == '"') return c;
    if (c == '-' || (c >= '0' && c <= '9')) return '0';
    if (c == 't' || c == 'f' || c == 'n') return 'n';
    return wrong(j, "want a value"), '\0';
}

bool tni_json_open(tni_json *j, char open)
{
    if (tni_json_kind(j) != open) return false;
    if (j->depth++ == DEEPEST) return wrong(j, "it is nested too deeply");
    j->at++;
    return j->first = true;
}

bool tni_json_next(tni_json *j, char close)
{
    bool first = j->first;
    skip_space(j);
    j->first = false;
    if (j->problem) return false;
    if (j->at == j->end) return wrong(j, "it is cut off");
    if (*j->at == close) return j->at++, j->depth--, false;
    if (first) return true;
    if (*j->at != ',') return wrong(j, close == '}' ? "want , or }" : "want , or ]");
    j->at++;
    skip_space(j);
    if (j->at < j->end && *j->at == close) return wrong(j, "nothing follows the comma");
    return true;
}

/* ---- strings --------------------------------------------------------------------------------- */

size_t tni_utf8_begun(const char *text, size_t n, size_t *length)
{
    const unsigned char *s = (const unsigned char *)text;
    *length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    unsigned low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;  /* no longer than needed */
    unsigned high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf; /* no surrogate; <= 10ffff */
    size_t k = 1;
    for (; k < *length && k < n && s[k] >= low && s[k] <= high; k++) low = 0x80, high = 0xbf;
    return k;
}

/* Length of the character at the text, with n bytes left; 0: not UTF-8. */
static size_t character(const char *text, size_t n)
{
    size_t length;
    if ((unsigned char)*text < 0x80) return 1;
    return tni_utf8_begun(text, n, &length) == length ? length : 0;
}

size_t tni_utf8(const char *text, size_t n)
{
    size_t at = 0;
    for (size_t k; at < n && (k = character(text + at, n - at)) > 0;) at += k;
    return at;
}

/* The value of four hexadecimal digits; -1 if they are not. */
static int code_unit(const char *s, const char *end)
{
    char digits[5] = "";
    if (end - s >= 4) memcpy(digits, s, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (int)strtol(digits, NULL, 16) : -1;
}

static char *encode(char *to, int c)
{
    static const unsigned char lead[] = { 0, 0xc0, 0xe0, 0xf0 };
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3; /* bytes after the first */
    *to++ = (char)(lead[more] | c >> (6 * more));
    while (more-- > 0) *to++ = (char)(0x80 | (c >> (6 * more) & 0x3f));
    return to;
}

/* Decodes the escape at j->at, after its backslash; the result is shorter. NULL + problem. */
static char *unescape(tni_json *j, char *to)
{
    static const char from[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    char c = j->at < j->end ? *j->at : '\0';
    const char *known = c ? strchr(from, c) : NULL;
    if (known) {
        *to++ = meant[known - from];
        j->at++;
        return to;
    }
    int value = c == 'u' ? code_unit(j->at + 1, j->end) : -1;
    if (value < 0) return wrong(j, "an unknown escape"), NULL;
    if (value == 0) return wrong(j, "a zero character in a string"), NULL;
    j->at += 5;
    if (value >= 0xd800 && value < 0xe000) {
        int second = value < 0xdc00 && j->end - j->at > 2 && j->at[0] == '\\' && j->at[1] == 'u'
                         ? code_unit(j->at + 2, j->end)
                         : -1;
        if (second < 0xdc00 || second > 0xdfff) return wrong(j, "half a surrogate pair"), NULL;
        value = 0x10000 + ((value - 0xd800) << 10) + (second - 0xdc00);
        j->at += 6;
    }
    return encode(to, value);
}

const char *tni_json_string(tni_json *j)
{
    if (tni_json_kind(j) != '"') return NULL;
    char *begin = ++j->at, *to = begin;
    while (j->at < j->end && *j->at != '"') {
        size_t n = character(j->at, (size_t)(j->end - j->at));
        if (n == 0) return wrong(j, "a byte that is not UTF-8"), NULL;
        if ((unsigned char)*j->at < ' ') return wrong(j, "a control character in a string"), NULL;
        if (*j->at == '\\') {
            j->at++;
            if (!(to = unescape(j, to))) return NULL;
            continue;
        }
        if (to != j->at) memmove(to, j->at, n);
        to += n;
        j->at += n;
    }
    if (j->at == j->end) return wrong(j, "it is cut off"), NULL;
    j->at++;
    *to = 0; /* at the latest where the closing quote was */
    return begin;
}

const char *tni_json_key(tni_json *j)
{
    const char *key = tni_json_string(j);
    if (!key) return wrong(j, "want a key in double quotes"), NULL;
    skip_space(j);
    if (j->at == j->end || *j->at != ':') return wrong(j, "want :"), NULL;
    j->at++;
    return key;
}

bool tni_json_add(tni_bytes *b, const char *text)
{
    static const char meant[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    if (text[tni_utf8(text, strlen(text))]) return false;
    tni_bytes_add(b, "\"", 1);
    for (; *text; text++) {
        size_t plain = 0;
        while ((unsigned char)text[plain] >= ' ' && text[plain] != '"' && text[plain] != '\\')
            plain++;
        tni_bytes_add(b, text, plain);
        text += plain;
        if (!*text) break;
        const char *known = strchr(meant, *text);
        if (known)
            tni_bytes_printf(b, "\\%c", letter[known - meant]);
        else
            tni_bytes_printf(b, "\\u%04X", (unsigned char)*text);
    }
    tni_bytes_add(b, "\"", 1);
    return true;
}

/* ---- numbers --------------------------------------------------------------------------------- */

bool tni_json_integer(tni_json *j, int64_t *value)
{
    int64_t x = 0;
    if (tni_json_kind(j) != '0' || *j->at == '-') return false;
    char *from = j->at;
    for (; j->at < j->end && *j->at >= '0' && *j->at <= '9'; j->at++)
        if (__builtin_mul_overflow(x, 10, &x) || __builtin_add_overflow(x, *j->at - '0', &x))
            return wrong(j, "an integer above 9223372036854775807");
    if (*from == '0' && j->at - from > 1) return wrong(j, "a zero in front of an integer");
    if (j->at < j->end && (*j->at == '.' || *j->at == 'e' || *j->at == 'E')) return false;
    *value = x;
    return true;
}

bool tni_json_word(tni_json *j, const char *word)
{
    size_t n = strlen(word);
    const bool fits = tni_json_kind(j) == 'n' && (size_t)(j->end - j->at) >= n;
    const bool there = fits && memcmp(j->at, word, n) == 0;
    if (there) j->at += n;
    return there;
}

bool tni_json_skip(tni_json *j)
{
    const char kind = tni_json_kind(j), close = kind == '{' ? '}' : ']';
    /* roughly a number: nobody reads it */
    while (kind == '0' && j->at < j->end && strchr("+-.0123456789Ee", *j->at)) j->at++;
    if (kind == '"') tni_json_string(j);
    if (kind == 'n' && !tni_json_word(j, "null") && !tni_json_word(j, "true") &&
        !tni_json_word(j, "false"))
        return wrong(j, "want a value");
    if ((kind == '{' || kind == '[') && tni_json_open(j, kind))
        while (tni_json_next(j, close) && (kind == '[' || tni_json_key(j)) && tni_json_skip(j))
            continue;
    return !j->problem;
}

bool tni_json_end(tni_json *j)
{
    skip_space(j);
    if (!j->problem && j->at < j->end) wrong(j, "something follows it");
    return !j->problem;
}

tn_status tni_json_bad(const tni_input *in, const char *name, const tni_json *j)
{
    return tni_input_bad(in, "%s is not JSON: %s at byte %" PRId64, name, j->problem,
                         (int64_t)(j->at - j->text));
}
