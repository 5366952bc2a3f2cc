/* stream.h - the stream of a program, to which a report, a drawing or a trace is written. */
#pragma once

#include "io/file.h"

/* Whether it has taken all that was written. */
static inline tn_status tni_stream_written(const char *function, FILE *file)
{
    if (fflush(file) == 0 && !ferror(file)) return TN_OK;
    return tni_error(TN_E_IO, "%s: the file cannot be written", function);
}

/* Writes a text (file NULL: it does not), unless status is a failure, and frees it. */
static inline tn_status tni_stream_put(const char *function, FILE *file, tn_status status,
                                       tni_bytes *text)
{
    if (status == TN_OK && text->failed) status = TN_E_NOMEM;
    if (status == TN_OK && file) {
        fwrite(text->data, 1, text->n, file);
        status = tni_stream_written(function, file);
    }
    tni_bytes_free(text);
    return status;
}
