#!/usr/bin/env bash
# Compiles the README's program exactly as shown, with the README's own command, and runs it: in a folder with
# a space in its name. Then the pieces of C in docs/training.md, gpu.md, data.md, finetuning.md and pytorch.md, each in
# a program.
# usage: tests/house/readme_check.sh BUILD-FOLDER
#
# Seen to fail: tn_item renamed to tn_value in the README's program; a command that does not quote $PWD.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The Nth fenced block of a language.
block() {
    awk -v fence="\`\`\`$1" -v wanted="$2" '
        $0 == fence && !inside { inside = 1; n++; next }
        $0 == "```" && inside { inside = 0; next }
        inside && n == wanted' "$root/README.md"
}

# The fenced block of C with a line that holds TEXT, of a page of docs/.
block_with() { # TEXT PAGE
    awk -v text="$1" '
        $0 == "```c" { inside = 1; kept = ""; found = 0; next }
        $0 == "```" && inside { if (found) { printf "%s", kept; exit } inside = 0; next }
        inside { kept = kept $0 "\n"; if (index($0, text)) found = 1 }' "$root/docs/$2"
}

cd "$work"
mkdir 'a folder' && cd 'a folder'
ln -s "$build" build
ln -s "$root/include" include
against=(-Iinclude -Lbuild/src -ltenon -Wl,-rpath,"$PWD/build/src")
block c 1 >mine.c
block sh 1 >compile.sh
[ -s mine.c ] && [ -s compile.sh ]
grep -q '^cc mine.c' compile.sh
export CFLAGS=
bash -eu compile.sh
./mine >log
cat log
# The loss falls: the last line's is below a quarter of the first one's.
awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(NR == 4 && last < first / 4) }' log
[ -s net.safetensors ] && [ -s run.safetensors ]

# The lines of "Reading values" compile too, with warnings as errors.
{
    echo '#include <tenon/tenon.h>'
    echo 'double reading(tn_tensor *x, tn_tensor *loss)'
    echo '{'
    block_with loss_now training.md
    echo '    return loss_now + corner + data[0] + copy[0];'
    echo '}'
} >reading.c
cc -std=c11 -Wall -Wextra -Werror -c reading.c -o reading.o -Iinclude

# The loop of gpu.md runs wherever the program does.
{
    echo '#include <tenon/tenon.h>'
    cat <<'END'
int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = tn_randn(TN_SHAPE(6, 4)), *y = tn_randint(0, 3, TN_SHAPE(6));
    tn_module *model = tn_linear_new(4, 3, (tn_linear_options){ 0 });
    TN_CHECK_PTR(model);
    tn_optim *opt = tn_sgd(tn_parameters(model), (tn_sgd_options){ .lr = 0.5 });
END
    block_with tn_cuda_available gpu.md
    cat <<'END'
    tn_optim_free(opt), tn_module_drop(model);
    tn_scope_end(scope);
    return 0;
}
END
} >gpu.c
cc -std=c11 -Wall -Wextra -Werror gpu.c -o gpu "${against[@]}"
./gpu >log
cat log
awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(NR == 10 && last < first) }' log

# An epoch over real images, in steps of four batches.
images=/usr/share/datasets/fashion-mnist
{
    echo '#include <tenon/tenon.h>'
    block_with PARTS data.md
    cat <<'END'
int main(int argc, char **argv)
{
    tn_scope scope = tn_scope_begin();
    tn_loader *loader = argc == 3 ? fashion(argv[1], argv[2]) : NULL;
    TN_CHECK_PTR(loader);
    tn_module *model = tn_linear_new(784, 10, (tn_linear_options){ 0 });
    tn_optim *opt = tn_sgd(tn_parameters(model), (tn_sgd_options){ .lr = 0.5 });
    tn_scheduler *schedule = tn_cosine_lr(opt, 100, 0);
    double first = epoch(model, opt, schedule, loader), second = epoch(model, opt, schedule, loader);
    printf("epochs: %g, %g after %lld steps\n", first, second, (long long)tn_optim_steps(opt));
    bool right = second < first && second < 0.8 && tn_optim_steps(opt) == 2 * 50;
    tn_scheduler_free(schedule), tn_optim_free(opt), tn_module_drop(model), tn_loader_free(loader);
    tn_scope_end(scope);
    return !right;
}
END
} >images.c
cc -std=c11 -Wall -Wextra -Werror images.c -o images "${against[@]}"
if [ -e $images/t10k-images-idx3-ubyte.gz ]; then
    ./images $images/t10k-{images-idx3,labels-idx1}-ubyte.gz
