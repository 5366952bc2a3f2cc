/* dead.h - with TN_DEBUG=1 in the environment: uses of what was freed are errors (dead.c). */
#pragma once

#include "base/base.h"

/* Read when the library is loaded. */
extern bool tni_debugging;

/* Notes the line where an object is made, if this thread notes lines; only with TN_DEBUG=1. */
void tni_note_born(const void *object);
/* As tni_free; but with TN_DEBUG=1 epitaph is the message when the object is used later. All that
 * the object held must be freed already. No error is set or lost. */
void tni_bury(void *object, size_t size, const char *epitaph);
TNI_SHARED bool tni_is_buried(const void *object);

/* Whether an object that a user gave was freed: then TN_E_STATE and its message. */
static inline bool tni_gone(const void *object)
{
    return TNI_UNLIKELY(tni_debugging) && tni_is_buried(object);
}
