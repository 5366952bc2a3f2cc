/*
 * buffer_table.h - the table of docs/buffers.md, whose every cell a test runs: what each part of
 * training does with a buffer of each role.
 */
#ifndef TENON_TESTS_BUFFER_TABLE_H
#define TENON_TESTS_BUFFER_TABLE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tenon/tenon.h>

enum { BUFFER_ROLES = 6, BUFFER_ROWS = 20 };
static const unsigned buffer_role[BUFFER_ROLES] = { TN_PLAIN,   TN_CONSTANT, TN_STATISTIC,
                                                    TN_COUNTER, TN_CACHE,    TN_DIRECTION };

typedef struct buffer_row {
    char name[64];
    char cell[BUFFER_ROLES][32];
} buffer_row;

/* Splits "| a | b |" in place; the number of fields. */
static inline int buffer_fields(char *line, char *field[BUFFER_ROLES + 1])
{
    int n = 0;
    for (char *bar = strchr(line, '|'), *next; bar && (next = strchr(bar + 1, '|')); bar = next) {
        if (n > BUFFER_ROLES) return 0;
        field[n++] = bar + 1 + strspn(bar + 1, " ");
        for (char *end = next; end > bar && (*end == '|' || *end == ' '); end--) *end = '\0';
    }
    return n;
}

/* The rows of the first table of the file at path; how many there are. Exits if it is none. */
static inline int buffer_table(const char *path, buffer_row row[BUFFER_ROWS])
{
    char line[512], *field[BUFFER_ROLES + 1];
    FILE *file = fopen(path, "r");
    int n = -2; /* two lines of titles */
    while (file && fgets(line, sizeof line, file)) {
        if (line[0] != '|' && n > -2) break;
        if (line[0] != '|') continue;
        int fields = buffer_fields(line, field);
        if (fields != BUFFER_ROLES + 1 || n >= BUFFER_ROWS) n = BUFFER_ROWS;
        if (n >= BUFFER_ROWS) break;
        for (int i = 0; n == -2 && i < BUFFER_ROLES; i++)
            if (strcmp(field[i + 1], i ? tn_role_name(buffer_role[i]) : "plain")) n = BUFFER_ROWS;
        if (n >= 0) snprintf(row[n].name, sizeof row[n].name, "%s", field[0]);
        for (int i = 0; n >= 0 && i < BUFFER_ROLES; i++)
            snprintf(row[n].cell[i], sizeof row[n].cell[i], "%s", field[i + 1]);
        n++;
    }
    if (file) fclose(file);
    if (n > 0 && n <= BUFFER_ROWS) return n;
    fprintf(stderr, "%s: no table of %d roles\n", path, BUFFER_ROLES);
    exit(1);
}

/* What the table says of a role in the row of that name; exits if there is none. */
static inline const char *buffer_cell(const char *path, const char *name, int role)
{
    static buffer_row row[BUFFER_ROWS];
    int n = buffer_table(path, row);
    for (int i = 0; i < n; i++)
        if (!strcmp(row[i].name, name)) return row[i].cell[role];
    fprintf(stderr, "%s has no row \"%s\"\n", path, name);
    exit(1);
}

#endif
