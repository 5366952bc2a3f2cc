/* sample.h - generating text with a trained model, and judging it by its words. */
#ifndef TRANSFORMER_SAMPLE_H
#define TRANSFORMER_SAMPLE_H

#include <tenon/tenon.h>

/* The characters a model knows: id 0 .. n-1 to byte and back. */
typedef struct vocabulary {
    int n;
    unsigned char byte_of[256];
    int id_of[256]; /* -1: not in the text */
} vocabulary;

vocabulary vocabulary_of(const tn_text *text);
/* As hexadecimal digits, two a byte, for a file's metadata: hex holds 513 bytes. */
void vocabulary_write(const vocabulary *v, char *hex);
/* False if hex is not such a list. */
bool vocabulary_read(vocabulary *v, const char *hex);
bool vocabulary_equal(const vocabulary *a, const vocabulary *b);

typedef struct sample_options {
    int64_t length;     /* characters to write after the prompt */
    double temperature; /* logits are divided by it; 0 takes the likeliest character */
    int64_t top_k;      /* only the k likeliest compete; 0: all */
    uint64_t seed;      /* of this sample's own generator */
    int64_t context;    /* the model sees at most so many characters */
    tn_device device;
    void (*wrote)(int id, void *user); /* called for each new character; may be NULL */
    void *user;
} sample_options;

/**
 * Writes ids: prompt_length of them are there, length more are added. In eval mode, recording
 * nothing; the model's mode afterwards is as before.
 *
 * ids   room for prompt_length + length, prompt_length at least 1
 */
tn_status sample(tn_module *model, unsigned char *ids, int64_t prompt_length, sample_options o);

/* Words (runs of letters) of a sample and how many of them the training text has too. */
typedef struct word_count {
    int64_t words, known;
} word_count;

/* The sample's last word does not count if it is cut off by the sample's end. */
word_count count_words(const unsigned char *ids, int64_t n, const vocabulary *v,
                       const tn_text *text);

#endif
