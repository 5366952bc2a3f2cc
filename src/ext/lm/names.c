/* names.c - modules chosen by patterns of their names. */
#include "ext/lm/names.h"

#include <stddef.h>
#include <string.h>

/* One pattern of n characters: a * that fitted too little takes one character more. */
static bool fits(const char *pattern, size_t n, const char *name)
{
    const char *end = pattern + n, *star = NULL, *from = NULL;
    while (*name) {
        if (pattern < end && *pattern == '*') {
            star = ++pattern, from = name;
        } else if (pattern < end && (*pattern == '?' || *pattern == *name)) {
            pattern++, name++;
        } else {
            if (!star) return false;
            pattern = star, name = ++from;
        }
    }
    while (pattern < end && *pattern == '*') pattern++;
    return pattern == end;
}

bool tni_name_fits(const char *patterns, const char *name)
{
    for (;; patterns++) {
        size_t n = strcspn(patterns, ",");
        if (n && fits(patterns, n, name)) return true;
        patterns += n;
        if (!*patterns) return false;
    }
}
