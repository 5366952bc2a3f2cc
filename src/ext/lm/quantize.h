/* quantize.h - layers put where others were, all or none. */
#ifndef TENON_EXT_LM_QUANTIZE_H
#define TENON_EXT_LM_QUANTIZE_H

#include <tenon/quantize.h>

/* Whether m is an Int8Linear; its sizes (each may be NULL). */
bool tni_is_int8(const tn_module *m, int64_t *in, int64_t *out);
/* Each Linear below m for which state has NAME.qweight becomes an Int8Linear of that shape, with
 * zeros. */
tn_status tni_int8_like(const char *function, tn_module *m, const tn_list *state);

#endif
