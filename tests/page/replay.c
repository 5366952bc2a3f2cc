/* replay.c - runs lines of live.h natively or under node: from standard input, each line as live_do
 * takes it, or `number NAME`, which prints it, or `values NAME`, `text NAME`; `refused LINE` prints
 * why the engine refuses it. Ends with 1 at the first line that is refused, or there is not.
 * usage: replay [DIGITS] [TEXT]    files for `data digits`, `data text` */
#include <stdio.h>
#include <string.h>

#include "../../page/live.h"

static void read_bytes(const char *path)
{
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (!file) return;
    fseek(file, 0, SEEK_END);
    long n = ftell(file);
    rewind(file);
    void *room = live_room((int)n);
    if (room && fread(room, 1, (size_t)n, file) != (size_t)n)
        fprintf(stderr, "replay: %s: cut short\n", path);
    fclose(file);
}

int main(int argc, char **argv)
{
    char line[1024];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, "data digits") == 0) read_bytes(argc > 1 ? argv[1] : NULL);
        if (strcmp(line, "data text") == 0) read_bytes(argc > 2 ? argv[2] : NULL);
        if (strncmp(line, "number ", 7) == 0) {
            printf("%s %.9g\n", line + 7, live_number(line + 7));
        } else if (strncmp(line, "text ", 5) == 0) {
            printf("%s\n", live_text(line + 5));
        } else if (strncmp(line, "values ", 7) == 0) {
            const float *v = live_values(line + 7);
            for (int i = 0; v && i < live_count(); i++)
                printf("%s%.9g", i ? " " : "", (double)v[i]);
            printf("\n");
        } else if (strncmp(line, "refused ", 8) == 0) {
            const char *wrong = live_do(line + 8);
            if (!*wrong) return fprintf(stderr, "replay: %s: not refused\n", line + 8), 1;
            printf("%s\n", wrong);
        } else {
            const char *wrong = live_do(line);
            if (*wrong) return fprintf(stderr, "replay: %s: %s\n", line, wrong), 1;
        }
    }
    return 0;
}
