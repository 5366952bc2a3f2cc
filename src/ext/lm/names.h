/* names.h - modules chosen by patterns of their names. */
#ifndef TENON_EXT_LM_NAMES_H
#define TENON_EXT_LM_NAMES_H

#include <stdbool.h>

/* Whether name ("model.layers.0.self_attn.q_proj") fits one of the patterns, which commas divide:
 * "*.q_proj,*.v_proj". In them * stands for any characters, dots too, and ? for one. */
bool tni_name_fits(const char *patterns, const char *name);

#endif
