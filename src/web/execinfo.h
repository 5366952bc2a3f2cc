/* execinfo.h - a browser shows no addresses of callers. */
#ifndef TNI_WEB_EXECINFO_H
#define TNI_WEB_EXECINFO_H

static inline int backtrace(void **to, int most)
{
    (void)to, (void)most;
    return 0;
}

#endif
