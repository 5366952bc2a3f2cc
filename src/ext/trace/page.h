/* page.h - the page that shows traces, in parts: made at build time from page/ (page/embed.py). */
#ifndef TNI_PAGE_H
#define TNI_PAGE_H

#include <stddef.h>

/* A part of the page, and what html.c writes after it. */
typedef struct tni_page_part {
    const char *text; /* not ended by a zero */
    size_t n;
    enum { TNI_PAGE_TITLE, TNI_PAGE_STATIC, TNI_PAGE_TRACES, TNI_PAGE_END } next;
} tni_page_part;

/* Ends with a part whose next is TNI_PAGE_END. */
extern const tni_page_part tni_page_parts[];

#endif