else
    echo "left out, there is no $images: the epoch"
fi

# A validation: one of 40 rows has another class than the best score.
{
    echo '#include <tenon/tenon.h>'
    block_with tn_metric_total data.md
    cat <<'END'
int main(void)
{
    static const char *const names[10] = { "first", "second" };
    tn_scope scope = tn_scope_begin();
    int64_t id[40];
    for (int i = 0; i < 40; i++) id[i] = i % 10;
    tn_tensor *data[2] = { tn_to_dtype(tn_one_hot(tn_from_ints(id, TN_SHAPE(40)), 10), TN_F32) };
    id[0] = 1; /* of equal scores the second one */
    data[1] = tn_from_ints(id, TN_SHAPE(40));
    tn_loader *loader = tn_loader_new(data, 2, (tn_loader_options){ .batch_size = 7 });
    tn_module *model = tn_relu_new();
    TN_CHECK(tn_parallel_begin());
    TN_CHECK_PTR(loader), TN_CHECK_PTR(model);
    validate(model, loader, tn_cpu(), names);
    tn_module_drop(model), tn_loader_free(loader);
    tn_scope_end(scope);
    return 0;
}
END
} >validation.c
cc -std=c11 -Wall -Wextra -Werror validation.c -o validation "${against[@]}"
./validation >log
cat log
grep -q '^loss 1.4862, accuracy 0.9750, of five guesses 1.0000, macro F1 0.9746$' log
[ "$(tail -n 1 log)" = '   9    0    0    0    0    0    0    0    0    0    4     1.0000 1.0000 1.0000' ]
grep -q '>first 0<' confusion.svg

# Data of one's own: any number of workers makes the same batches; and a table in two parts.
{
    echo '#include <tenon/tenon.h>'
    block_with RECORD data.md
    block_with tn_csv_load data.md
    block_with tn_masked_select data.md
    block_with n_train data.md
    cat <<'END'
static int64_t count(tn_loader *loader, uint64_t *h)
{
    tn_tensor *batch[2];
    int64_t n = 0;
    TN_CHECK_PTR(loader);
    for (int got = 1; got == 1;) TN_SCOPE {
            got = tn_loader_next(loader, batch, 2);
            if (got < 0) TN_CHECK(tn_error_status());
            for (int k = 0; got == 1 && k < 2; k++) *h = *h * 31 + tn_hash(batch[k]);
            n += got == 1 ? tn_size(batch[1], 0) : 0;
        }
    tn_loader_free(loader);
    return n;
}
static tn_status count_up(const tn_dataset *d, tn_sample *s)
{
    int64_t *id = s->to[0];
    (void)d;
    s->size[0] = s->index % 4;
    for (int i = 0; i < s->index % 4; i++) id[i] = 10 * s->index + i;
    return TN_OK;
}
/* 6 samples: 10; 20, 21; 30, 31, 32; 50, and nothing of 0 and 4 */
static bool ids_in_a_row(void)
{
    static const tn_field f = { .dtype = TN_I64, .shape = { 1, { 3 } }, .varies = true };
    static const tn_dataset d = { .length = 6, .fields = &f, .n_fields = 1, .get = count_up };
    tn_loader *loader =
        tn_loader_from(&d, (tn_loader_options){ .batch_size = 6, .workers = 2, .collate = packed, .n_out = 2 });
    tn_tensor *batch[2];
    if (tn_loader_next(loader, batch, 2) != 1) TN_CHECK(tn_error_status());
    bool right = tn_numel(batch[0]) == 7 && tn_at(batch[0], TN_INDEX(5)) == 32 && tn_at(batch[1], TN_INDEX(5)) == 6;
    tn_loader_free(loader);
    return right;
}
static bool text_in_windows(const char *path)
{
    tn_text *text = tn_text_load(path, 0);
    TN_CHECK_PTR(text);
    tn_loader *loader = windows(text, 10);
    tn_tensor *batch[2];
    if (tn_loader_next(loader, batch, 2) != 1) TN_CHECK(tn_error_status());
    bool right = tn_size(batch[0], 0) == (text->n_train - 1) / 10 && tn_size(batch[1], 1) == 10;
    for (int i = 0; i < 9; i++)
        right &= tn_at(batch[0], TN_INDEX(3, i + 1)) == tn_at(batch[1], TN_INDEX(3, i));
    tn_loader_free(loader);
    tn_text_free(text);
    return right;
}
int main(int argc, char **argv)
{
    tn_scope scope = tn_scope_begin();
    tn_dataset d;
    tn_loader *train, *valid;
    uint64_t h = 0, same = 0;
    int64_t n = count(records(argv[argc - 2], &d, 0), &h), m = count(records(argv[argc - 2], &d, 3), &same);
    bool right = n == 100 && m == 100 && h == same && ids_in_a_row() && text_in_windows(argv[argc - 1]) &&
                 table(argv[argc - 1], &train, &valid);
    if (!right) TN_CHECK(tn_error_status());
    n = count(train, &h), m = count(valid, &h);
    printf("samples: %lld, %lld\n", (long long)n, (long long)m);
    tn_scope_end(scope);
    return !(right && n == 16 && m == 4);
}
END
} >datasets.c
cc -std=c11 -Wall -Wextra -Werror datasets.c -o datasets "${against[@]}"
head -c 307300 /dev/zero | tr '\0' 'a' >data.bin
awk 'BEGIN { print "a,b,kind"; for (i = 0; i < 20; i++) print i ",," (i % 2 ? "odd" : "even") }' >table.csv
./datasets data.bin table.csv

