/*
 * lm - a language model in a folder as Hugging Face lays it out: config.json, tokenizer.json and
 * model.safetensors.
 *
 *     lm train FOLDER --text FILE              a small Llama that learns a text
 *     lm tune FOLDER --text FILE --save NEW    all goes on learning, or with --rank an adapter
 *     lm score FOLDER --text FILE              perplexity
 *     lm write FOLDER --prompt "In the beginning"
 *     lm chat FOLDER --format chatml
 *
 * In place of tokenizer.json there may be vocab.json and merges.txt, or tiktoken's tokenizer.model.
 *
 * train takes the config.json and the tokenizer that are in FOLDER: so each architecture that tenon
 * knows is trained by putting its config.json there. Without them the model is a Llama of 3 million
 * parameters, whose tokens are bytes, or with --vocab are learnt from the text.
 */
#include "../common.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *folder, *path, *prompt = "", *save, *format, *system_message;
static const char *adapter, *layers;
static int steps = 400, batch = 8, context = 128, vocab, rank, most = 200, seed = 1, top_k;
static double lr, temperature, top_p;
static bool bf16, int8;

static ex_option options[] = {
    EX_TEXT("text", path, "FILE", EX_READ, "to learn or to score"),
    EX_TEXT("save", save, "NEW", 0, "tune: folder of the result"),
    EX_NUMBER("steps", steps, 1, 1e9, 0, "train, tune: steps"),
    EX_NUMBER("batch", batch, 1, 65536, 0, "train, tune: rows a step"),
    EX_NUMBER("context", context, 2, 1e6, 0, "train, tune, score: tokens a row"),
    EX_NUMBER("vocab", vocab, 0, 1e8, 0, "train: tokens to learn, where there are none; 0: bytes"),
    EX_NUMBER("lr", lr, 0, 10, 0, "0: 1e-3; tune without --rank: 1e-4"),
    EX_NUMBER("rank", rank, 0, 65536, 0, "tune: of an adapter (LoRA), saved alone; 0: none"),
    EX_TEXT("layers", layers, "NAMES", 0,
            "tune --rank: as *.q_proj,*.v_proj; else all but the head"),
    EX_TEXT("adapter", adapter, "DIR", 0, "an adapter to go on with, or to use: peft's files"),
    EX_TEXT("prompt", prompt, "STR", 0, "write: what the text goes on from"),
    EX_NUMBER("tokens", most, 1, 1e9, 0, "write, chat: tokens at most"),
    EX_NUMBER("temperature", temperature, 0, 100, 0, "0: always the likeliest token"),
    EX_NUMBER("top-k", top_k, 0, 1e9, 0, "only the N likeliest compete, 0: all"),
    EX_NUMBER("top-p", top_p, 0, 1, 0, "only the likeliest that have this probability, 0: all"),
    EX_TEXT("format", format, "NAME", 0, "chat: chatml, llama3; else as the tokenizer has it"),
    EX_TEXT("system", system_message, "STR", 0, "chat: the system's message"),
    EX_NUMBER("seed", seed, 0, 1e9, 0, "of all that is random"),
    EX_FLAG("bf16", bf16, "products in bf16 (train, tune); weights in bf16 (the others)"),
    EX_FLAG("int8", int8, "frozen weights of a byte each (all but train; tune with --rank)"),
};

/* ---- files ----------------------------------------------------------------------------------- */

static const char *inside(const char *of, const char *name)
{
    static char text[PATH_MAX];
    if (snprintf(text, sizeof text, "%s/%s", of, name) >= (int)sizeof text)
        ex_refuse("%s: the name is too long", of);
    return text;
}

static void make_folder(const char *name)
{
    if (mkdir(name, 0777) != 0 && errno != EEXIST) ex_refuse("%s: %s", name, strerror(errno));
}

/* The whole of --text, zero-terminated. */
static char *read_text(void)
{
    long n = -1;
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (!path) ex_refuse("--text FILE is needed (see --help)");
    if (!file || fseek(file, 0, SEEK_END) != 0 || (n = ftell(file)) < 0)
        ex_refuse("--text %s: %s", path, strerror(errno));
    rewind(file);
    char *text = calloc((size_t)n + 1, 1);
    if (!text || fread(text, 1, (size_t)n, file) != (size_t)n)
        ex_refuse("--text %s: cannot be read", path);
    fclose(file);
    return text;
}

