/* cases.h - the further files of suites here, each of which adds its cases; and how the files of
 * `badfiles` say that a file is refused. */
#ifndef TENON_TESTS_IO_CASES_H
#define TENON_TESTS_IO_CASES_H

#include "files.h"

void files_replace_cases(Suite *suite);
void files_lock_cases(Suite *suite);
void badfiles_idx_cases(Suite *suite);
void badfiles_npy_cases(Suite *suite);
void badfiles_pt_cases(Suite *suite);
void pt_kinds_cases(Suite *suite);
void pt_optim_cases(Suite *suite);
void checkpoint_parts_cases(Suite *suite);
void checkpoint_folder_cases(Suite *suite);
void checkpoint_old_cases(Suite *suite);

/* The pending error is status, "FUNCTION: PATH: TEXT"; forgets it. text is "TEXT", or "TEXT..."
 * where only the beginning counts. */
void check_error(const char *what, const char *function, const char *path, tn_status status,
                 const char *text);
/* Read as tensors, into a model, and with as_checkpoint as a checkpoint: all refuse it alike, and
 * nothing changes. */
void refuses(const char *what, const char *path, tn_status status, const char *text,
             bool as_checkpoint);

#endif
