/*
 * replay.c - a fuzz target without a fuzzer: runs it over every file of a folder, and over every
 * beginning of each. The last line is "N passed, 0 failed"; what goes wrong ends the program.
 *
 * Seen to fail under the sanitizers: in src/io/safetensors.c, read_range() without the comparison
 * with the shape's bytes: range-too-long; read_shape() without the check of the rank: nine-axes.
 */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool run(const char *path)
{
    static uint8_t bytes[1 << 16];
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    for (size_t k = 0; k <= n; k++) {
        uint8_t *exact = malloc(k ? k : 1); /* so that a sanitizer sees its end */
        memcpy(exact, bytes, k);
        LLVMFuzzerTestOneInput(exact, k);
        free(exact);
    }
    return true;
}

int main(int argc, char **argv)
{
    int passed = 0;
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    if (!dir) {
        fprintf(stderr, "usage: replay FOLDER\n");
        return 2;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.') continue;
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        printf("%s\n", e->d_name);
        if (!run(path)) {
            perror(path);
            return 1;
        }
        passed++;
    }
    closedir(dir);
    printf("%d passed, 0 failed\n", passed);
    return passed == 0;
}
