/*
 * form.h - what an optimizer, a schedule or a scaler keeps in a file: a form whose fields, numbers
 * and tensors under names, are filled in for saving and read for loading.
 *
 * Each has one function that shows its fields, one after another: "a count named step, here". When
 * saving, every field goes into a list. When loading, each is looked for there, what does not fit
 * is noted, and one message names all of it. So saving and loading cannot differ.
 */
#ifndef TNI_FORM_H
#define TNI_FORM_H

#include <tenon/nn.h>

#include "tensor/internal.h"

/* Steps that a file may speak of: nobody takes so many, and one more does not overflow. */
#define TNI_MOST_STEPS (INT64_MAX / 2)

enum { TNI_MISSING, TNI_UNEXPECTED, TNI_MISMATCHED, TNI_MISFITS };

typedef struct tni_form {
    tn_list *to;         /* saving: here */
    const tn_list *from; /* loading: from here. NULL when saving */
    bool *used;          /* which of its entries have been asked for */
    tn_status status;    /* of the first call that failed; fields after that do nothing */
    int n[TNI_MISFITS];  /* how many do not fit, and which */
    char text[TNI_MISFITS][320];
    char name[1024 + 64]; /* the present field's */
} tni_form;

/* Begins to save into a new list. */
void tni_form_save(tni_form *f);
/* The list; NULL and a message when something failed. */
tn_list *tni_form_saved(const tni_form *f);
/* Begins to load. Whatever comes of it, tni_form_loaded ends it. */
void tni_form_load(tni_form *f, const tn_list *from);
/* TN_OK when every field was there and fitted and nothing else was; else the message: "FUNCTION:
 * missing a, b; unexpected c; mismatched d". */
tn_status tni_form_loaded(tni_form *f, const char *function);

/* The next field's name. */
const char *tni_field_name(tni_form *f, const char *format, ...) TN_PRINTF(2, 3);
/* Fields of that name. Loading changes a value where one of that kind is there. */
void tni_field_i64(tni_form *f, const char *name, int64_t *value);
void tni_field_f64(tni_form *f, const char *name, double *value);
void tni_field_steps(tni_form *f, const char *name, int64_t *value); /* 0 to TNI_MOST_STEPS */
void tni_field_rate(tni_form *f, const char *name, double *value);   /* finite and >= 0 */
/* A switch that decides what the other fields mean: a file must have this very value. */
void tni_field_switch(tni_form *f, const char *name, bool value);
/* A tensor of like's shape and dtype; loading makes a copy of the file's, on like's device, a
 * reference to which is put into *value. */
void tni_field_tensor(tni_form *f, const char *name, const tn_tensor *like, tn_tensor **value);
/* Notes that something does not fit: one of the three, and which it is. */
void tni_form_note(tni_form *f, int misfit, const char *format, ...) TN_PRINTF(3, 4);

/*
 * Loading in two steps, so that a checkpoint can look at all its parts before any of them changes.
 * What was loaded and fits, and whose it is; each kind has a struct that begins with this one.
 */
typedef struct tni_staged tni_staged;
struct tni_staged {
    void (*put)(tni_staged *staged);  /* puts it in place; cannot fail */
    void (*drop)(tni_staged *staged); /* gives back what it holds; NULL: nothing */
    size_t nbytes;                    /* of the whole struct */
};
/* Puts it in place, or not, and frees it. NULL: the pending status. */
tn_status tni_staged_put(tni_staged *staged);
void tni_staged_discard(tni_staged *staged);

#endif