# A folder of images: any number of workers makes the same batches; one that is no image is named.
{
    echo '#include <string.h>'
    echo '#include <tenon/tenon.h>'
    block_with tn_image_load_crop data.md
    block_with tn_randperm\(folder data.md
    cat <<'END'
int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_image_folder *folder = tn_image_folder_open("photos");
    TN_CHECK_PTR(folder);
    uint64_t h[3] = { 0 };
    tn_dataset d;
    tn_tensor *batch[2];
    for (int i = 0; i < 3; i++) {
        tn_loader *loader = photos_loader(&d, folder, NULL, true, i);
        TN_CHECK_PTR(loader);
        if (tn_loader_next(loader, batch, 2) != 1) TN_CHECK(tn_error_status());
        h[i] = tn_hash(batch[0]) ^ tn_hash(batch[1]);
        tn_loader_free(loader);
    }
    double most = tn_item(tn_max_all(batch[0])), label = tn_item(tn_max_all(batch[1]));
    tn_dataset half[2]; /* of 3 images 2 and 1; what is held out is the same each time */
    tn_loader *of[2];
    split(folder, half, of);
    TN_CHECK_PTR(of[0]), TN_CHECK_PTR(of[1]);
    bool parts = tn_loader_rows(of[0]) == 2 && tn_loader_rows(of[1]) == 1 && tn_loader_next(of[1], batch, 2) == 1;
    uint64_t held = parts ? tn_hash(batch[0]) : 0;
    parts = parts && tn_loader_next(of[1], batch, 2) == 0 && tn_loader_next(of[1], batch, 2) == 1 && tn_hash(batch[0]) == held;
    tn_loader_free(of[0]), tn_loader_free(of[1]);
    tn_image_folder_free(folder);
    TN_CHECK_PTR(folder = tn_image_folder_open("damaged"));
    tn_loader *loader = photos_loader(&d, folder, NULL, true, 2);
    TN_CHECK_PTR(loader);
    int got = tn_loader_next(loader, batch, 2);
    printf("images: %016llx, at most %g; %s\n", (unsigned long long)h[0], most, tn_error());
    bool right = got == -1 && strstr(tn_error(), "photos, sample 0: tn_image_load_crop: damaged/one/empty.png");
    tn_loader_free(loader);
    tn_image_folder_free(folder);
    tn_scope_end(scope);
    return !(right && parts && h[0] == h[1] && h[0] == h[2] && most > 0 && most < 2.7 && label == 1);
}
END
} >photos.c
cc -std=c11 -Wall -Wextra -Werror photos.c -o photos_of "${against[@]}"
if [ -e build/src/ext/images/libtenon-images.so ]; then
    mkdir -p photos/{cat,dog} damaged/one
    cp "$root"/tests/golden/images/{444.jpg,rgb.png} photos/cat
    cp "$root"/tests/golden/images/turned.jpg photos/dog
    : >damaged/one/empty.png
    ./photos_of
else
    echo 'left out, there is no libpng or libjpeg-turbo: images'
fi

