/* draw.h - where arguments come from: see draw.c. */
#ifndef TENON_FUZZ_API_DRAW_H
#define TENON_FUZZ_API_DRAW_H

#include "world.h"

/* Random decisions of the harness itself, not part of an argument. */
uint64_t chance(world *w);
int64_t below(world *w, int64_t n);

/* One part of an argument. Sound: in [low, high]. Odd: see draw.c. */
int64_t pick_long(world *w, int64_t low, int64_t high);
int pick_int(world *w, int low, int high);
double pick_real(world *w, double low, double high);
bool pick_bool(world *w);
int pick_enum(world *w, int n);            /* odd: -1, n, 99 */
void *pick_pointer(world *w, void *sound); /* odd: NULL */
const char *pick_text(world *w, const char *sound);
tn_shape pick_shape(world *w);
tn_tensor *pick_tensor(world *w, tn_tensor *sound); /* odd: NULL, TN_NONE, any other */
/* The number of entries of an array: never more than it has. */
int pick_count(world *w, int have, bool there);

/* Memory of exactly that size, which lives until the call is over. */
void *scratch(world *w, size_t size);

void clear_lent_memory(void); /* what tn_from_memory was given: calls write to it */

/* A new tensor with random values and layout, borrowed from the scope. NULL on failure. */
enum { PLAIN, TRANSPOSED, STRIDED, EXPANDED, LAYOUTS };
tn_tensor *make_tensor(world *w, tn_shape shape, tn_dtype dtype, int layout);
tn_tensor *make_leaf(world *w, tn_shape shape, tn_dtype dtype); /* requires grad */

tn_tensor *any_tensor(world *w);                   /* from the pool; NULL only if it is empty */
tn_module *any_module(world *w, const char *type); /* of the pool or new; kept by the pool */
tn_list *any_list(world *w);
tn_optim *any_optim(world *w);

/* Draws all, the late ones last. */
void draw_arguments(world *w, const row *r);

#endif
