/* chat.c - chats as the text that models were trained on: see tn_chat_text. */
#include "ext/lm/tokenizer.h"

typedef struct chat_format {
    const char *name, *system; /* system: said first if the chat does not begin with one */
    const char *begin;         /* of the text */
    const char *open, *to_content, *close; /* around a role, and after a content */
    bool trim;                             /* white space around contents goes */
} chat_format;

#define CHATML(name, system)                                                                       \
    {                                                                                              \
        name, system, "", "<|im_start|>", "\n", "<|im_end|>\n", false                              \
    }
static const chat_format formats[] = {
    CHATML("chatml", NULL),
    CHATML("qwen2", "You are a helpful assistant."),
    CHATML("qwen2.5", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
    CHATML("smollm2", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
    { "llama3", NULL, "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>\n\n",
      "<|eot_id|>", true },
};

static const chat_format *find(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0) return &formats[i];
    return NULL;
}

static void add(tni_bytes *to, const char *text)
{
    tni_bytes_add(to, text, strlen(text));
}

static void add_trimmed(tni_bytes *to, const char *text)
{
    size_t n = strlen(text), end = 0;
    bool began = false;
    int32_t c;
    for (size_t at = 0, from = 0; at < n;) {
        size_t k = tni_next(text + at, n - at, &c);
        bool space = tni_is_space(c) || (c >= 0x1c && c <= 0x1f); /* as Python's strip has it */
        at += k;
        if (!began && space) from = end = at;
        if (!space) {
            began = true;
            tni_bytes_add(to, text + TNI_MAX(end, from), at - TNI_MAX(end, from));
            end = at;
        }
    }
}

static void add_message(tni_bytes *to, const chat_format *f, const char *role, const char *content)
{
    add(to, f->open);
    add(to, role);
    add(to, f->to_content);
    if (f->trim)
        add_trimmed(to, content);
    else
        add(to, content);
    add(to, f->close);
}

static tn_status check(const char *function, const chat_format *f, const char *name,
                       const tn_chat_message *m, int n)
{
    if (!f)
        return tni_error(TN_E_NAME,
                         "%s: format \"%.60s\": want chatml, qwen2, qwen2.5, smollm2 or llama3",
                         function, name);
    if (n < 0 || (n > 0 && !m)) return tni_poison(function, "messages");
    for (int i = 0; i < n; i++)
        if (!m[i].role || !m[i].content) return tni_poison(function, "a role or content");
    return TN_OK;
}

tn_status tn_chat_text(const char *format, const tn_chat_message *messages, int n, bool reply,
                       tn_chars *chars)
{
    const char *function = "tn_chat_text";
    if (!format) return tni_poison(function, "format");
    if (!chars) return tni_poison(function, "chars");
    const chat_format *f = find(format);
    tn_status status = check(function, f, format, messages, n);
    if (status != TN_OK) return status;
    tni_bytes out = { chars->text, (size_t)chars->n, (size_t)chars->capacity, false };
    add(&out, f->begin);
    if (f->system && n > 0 && strcmp(messages[0].role, "system") != 0)
        add_message(&out, f, "system", f->system);
    for (int i = 0; i < n; i++) add_message(&out, f, messages[i].role, messages[i].content);
    if (reply) add(&out, f->open), add(&out, "assistant"), add(&out, f->to_content);
    tni_bytes_add(&out, "", 1);
    *chars =
        (tn_chars){ out.data, out.failed ? chars->n : (int64_t)out.n - 1, (int64_t)out.capacity };
    if (!out.failed) return TN_OK;
    if (chars->capacity > chars->n) chars->text[chars->n] = 0;
    return tni_pending();
}
