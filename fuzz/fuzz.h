/*
 * fuzz.h - what the fuzz targets share. A target is one function that reads some bytes as a file;
 * libFuzzer calls it (-Dfuzz=true), or replay.c with the files of corpus/.
 */
#ifndef TENON_FUZZ_H
#define TENON_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include <tenon/tenon.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The path of a file in memory that holds these bytes; of the last call only. */
const char *fuzz_file(const uint8_t *data, size_t size);
/* Ends the program unless the pending error is of a kind that a file's contents can cause. */
void fuzz_refused(void);

/* The target of a reader of one tensor. */
#define FUZZ_READER(read)                                                                          \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)                                   \
    {                                                                                              \
        static uint64_t sum;                                                                       \
        tn_scope scope = tn_scope_begin();                                                         \
        tn_tensor *t = read(fuzz_file(data, size));                                                \
        if (t)                                                                                     \
            sum += tn_hash(t);                                                                     \
        else                                                                                       \
            fuzz_refused();                                                                        \
        tn_error_clear();                                                                          \
        tn_scope_end(scope);                                                                       \
        return (int)(sum & 0);                                                                     \
    }

#endif