/* The text as ids, i64 [N]. */
static tn_tensor *read_ids(const tn_tokenizer *tokenizer)
{
    char *text = read_text();
    tn_tensor *ids = tn_tokenizer_tensor(tokenizer, text, -1, (tn_encode_options){ .bare = true });
    ex_check_ptr(ids);
    free(text);
    if (tn_numel(ids) < 2 * context + 3)
        ex_refuse("--text %s: %" PRId64 " tokens: want 3 more than twice --context %d", path,
                  tn_numel(ids), context);
    return ids;
}

static tn_tokenizer *load_tokenizer(void)
{
    tn_tokenizer *tokenizer = tn_tokenizer_load(folder);
    ex_check_ptr(tokenizer);
    return tokenizer;
}

/* The folder's model, in f32 to be trained. */
static tn_module *load_model(bool to_train)
{
    tn_dtype dtype = bf16 && !to_train ? TN_BF16 : TN_F32;
    tn_module *model = tn_lm_load(folder, (tn_lm_options){ .use_dtype = true, .dtype = dtype });
    ex_check_ptr(model);
    if (adapter) ex_check(tn_lora_load(model, adapter, NULL));
    if (int8 && to_train && !rank && !adapter) ex_refuse("--int8: want --rank or --adapter, too");
    if (int8) ex_check(tn_quantize_int8(model, "*", 0));
    if (adapter && !to_train && !int8) ex_check(tn_lora_merge(model));
    return model;
}

/* ---- learning -------------------------------------------------------------------------------- */

static FILE *create(const char *name)
{
    FILE *file = fopen(inside(folder, name), "w");
    if (!file) ex_refuse("%s: %s", inside(folder, name), strerror(errno));
    return file;
}

/* Tokens are bytes, under ByteLevel's letters: those that are printable in Latin 1 are their own,
 * the others are U+0100 and what follows. */
