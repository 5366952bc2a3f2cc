/*
 * serializer.h - what an optimizer, a schedule or a scaler keeps in a file: a form with named
 * fields (numbers and tensors), filled in for saving and read for loading.
 *
 * Each kind has one function that lists its fields: "a count named step, here". Saving puts every
 * field into a list. Loading looks each one up there, notes what does not fit, and names all of it
 * in one message. One function serves both, so saving and loading cannot differ.
 */
#pragma once

#include "nn/module.h"

/* The largest step count that a file may hold: nobody takes so many, one more cannot overflow. */
#define TNI_MOST_STEPS (INT64_MAX / 2)

enum { TNI_MISSING, TNI_UNEXPECTED, TNI_MISMATCHED, TNI_MISFITS };

/* What was loaded, beside the places where it belongs: so that a checkpoint can check all its parts
 * before any of them changes. */
typedef struct tni_staged tni_staged;

typedef struct tni_serializer {
    tn_list *to;         /* saving: here */
    const tn_list *from; /* loading: from here. NULL when saving */
    bool *used;          /* which of its entries have been looked up */
    tn_status status;    /* of the first call that failed; later fields do nothing */
    tni_staged *staged;  /* loading: what has changed so far */
    tni_line line[TNI_MISFITS];
    char name[TNI_NAME_LIMIT + 64]; /* the current field's */
} tni_serializer;

/* Begins to save into a new list, that function's result. */
void tni_serializer_save(const char *function, tni_serializer *f);
/* The list; NULL and a message when something failed. */
tn_list *tni_serializer_saved(const tni_serializer *f);
/* Begins to load. At the end, also after a failure, call the next two. */
void tni_serializer_load(tni_serializer *f, const tn_list *from);
/* TN_OK when every field was there and fitted and nothing else was; else the message: "FUNCTION:
 * missing a, b; unexpected c; mismatched d". */
tn_status tni_serializer_loaded(tni_serializer *f, const char *function);
/* Takes back what loading has set; status: of tni_serializer_loaded, and what was checked after it.
 * NULL unless it is TN_OK and every tni_serializer_set was. */
tni_staged *tni_serializer_staged(tni_serializer *f, tn_status status);
/* Puts it in place, which cannot fail, or discards it, and frees it. NULL gives the pending
 * status. */
tn_status tni_staged_put(tni_staged *staged);
void tni_staged_discard(tni_staged *staged);

/* The next field's name. */
const char *tni_field_name(tni_serializer *f, const char *format, ...) TN_PRINTF(2, 3);
/* Fields of that name. Loading sets *value if the list has one of that kind. */
void tni_field_i64(tni_serializer *f, const char *name, int64_t *value);
void tni_field_f64(tni_serializer *f, const char *name, double *value);
void tni_field_steps(tni_serializer *f, const char *name, int64_t *value); /* 0 to TNI_MOST_STEPS */
void tni_field_rate(tni_serializer *f, const char *name, double *value);   /* finite and >= 0 */
/* A switch that decides what the other fields mean: a file must have the same value. */
void tni_field_switch(tni_serializer *f, const char *name, bool value);
typedef struct tni_form {
    tn_shape shape;
    tn_dtype dtype;
    tn_device device;
} tni_form;
/* A tensor of that form. Loading copies the file's and puts a reference to the copy into *value;
 * value NULL: it is only compared. */
void tni_field_tensor(tni_serializer *f, const char *name, const tni_form *form, tn_tensor **value);
/* Notes a misfit (missing, unexpected or mismatched): format, and what it takes. */
#define tni_serializer_note(f, misfit, ...) tni_line_add(&(f)->line[misfit], ", ", __VA_ARGS__)

/* Loading: sets what has no field of its own: `size` bytes, 8 at most, or a tensor. */
void tni_serializer_set(tni_serializer *f, void *place, const void *value, size_t size);
void tni_serializer_set_tensor(tni_serializer *f, tn_tensor **place, tn_tensor *t);
