/*
 * files.h - for tests that read and write files: a folder for each, bytes in and out.
 */
#ifndef TENON_TESTS_FILES_H
#define TENON_TESTS_FILES_H

#include <sys/types.h>

#include "common.h"

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* A test case whose tests have a new folder each, in TMPDIR, removed with all in it afterwards. */
TCase *file_case(Suite *suite, const char *name);
extern char folder[];
/* The path of a file there. Static memory of the last eight. */
const char *in_folder(const char *name);
int files_in_folder(void); /* not counting those whose names begin with a dot */

/* Makes a file there; its path. */
const char *write_bytes(const char *name, const void *bytes, size_t n);
/* To be freed; terminated by a zero. */
char *read_bytes(const char *path, size_t *n);
/* A safetensors file: this header, then n bytes of data, or of zeros. */
const char *write_tensors(const char *name, const char *header, const void *data, size_t n);
const char *write_header(const char *name, const char *header, size_t n);
/* bytes compressed at level 0 to 9; to be freed */
unsigned char *gzip(const void *bytes, size_t n, int level, size_t *size);

/* Names and bits. */
uint64_t hash_of(const tn_list *list);
/* Of a module's state, in a scope of its own. */
uint64_t hash_of_module(tn_module *m);

/* How a child ended: its status, or 128 and its signal. */
int status_of(pid_t child);

/* full with TN_TEST_FULL=1 in the environment, else shortened. */
int full_or(int full, int shortened);

#endif