static void write_tokenizer(void)
{
    FILE *file = create("tokenizer.json");
    fputs(
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"decoder\": "
        "{\"type\": \"ByteLevel\"}, \"added_tokens\": [{\"id\": 256, \"content\": "
        "\"<|endoftext|>\", "
        "\"special\": true, \"normalized\": false}],\n\"model\": {\"type\": \"BPE\", \"vocab\": {",
        file);
    for (int byte = 0, next = 0x100; byte < 256; byte++) {
        bool own = (byte > ' ' && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        fprintf(file, "%s\"\\u%04x\": %d", byte ? ", " : "",
                own ? (unsigned)byte : (unsigned)next++, byte);
    }
    fputs("}, \"merges\": []}}\n", file);
    if (fclose(file) != 0) ex_refuse("%s: %s", folder, strerror(errno));
}

static void learn_tokenizer(void)
{
    char *text = read_text();
    const char *special[] = { "<|endoftext|>" };
    const tn_bpe_options o = { .vocab_size = vocab, .special = special, .n_special = 1 };
    tn_tokenizer *tokenizer = tn_tokenizer_train(text, -1, o);
    ex_check_ptr(tokenizer);
    ex_check(tn_tokenizer_save(tokenizer, inside(folder, "tokenizer.json")));
    tn_tokenizer_free(tokenizer), free(text);
}

static bool there(const char *file)
{
    return access(inside(folder, file), F_OK) == 0;
}

/* A tokenizer.json and a config.json of a small Llama, unless they are there. */
static void begin_folder(void)
{
    make_folder(folder);
    if (!there("tokenizer.json") && !there("vocab.json") && !there("tokenizer.model"))
        (vocab ? learn_tokenizer : write_tokenizer)();
    if (there("config.json")) return;
    tn_tokenizer *tokenizer = load_tokenizer();
    const tn_tokenizer_info has = tn_tokenizer_get_info(tokenizer);
    const int64_t end = has.eos < 0 ? tn_tokenizer_id(tokenizer, "<|endoftext|>") : has.eos;
    const int64_t eos = end < 0 ? has.vocab_size - 1 : end;
    tn_tokenizer_free(tokenizer);
    FILE *file = create("config.json");
    fprintf(file,
            "{\n  \"model_type\": \"llama\",\n  \"architectures\": [\"LlamaForCausalLM\"],\n"
            "  \"vocab_size\": %" PRId64 ",\n  \"hidden_size\": 256,\n"
            "  \"intermediate_size\": 704,\n  \"num_hidden_layers\": 4,\n"
            "  \"num_attention_heads\": 4,\n  \"num_key_value_heads\": 2,\n"
            "  \"max_position_embeddings\": 1024,\n  \"rms_norm_eps\": 1e-5,\n"
            "  \"rope_theta\": 10000.0,\n  \"hidden_act\": \"silu\",\n"
            "  \"tie_word_embeddings\": true,\n  \"bos_token_id\": %" PRId64
            ",\n  \"eos_token_id\": %" PRId64 "\n}\n",
            has.vocab_size, has.bos < 0 ? eos : has.bos, eos);
    if (fclose(file) != 0) ex_refuse("%s: %s", folder, strerror(errno));
}

/* The mean of -log p(next token) over rows that begin at random places of ids. */
static tn_tensor *loss_of(tn_module *model, tn_tensor *ids, tn_generator *draw)
{
    tn_tensor *row[batch], *loss = NULL;
    for (int i = 0; i < batch; i++)
        row[i] = tn_narrow(ids, 0, tn_generator_u32(draw) % (tn_numel(ids) - context), context + 1);
    tn_tensor *rows = tn_stack(row, batch, 0); /* [B, T + 1] */
    TN_AUTOCAST(bf16 ? TN_BF16 : TN_F32)
    {
        tn_tensor *logits = tn_forward(model, tn_narrow(rows, 1, 0, context)); /* [B, T, V] */
        tn_tensor *next = tn_contiguous(tn_narrow(rows, 1, 1, context));
        loss = tn_cross_entropy(tn_flatten(logits, 0, 1), tn_flatten(next, 0, 1));
    }
    return loss;
}

static double held_out(tn_module *model, tn_tensor *ids)
{
    double sum = 0;
    tn_generator *draw = tn_generator_new(0); /* always the same rows */
    ex_check_ptr(draw);
    ex_check(tn_eval(model));
    for (int i = 0; i < 10; i++) TN_SCOPE TN_NO_GRAD sum += tn_item(loss_of(model, ids, draw));
    ex_check(tn_train(model, true));
    tn_generator_free(draw);
    return sum / 10;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* AdamW with a warm-up and a cosine. The last tenth of the text is held out. */
static void learn(tn_module *model, tn_tensor *ids)
{
    int64_t n = tn_numel(ids), held = n / 10 > context + 1 ? n / 10 : context + 2;
    tn_tensor *seen = tn_narrow(ids, 0, 0, n - held), *rest = tn_narrow(ids, 0, n - held, held);
    tn_optim *optimizer = tn_adamw(tn_parameters(model), (tn_adamw_options){ .lr = lr });
    tn_scheduler *schedule = tn_warmup_cosine_lr(optimizer, steps / 10, steps, lr / 10);
    ex_check_ptr(schedule);
    ex_check(tn_train(model, true));
    double sum = 0, began = seconds();
    for (int step = 1; step <= steps; step++) TN_SCOPE
        {
            tn_tensor *loss = loss_of(model, seen, tn_default_generator());
            ex_check(tn_optim_zero_grad(optimizer));
            ex_check(tn_backward(loss));
            double norm = tn_clip_grad_norm(tn_parameters(model), 1, 2, true);
            ex_check(isnan(norm) ? TN_E_INVALID : TN_OK);
            ex_check(tn_optim_step(optimizer));
            ex_check(tn_scheduler_step(schedule));
            sum += tn_item(loss);
            if (step % (steps > 10 ? steps / 10 : 1) != 0 && step != steps) continue;
            double rate = (double)step * batch * context / (seconds() - began);
            printf("step %d: loss %.4f, held out %.4f, %.0f tokens/s\n", step,
                   sum / (steps > 10 ? steps / 10 : 1), held_out(model, rest), rate);
            sum = 0;
            ex_flush();
        }
    tn_scheduler_free(schedule), tn_optim_free(optimizer);
}

static void train(void)
{
    begin_folder();
    tn_tokenizer *tokenizer = load_tokenizer();
    tn_module *model = tn_lm_new(folder);
    ex_check_ptr(model);
    tn_tensor *ids = read_ids(tokenizer);
    printf("%" PRId64 " parameters, %" PRId64 " tokens of text\n", tn_count_parameters(model, true),
           tn_numel(ids));
    if (lr == 0) lr = 1e-3;
    learn(model, ids);
    ex_check(tn_lm_save(model, folder));
    tn_module_drop(model), tn_tokenizer_free(tokenizer);
}

static void tune(void)
{
    if (!save) ex_refuse("--save NEW is needed (see --help)");
    make_folder(save);
    tn_tokenizer *tokenizer = load_tokenizer();
    tn_module *model = load_model(true);
    const tn_lora_options o = { .rank = rank, .alpha = 2.0 * rank };
    tn_lm_info info;
    ex_check(tn_lm_get_info(model, &info));
    if (!layers) layers = strcmp(info.model_type, "gpt2") ? "model.*" : "transformer.*";
    if (rank && !adapter) ex_check(tn_lora(model, layers, o));
    printf("%" PRId64 " parameters learn\n", tn_count_parameters(model, true));
    if (lr == 0) lr = rank || adapter ? 1e-3 : 1e-4;
    learn(model, read_ids(tokenizer));
    ex_check(rank || adapter ? tn_lora_save(model, save) : tn_lm_save(model, save));
    if (!rank && !adapter) ex_check(tn_tokenizer_save(tokenizer, inside(save, "tokenizer.json")));
    tn_module_drop(model), tn_tokenizer_free(tokenizer);
}

/* ---- using it -------------------------------------------------------------------------------- */

/* -log p of the ids behind the first `known` of n, added up; each sees those before it. */
static double surprise(tn_module *model, const int64_t *ids, int64_t n, int64_t known)
{
    double sum = 0;
    TN_SCOPE TN_NO_GRAD
    {
        tn_tensor *x = tn_from_ints(ids, TN_SHAPE(1, n - 1));
        tn_tensor *y = tn_from_ints(ids + known, TN_SHAPE(n - known));
        tn_tensor *logits = tn_select(tn_forward(model, x), 0, 0); /* [n - 1, V] */
        logits = tn_to_dtype(tn_narrow(logits, 0, known - 1, n - known), TN_F32);
        tn_tensor *loss = tn_cross_entropy(logits, y);
        ex_check_ptr(loss);
        sum = tn_item(loss) * (double)(n - known);
    }
    return sum;
}

/* Windows of --context tokens that overlap by half: each token counts once, behind half a window
 * or more, but for the first ones. */
static void score(void)
{
    tn_tokenizer *tokenizer = load_tokenizer();
    tn_module *model = load_model(false);
    tn_ids ids = { 0 };
    double sum = 0;
    char *text = read_text();
    ex_check(tn_tokenizer_encode(tokenizer, text, -1, (tn_encode_options){ 0 }, &ids));
    if (ids.n < 2) ex_refuse("--text %s: want at least 2 tokens", path);
    for (int64_t done = 1; done < ids.n;) {
        int64_t begin = done > context / 2 ? done - context / 2 : 0;
        int64_t n = ids.n - begin < context ? ids.n - begin : context;
        sum += surprise(model, ids.id + begin, n, done - begin);
        done = begin + n;
    }
    sum /= (double)(ids.n - 1);
    printf("%" PRId64 " tokens, perplexity %.4f, %.4f bits per byte\n", ids.n, exp(sum),
           sum / log(2) * (double)(ids.n - 1) / (double)strlen(text));
    free(text), tn_ids_free(&ids);
    tn_module_drop(model), tn_tokenizer_free(tokenizer);
}

/* Prints at once, so that one can watch. */
static bool show(const tn_generated_token *token, void *user)
{
    (void)user;
    fputs(token->text, stdout);
    ex_flush();
    return true;
}

/* What follows the ids; printed meanwhile. Yours: tn_generated_free. */
static tn_generated *go_on(tn_module *model, const tn_tokenizer *tokenizer, const tn_ids *ids)
{
    tn_prompt start = { ids->id, ids->n };
    tn_generate_options o = {
        .max_new_tokens = most,
        .tokenizer = tokenizer,
        .on_token = show,
        .sampling = { .temperature = temperature,
                      .top_k = top_k,
                      .top_p = top_p,
                      .seed = (uint64_t)seed },
    };
    tn_generated *made = tn_generate(model, &start, 1, o);
    ex_check_ptr(made);
    return made;
}

static void write_on(void)
{
    tn_tokenizer *tokenizer = load_tokenizer();
    tn_module *model = load_model(false);
    tn_ids ids = { 0 };
    ex_check(tn_tokenizer_encode(tokenizer, prompt, -1, (tn_encode_options){ 0 }, &ids));
    if (ids.n == 0) ex_refuse("--prompt STR is needed (see --help)");
    fputs(prompt, stdout);
    double began = seconds();
    tn_generated *made = go_on(model, tokenizer, &ids);
    printf("\n\n%" PRId64 " tokens, %.1f a second\n", made->rows[0].n,
           (double)made->rows[0].n / (seconds() - began));
    tn_generated_free(made), tn_ids_free(&ids);
    tn_module_drop(model), tn_tokenizer_free(tokenizer);
}

enum { MESSAGES = 1000 };

typedef struct message {
    const char *role, *content;
} message;

/* The ids of a chat, up to where the assistant answers: what users say can be no special token. */
static void add_chat(const tn_tokenizer *tokenizer, const message *said, int n, tn_ids *ids)
{
    if (!format) format = tn_tokenizer_id(tokenizer, "<|eot_id|>") < 0 ? "chatml" : "llama3";
    const bool llama3 = strcmp(format, "llama3") == 0;
    const tn_encode_options bare = { .bare = true }, literal = { .bare = true, .literal = true };
    const char *const part[] = { llama3 ? "<|start_header_id|>" : "<|im_start|>",
                                 llama3 ? "<|end_header_id|>\n\n" : "\n",
                                 llama3 ? "<|eot_id|>" : "<|im_end|>\n" };
    if (!llama3 && strcmp(format, "chatml") != 0)
        ex_refuse("--format %s: want chatml or llama3", format);
    if (llama3) ex_check(tn_tokenizer_encode(tokenizer, "<|begin_of_text|>", -1, bare, ids));
    for (int i = 0; i <= n; i++) {
        ex_check(tn_tokenizer_encode(tokenizer, part[0], -1, bare, ids));
        const char *role = i < n ? said[i].role : "assistant";
        ex_check(tn_tokenizer_encode(tokenizer, role, -1, literal, ids));
        ex_check(tn_tokenizer_encode(tokenizer, part[1], -1, bare, ids));
        if (i == n) break;
        ex_check(tn_tokenizer_encode(tokenizer, said[i].content, -1, literal, ids));
        ex_check(tn_tokenizer_encode(tokenizer, part[2], -1, bare, ids));
    }
}

/* One answer: the whole chat is read again each time. */
static char *answer(tn_module *model, const tn_tokenizer *tokenizer, const message *said, int n)
{
    tn_ids ids = { 0 };
    add_chat(tokenizer, said, n, &ids);
    tn_generated *made = go_on(model, tokenizer, &ids);
    char *reply = strdup(made->rows[0].text);
    if (!reply) ex_refuse("out of memory");
    putchar('\n');
    tn_generated_free(made), tn_ids_free(&ids);
    return reply;
}

static void chat(void)
{
    tn_tokenizer *tokenizer = load_tokenizer();
    tn_module *model = load_model(false);
    message said[MESSAGES] = { { "system", system_message } };
    const int first = system_message ? 1 : 0;
    int n = first;
    char *line = NULL;
    size_t room = 0;
    while (n + 2 <= MESSAGES) {
        fputs("> ", stdout);
        ex_flush();
        if (getline(&line, &room, stdin) <= 0) break;
        line[strcspn(line, "\n")] = '\0';
        if (!*line) break;
        said[n++] = (message){ "user", strdup(line) };
        if (!said[n - 1].content) ex_refuse("out of memory");
        said[n] = (message){ "assistant", answer(model, tokenizer, said, n) };
        n++;
    }
    while (n > first) free((char *)said[--n].content);
    free(line);
    tn_module_drop(model), tn_tokenizer_free(tokenizer);
}

/* ---------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } command[] = { { "train", train },
                    { "tune", tune },
                    { "score", score },
                    { "write", write_on },
                    { "chat", chat } };
    int at = ex_parse("Trains, tunes, scores and runs a language model in a folder:\n"
                      "lm train|tune|score|write|chat FOLDER.",
                      options, sizeof options / sizeof *options, 2, argc, argv);
    if (argc - at != 2) ex_refuse("want a command and a folder: lm train FOLDER (see --help)");
    folder = argv[at + 1];
    size_t c = 0, n = sizeof command / sizeof *command;
    while (c < n && strcmp(argv[at], command[c].name) != 0) c++;
    if (c == n) ex_refuse("no command %s: want train, tune, score, write or chat", argv[at]);
    tn_scope program = tn_scope_begin();
    tn_manual_seed((uint64_t)seed);
    command[c].run();
    tn_scope_end(program);
    return ex_end();
}
