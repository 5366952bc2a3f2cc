/*
 * Chapter 14: a language model from bytes to text: tokens, a Llama of 12 of them, its cache, and
 * what it writes.
 */
#include <math.h>
#include <string.h>
#include <tenon/tenon.h>

static const char tokenizer_json[] =
    "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},\n"
    " \"decoder\": {\"type\": \"ByteLevel\"},\n"
    " \"model\": {\"type\": \"BPE\",\n"
    "  \"vocab\": {\"l\": 0, \"o\": 1, \"w\": 2, \"e\": 3, \"r\": 4, \"s\": 5, \"t\": 6, "
    "\"\\u0120\": 7,\n"
    "            \"lo\": 8, \"low\": 9, \"er\": 10, \"\\u0120low\": 11},\n"
    "  \"merges\": [\"l o\", \"lo w\", \"e r\", \"\\u0120 low\"]}}\n";

static const char config_json[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 12, \"hidden_size\": 32, \"intermediate_size\": "
    "64,\n"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,\n"
    " \"max_position_embeddings\": 64, \"eos_token_id\": null}\n";

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0) perror(path), exit(1);
}

/* The tokens of a text, with bars between them. */
static void show_tokens(const tn_tokenizer *tokenizer, const char *text)
{
    tn_tensor *ids = tn_tokenizer_tensor(tokenizer, text, -1, (tn_encode_options){ 0 });
    tn_token_stream *stream = tn_token_stream_new(tokenizer, (tn_decode_options){ 0 });
    TN_CHECK_PTR(ids);
    tn_print(ids);
    for (int64_t i = 0; i < tn_numel(ids); i++)
        printf("%s|", tn_token_stream_add(stream, (int64_t)tn_at(ids, TN_INDEX(i))));
    printf("\n");
    tn_token_stream_free(stream);
}

static void show_buffers(tn_module *model)
{
    tn_list *all = tn_buffers(model);
    TN_CHECK_PTR(all);
    for (int i = 0; i < all->n; i++) {
        tn_shape shape = tn_shape_get(all->entry[i].tensor);
        printf("%-44s %-9s", all->entry[i].name, tn_role_name(all->entry[i].role));
        for (int k = 0; k < shape.rank; k++) printf(" %d", (int)shape.size[k]);
        printf("\n");
    }
    int saved = 0;
    tn_list *state = tn_state_dict(model, "");
    for (int i = 0; i < state->n; i++) saved += state->entry[i].kind == TN_BUFFER;
    printf("of these in files: %d\n", saved);
}

/* Each token but the last predicts the next one. */
static double train(tn_module *model, tn_tensor *ids, int steps)
{
    double last = 0;
    int64_t n = tn_numel(ids) - 1;
    tn_optim *opt = tn_adamw(tn_parameters(model), (tn_adamw_options){ .lr = 0.01 });
    for (int step = 0; step < steps; step++) TN_SCOPE
        {
            tn_tensor *x = tn_reshape(tn_narrow(ids, 0, 0, n), TN_SHAPE(1, n));
            tn_tensor *logits = tn_forward(model, x); /* [1, n, V] */
            tn_tensor *loss = tn_cross_entropy(tn_select(logits, 0, 0), tn_narrow(ids, 0, 1, n));
            TN_CHECK(tn_optim_zero_grad(opt));
            TN_CHECK(tn_backward(loss));
            TN_CHECK(tn_optim_step(opt));
            last = tn_item(loss);
        }
    tn_optim_free(opt);
    return last;
}

static bool print_piece(const tn_generated_token *token, void *user)
{
    (void)user;
    printf("%s", token->text);
    return true;
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_manual_seed(1);
    write_file("tokenizer.json", tokenizer_json);
    write_file("config.json", config_json);

    tn_tokenizer *tokenizer = tn_tokenizer_load("tokenizer.json");
    TN_CHECK_PTR(tokenizer);
    show_tokens(tokenizer, "low lower lowest");

    tn_module *model = tn_lm_new("config.json");
    TN_CHECK_PTR(model);
    printf("%d parameters\n", (int)tn_count_parameters(model, true));
    show_buffers(model);

    const char *text = "low lower lowest low lower lowest low lower lowest low lower lowest";
    tn_tensor *ids = tn_tokenizer_tensor(tokenizer, text, -1, (tn_encode_options){ 0 });
    TN_CHECK_PTR(ids);
    double before = train(model, ids, 1), after = train(model, ids, 150);
    printf("the loss was near log 12: %d, is below 0.2: %d\n", fabs(before - log(12)) < 0.7,
           after < 0.2);

    /* Seven tokens at once, or two and then one after the other. */
    TN_CHECK(tn_eval(model));
    tn_tensor *row = tn_reshape(tn_narrow(ids, 0, 0, 7), TN_SHAPE(1, 7));
    tn_tensor *whole = tn_select(tn_forward(model, row), 1, -1); /* [1, V] behind the last */
    TN_CHECK(tn_lm_set_cache(model, 1, 40));
    tn_tensor *logits = tn_lm_next(model, tn_narrow(row, 1, 0, 2), TN_NONE);
    for (int i = 2; i < 7; i++) logits = tn_lm_next(model, tn_narrow(row, 1, i, 1), TN_NONE);
    TN_CHECK_PTR(logits);
    printf("with the cache: %d\n", tn_max_abs_diff(logits, whole) < 1e-4);
    show_buffers(model);

    /* What follows "low": the likeliest token each time. */
    tn_ids prompt = { 0 };
    TN_CHECK(tn_tokenizer_encode(tokenizer, "low", -1, (tn_encode_options){ 0 }, &prompt));
    tn_prompt start = { prompt.id, prompt.n };
    tn_generate_options o = { .max_new_tokens = 13,
                              .tokenizer = tokenizer,
                              .on_token = print_piece };
    printf("low");
    tn_generated *made = tn_generate(model, &start, 1, o);
    TN_CHECK_PTR(made);
    printf("\n");

    /* Of a half, a quarter and two eighths three are kept to have 0.8 together. */
    float p[] = { logf(0.5F), logf(0.25F), logf(0.125F), logf(0.125F) };
    tn_sampling_options sampling = { .temperature = 1, .top_p = 0.8 };
    tn_print(
        tn_softmax(tn_process_logits(tn_from_floats(p, TN_SHAPE(1, 4)), TN_NONE, 0, sampling), -1));

    tn_generated_free(made), tn_ids_free(&prompt), tn_module_drop(model);
    tn_tokenizer_free(tokenizer), tn_scope_end(scope);
    return 0;
}
