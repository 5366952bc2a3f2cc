/*
 * lines.h - where in a program's source a function of tenon was called.
 *
 * Noting a place is cheap: the return addresses on the stack. Reading it as "net.c:41" needs the
 * program's debug information, and a reader of it in a module of its own (dwarf.c, on libdw), which
 * is opened for the first line.
 */
#pragma once

#include "base/base.h"

#define TNI_LINES_FILE "libtenon-lines.so"
#define TNI_LINES_SYMBOL "tenon_line_at"

/* Fills file with the source file of the code at address and returns the line; 0: not known. Not
 * for several threads at once. */
typedef int (*tni_line_at)(const void *address, char *file, size_t size);

/* tn_set_lines, in this thread (autograd/call_site.c). */
extern _Thread_local bool tni_lines_wanted;

/* The return addresses of the functions that are running, the innermost first. Where tenon is a
 * shared library only the program's innermost one, or none. */
typedef struct tni_calls {
    int n;
    void *address[];
} tni_calls;

/* Those of now. NULL and a message when out of memory. */
tni_calls *tni_calls_here(void);
void tni_calls_free(tni_calls *calls); /* NULL is ignored */
/* From now on leaves out those of the library that holds this address (one above tenon) as well. */
TNI_SHARED void tni_calls_skip(const void *address);
/* The first of them that is not tenon's, as "net.c:41", or "program+0x1139" where its line is not
 * known. tni_strfree; NULL, without a message, when out of memory. */
char *tni_line_text(const tni_calls *calls);