# Padded sequences: a row gives what it gives alone, without padding.
{
    echo '#include <tenon/tenon.h>'
    block_with key_padding data.md
    cat <<'END'
int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_module *embedding = tn_embedding_new(9, 8, (tn_embedding_options){ 0 });
    tn_module *encoder = tn_encoder_new(tn_encoder_layer_new(8, 2, (tn_encoder_layer_options){ 0 }), 2, TN_NO_MODULE);
    tn_module *lstm = tn_lstm_new(8, 5, (tn_recurrent_options){ 0 });
    tn_tensor *ids = tn_randint(0, 9, TN_SHAPE(2, 6)), *lengths = tn_from_ints((int64_t[]){ 6, 4 }, TN_SHAPE(2));
    tn_tensor *alone = tn_slice(tn_narrow(ids, 0, 1, 1), 1, 0, 4, 1), *four = tn_narrow(lengths, 0, 1, 1);
    tn_tensor *both = mean_of_sequence(embedding, encoder, ids, lengths);
    tn_tensor *last = last_states(lstm, tn_forward(embedding, ids), lengths);
    double a = tn_max_abs_diff(tn_narrow(both, 0, 1, 1), mean_of_sequence(embedding, encoder, alone, four));
    double b = tn_max_abs_diff(tn_narrow(last, 1, 1, 1), last_states(lstm, tn_forward(embedding, alone), four));
    double c = tn_max_abs_diff(both, tn_mean(tn_forward(encoder, tn_forward(embedding, ids)), TN_AXES(1), false));
    printf("sequences: %g, %g; without the mask %g\n", a, b, c);
    tn_module_drop(embedding), tn_module_drop(encoder), tn_module_drop(lstm);
    tn_scope_end(scope);
    return !(a < 1e-5 && b < 1e-6 && c > 1e-3);
}
END
} >sequences.c
cc -std=c11 -Wall -Wextra -Werror sequences.c -o sequences "${against[@]}"
./sequences

# Finetuning: of a file with other classes all but the last layer is loaded; frozen batch norms stand still. Then an
# adapter and a text, of the smallest model there is.
{
    echo '#include <string.h>'
    echo '#include "resnet.h"'
    block_with skip_mismatched finetuning.md
    block_with freeze_norm finetuning.md
    cat <<'END'
int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_module *published = resnet_new(64, 10);
    TN_CHECK(tn_save(published, "resnet18.pth"));
    tn_module *model = pretrained("resnet18.pth", 3);
    double before = tn_max_abs_diff(tn_get_parameter(model, "conv1.weight"), tn_get_parameter(published, "conv1.weight"));
    tn_optim *opt = prepare(model);
    uint64_t mean = tn_hash(tn_get_buffer(model, "bn1.running_mean")), gain = tn_hash(tn_get_parameter(model, "bn1.weight"));
    uint64_t weight = tn_hash(tn_get_parameter(model, "conv1.weight"));
    TN_CHECK(tn_train(model, true));
    TN_CHECK(tn_backward(tn_cross_entropy(tn_forward(model, tn_randn(TN_SHAPE(2, 3, 32, 32))), tn_randint(0, 3, TN_SHAPE(2)))));
    TN_CHECK(tn_optim_step(opt));
    bool still = mean == tn_hash(tn_get_buffer(model, "bn1.running_mean")) && gain == tn_hash(tn_get_parameter(model, "bn1.weight"));
    bool moved = weight != tn_hash(tn_get_parameter(model, "conv1.weight"));
    tn_optim_free(opt), tn_module_drop(model), tn_module_drop(published);
    tn_scope_end(scope);
    return !(before == 0 && still && moved);
}
END
} >finetune.c
cc -std=c11 -Wall -Wextra -Werror finetune.c "$root/examples/models/resnet.c" -o finetune -I"$root/examples/models" "${against[@]}"
./finetune >log
grep -q 'fc.weight' log
grep -q 'bn1: BatchNorm2d(64, .*), frozen' log

block_with tn_generated_token finetuning.md >text.c
{
    echo '#include <tenon/tenon.h>'
    block_with tn_lora_save finetuning.md
    cat <<'END'
int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_module *model = tn_lm_new("folder");
    TN_CHECK_PTR(model);
    TN_CHECK(tn_lm_save(model, "folder"));
    adapt(model);
    tn_module *again = tn_lm_load("folder", (tn_lm_options){ 0 });
    TN_CHECK_PTR(again);
    use_adapter(again);
    tn_module_drop(model), tn_module_drop(again);
    tn_scope_end(scope);
    return 0;
}
END
} >lora.c
for program in text lora; do
    cc -std=c11 -Wall -Wextra -Werror $program.c -o $program -ltenon-lm "${against[@]}"
done
mkdir folder
cat >folder/config.json <<'END'
{"model_type": "llama", "vocab_size": 4, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
 "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
 "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true, "eos_token_id": null}
END
cat >folder/tokenizer.json <<'END'
{"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},
 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3}, "merges": []}}
END
./lora
[ -s adapter/adapter_model.safetensors ]
./text folder ab >log
grep -qE '^[abcd]{100}$' log

