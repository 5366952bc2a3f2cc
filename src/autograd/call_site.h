/*
 * call_site.h - where a node was recorded: in which call of a module, and what the op read that
 * takes no gradient. Nodes remember it under tn_set_places; under tn_set_anomaly the call alone.
 */
#pragma once

#include "autograd/graph.h"

/* One call of a module; counted by the nodes recorded in it and the calls within it. */
typedef struct tni_call_site {
    atomic_int refs;
    struct tni_call_site *outer; /* the call around it; NULL: none */
    const void *module;          /* tells modules apart; may be gone by now */
    char *path; /* "encoder.layers.0", from the outermost call's module; that one's own is "" */
    char *type; /* "EncoderLayer" */
    tn_tensor **written; /* aliases of the buffers that were changed in it, each once */
    size_t n_written, capacity;
} tni_call_site;

struct tni_origin {
    tni_call_site *site;     /* NULL: outside of all calls */
    struct tni_calls *calls; /* base/lines.h; under tn_set_lines, else NULL */
    char *_Atomic line;      /* their text, once somebody asked; NULL */
    int n_in;
    tn_tensor *in[]; /* n_in: aliases of inputs that take no gradient; NULL for the others */
};

/* Set by nn, NULL while no forward runs: gives the running call, which belongs to nn; NULL when out
 * of memory. */
extern _Thread_local tni_call_site *(*tni_call_site_here)(void);
/* Puts it into *site. Errors: it could not be made, out of memory. */
TNI_SHARED tn_status tni_call_site_now(tni_call_site **site);

/* path and type are copied, outer is counted. NULL and a message when out of memory. */
tni_call_site *tni_call_site_new(tni_call_site *outer, const void *module, const char *path,
                                 const char *type);
TNI_SHARED void tni_call_site_drop(tni_call_site *site); /* NULL is ignored */

/* In anomaly.c: a watcher for places, unless another one has the thread. */
void tni_watch_places(bool on);
/* Gives a node that c just recorded its origin. */
TNI_SHARED tn_status tni_call_site_node(tni_watcher *self, const tni_call *c);
/* A buffer is written in the running call. */
TNI_SHARED void tni_call_site_write(tni_watcher *self, const tn_tensor *t);
/* " (in fc1: Linear)", "" if nothing is known. Valid until the thread's next. */
const char *tni_call_site_text(const tni_node *node);
/* "net.c:41", the line that called the op; "" if it is not known. Valid as long as the node. */
TNI_SHARED const char *tni_call_site_line(const tni_node *node);
void tni_origin_free(tni_origin *origin);
