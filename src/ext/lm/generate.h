/* generate.h - what generation asks of a model, so that tests can give it another. */
#ifndef TENON_EXT_LM_GENERATE_H
#define TENON_EXT_LM_GENERATE_H

#include <tenon/generate.h>
#include <tenon/lm.h>

/* As the functions tn_lm_... of lm.h. */
typedef struct tni_decoder {
    tn_status (*info)(const tn_module *m, tn_lm_info *info);
    tn_tensor *(*cache)(tn_module *m);
    tn_status (*set_cache)(tn_module *m, int64_t batch, int64_t capacity);
    tn_tensor *(*next)(tn_module *m, tn_tensor *ids, tn_tensor *lengths);
} tni_decoder;

tn_generated *tni_generate(const tni_decoder *decoder, tn_module *m, const tn_prompt *prompts,
                           int64_t n, const tn_generate_options *o);
/* Where the parameters are. */
tn_device tni_device_of(tn_module *m);

#endif