# The captured step, here on the CPU.
{
    echo '#include <tenon/tenon.h>'
    block_with tn_capture_new gpu.md
    block_with tn_later_take gpu.md
    cat <<'END'
int main(void)
{
    tn_scope scope = tn_scope_begin();
    run r = { .model = tn_linear_new(4, 3, (tn_linear_options){ 0 }) };
    TN_CHECK_PTR(r.model);
    r.opt = tn_sgd(tn_parameters(r.model), (tn_sgd_options){ .lr = 0.5 });
    r.schedule = tn_exponential_lr(r.opt, 0.9);
    tn_capture *c = tn_capture_new(step, &r, tn_cpu());
    tn_tensor *x = tn_randn(TN_SHAPE(6, 4)), *y = tn_randint(0, 3, TN_SHAPE(6));
    double first = train(c, &r, x, y), last = first;
    for (int i = 0; i < 50; i++) last = train(c, &r, x, y);
    tn_loader *loader = tn_loader_new((tn_tensor *[]){ x, y }, 2, (tn_loader_options){ .batch_size = 6 });
    epoch(c, loader);
    tn_loader_free(loader);
    printf("captured: %g, %g\n", first, last);
    tn_capture_free(c), tn_scheduler_free(r.schedule), tn_optim_free(r.opt), tn_module_drop(r.model);
    tn_scope_end(scope);
    return !(last < first);
}
END
} >captured.c
cc -std=c11 -Wall -Wextra -Werror captured.c -o captured "${against[@]}"
./captured

# The functions of docs/pytorch.md, each beside something that it must equal.
{
    echo '#include <math.h>'
    echo '#include <tenon/tenon.h>'
    awk '$0 == "```c" { inside = 1; next } $0 == "```" { inside = 0 } inside' "$root/docs/pytorch.md"
    cat <<'END'
static int wrong;
static void near(const char *what, double difference, double most)
{
    if (fabs(difference) <= most) return; /* NaN is wrong */
    printf("%s differs by %g\n", what, difference);
    wrong++;
}
int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = tn_randn(TN_SHAPE(2, 4, 6, 6)), *index, *a = tn_randn(TN_SHAPE(5, 3)), *b = tn_randn(TN_SHAPE(5, 4));

    tn_tensor *w = tn_randn(TN_SHAPE(2, 3, 4));                      /* row 1, output 1: a' W b */
    tn_tensor *product = tn_matmul(tn_matmul(tn_narrow(a, 0, 1, 1), tn_select(w, 0, 1)), tn_unsqueeze(tn_select(b, 0, 1), 1));
    near("bilinear", tn_at(bilinear(a, b, w), TN_INDEX(1, 1)) - tn_item(product), 1e-5);

    tn_tensor *pooled = tn_max_pool2d_with_indices(x, (tn_pool_spec){ .kernel = { 2, 2 } }, &index);
    tn_tensor *back = max_unpool2d(pooled, index, 6, 6);             /* the largest of each 2 x 2 where they were */
    near("max_unpool2d", tn_max_abs_diff(tn_where(tn_ne_scalar(back, 0), x, back), back), 0);
    near("max_unpool2d", tn_item(tn_sum_all(tn_ne_scalar(back, 0))) - (double)tn_numel(pooled), 0);

    float three[] = { 3, 0, 0, 0, 4, 0 };                            /* (3, 0, 0) and (0, 4, 0): 5 apart */
    tn_tensor *points = tn_from_floats(three, TN_SHAPE(2, 3)), *apart = cdist(points, points);
    near("cdist", tn_at(apart, TN_INDEX(0, 1)) - 5, 1e-6);
    near("cdist", tn_at(apart, TN_INDEX(1, 1)), 0);

    tn_tensor *sum = logaddexp(tn_full(TN_SHAPE(1), 1000), tn_full(TN_SHAPE(1), 1000));
    near("logaddexp", tn_item(sum) - 1000 - log(2), 1e-4);

    tn_tensor *wins = tn_argmax(gumbel_softmax(tn_log(tn_expand(tn_arange(1, 4, 1, TN_F64), TN_SHAPE(60000, 3))), 1), -1, false);
    tn_tensor *share = tn_div_scalar(tn_bincount(wins, 3), 60000);   /* of 1 : 2 : 3 */
    near("gumbel_softmax", tn_at(share, TN_INDEX(0)) - 1. / 6, 0.01);
    near("gumbel_softmax", tn_at(share, TN_INDEX(2)) - 3. / 6, 0.01);
    tn_scope_end(scope);
    return wrong > 0;
}
END
} >lacking.c
cc -std=c11 -Wall -Wextra -Werror lacking.c -o lacking "${against[@]}" -lm
./lacking
